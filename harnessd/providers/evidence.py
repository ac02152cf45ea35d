"""Evidence: from an answer that is no reply to the facts of a `Failure`; nothing is judged here."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harnessd.domain.failure import Failure
from harnessd.domain.wait_hints import retry_after_s
from harnessd.net import Redactor, TransportError
from harnessd.providers.wire import count, label, load, part, whole_text, words

MESSAGE_MAX = 2000  # characters: Failure's own bound
_DEPTH = 4  # relays that wrap an error into the message of their own
_HEADERS_MAX = 64
_BODY_DEPTH = 8
_PARTS_MAX = 50  # of one map or list of a body
_NAME_MAX = 200
_HEADER_VALUE_MAX = 500
_HIDDEN_HEADERS = re.compile(r"cookie|authori[sz]ation|api-?key|token$|secret", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]{0,2000}>")
# A relay written in Python prints the service's error as Python, which no JSON parser reads.
_QUOTED_FIELD = r"'{}'\s*:\s*'([\w.-]{{1,80}})'"


@dataclass(frozen=True, slots=True)
class Words:
    """What an error body says in its fields."""

    message: str = ""
    code: str | None = None
    type: str | None = None
    request_id: str = ""


def read_error(body: Any, depth: int = 0) -> Words:
    """The fields of an error body in any of the forms seen; an error wrapped in a message is unwrapped."""
    if isinstance(body, list) and body:  # Google's gateways send a list of one
        return read_error(body[0], depth)
    if not isinstance(body, dict):
        return Words(words(body))
    error = body.get("error", body)
    if not isinstance(error, dict):
        error = {"message": words(error)} | {name: value for name, value in body.items() if name != "error"}
    found = Words(
        message=_message(error),
        code=_label(error.get("code")) or _label(part(error, "innererror", "code")),
        type=_label(error.get("type")) or label(error.get("status")) or None,
        request_id=label(body.get("request_id")) or label(error.get("request_id")),
    )
    return _unwrapped(found, depth)


def _message(error: Mapping[str, Any]) -> str:
    message = next((words(error[key]) for key in ("message", "msg", "detail", "title") if words(error.get(key))), "")
    if not message and isinstance(error.get("detail"), list):  # FastAPI names each wrong field
        message = "; ".join(words(part(item, "msg")) for item in error["detail"][:5])
    raw = part(error, "metadata", "raw")  # OpenRouter: the reason of the service behind it
    if isinstance(raw, str) and raw and raw not in message:
        message = f"{message}: {raw}" if message else raw
    return message


def _label(value: Any) -> str | None:
    """A code or type as text; llama.cpp and OpenRouter send numbers."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    return whole_text(str(value)[:200]) if isinstance(value, str | int) else None


def _unwrapped(found: Words, depth: int) -> Words:
    """The inner error where the message is one itself, with what only the outer one knew."""
    start = found.message.find("{")
    if start < 0 or depth >= _DEPTH:
        return found
    try:
        inner = load(found.message[start:])
    except ValueError:
        code = re.search(_QUOTED_FIELD.format("code"), found.message)
        type_ = re.search(_QUOTED_FIELD.format("type"), found.message)
        return replace(
            found,
            code=code[1] if code else found.code,
            type=type_[1] if type_ else found.type,
        )
    if not isinstance(inner, dict) or not ({"error", "message"} & inner.keys()):
        return found
    deeper = read_error(inner, depth + 1)
    if not deeper.message:
        return found
    return Words(
        message=found.message[:start] + deeper.message,
        code=deeper.code or found.code,
        type=deeper.type or found.type,
        request_id=deeper.request_id or found.request_id,
    )


def plain(text: str) -> str:
    """One short readable text from a body: a page's title, no control characters, at most 2,000 characters."""
    text = whole_text(text)
    head = text[:4000].lstrip().lower()
    if head.startswith(("<!doctype", "<html", "<head", "<?xml")):
        title = _TITLE.search(text[:20000])
        text = html.unescape(_TAG.sub(" ", title[2] if title else text[:20000]))
    return " ".join(_CONTROL.sub(" ", text[: MESSAGE_MAX * 4]).split())[:MESSAGE_MAX]


def storable(value: Any, redactor: Redactor, depth: int = 0) -> Any:
    """A JSON value without secrets and within bounds: servers that check their input like to echo all of it."""
    if isinstance(value, str):
        # Redacted before it is cut: half a secret at the end of a text is a secret still.
        return redactor.text(whole_text(value))[:MESSAGE_MAX]
    if depth >= _BODY_DEPTH:
        return None
    if isinstance(value, dict):
        parts = list(value.items())[:_PARTS_MAX]
        return {
            redactor.text(whole_text(name))[:_NAME_MAX]: storable(item, redactor, depth + 1) for name, item in parts
        }
    if isinstance(value, list):
        return [storable(item, redactor, depth + 1) for item in value[:_PARTS_MAX]]
    return value


@dataclass(frozen=True, slots=True)
class Witness:
    """What one call knows about itself; makes each `Failure` of it."""

    dependency: str
    protocol: str
    redactor: Redactor
    window: int
    now: Callable[[], float] = field(repr=False)

    def transport(
        self, error: TransportError, status: int | None, headers: Mapping[str, str], *, begun: bool
    ) -> Failure:
        """No whole answer. `begun`: a stream had begun."""
        # Where we hung up (a clock expired, a bound was passed) nobody cut the stream: that is not what failed.
        cut = begun and error.word in {"reset", "closed"}
        failure = self._failure(error.message, Words(), ended="cut" if cut else "none", headers=headers)
        return replace(failure, transport=error.word, status=status)

    def refusal(self, status: int, headers: Mapping[str, str], raw: bytes) -> Failure:
        """An answer with an error status."""
        text = raw.decode("utf-8", "replace")
        try:
            body = load(text)
        except ValueError:
            body = None
        said = read_error(body) if body is not None else Words(plain(text))
        message = (said.message if said.message.strip() else plain(text)) or f"HTTP status {status} without a body"
        if 300 <= status < 400:
            target = headers.get("location", "").partition("?")[0]
            message = f"HTTP status {status} redirects to {target!r}; redirects are not followed"
        failure = self._failure(message, said, ended="none", body=body, headers=headers)
        return replace(failure, status=status)

    def stream_error(self, status: int, headers: Mapping[str, str], body: Any) -> Failure:
        """An error told inside an answer whose status said that all is well."""
        said = read_error(body)
        message = said.message if said.message.strip() else "the service told of an error without words"
        failure = self._failure(message, said, ended="error", body=body, headers=headers)
        return replace(failure, status=status)

    def nonsense(self, status: int, headers: Mapping[str, str], said: tuple[str, str], *, begun: bool) -> Failure:
        """An answer that breaks the protocol: our sentence and its own words. `begun`: useful events had come."""
        sentence, shown = said[0], plain(said[1])
        message = f"{sentence}: {shown}" if shown else sentence
        failure = self._failure(message, Words(), ended="cut" if begun else "none", headers=headers)
        return replace(failure, status=status, transport="protocol")

    def cut(self, status: int, headers: Mapping[str, str], events: int) -> Failure:
        """A stream that ended before the protocol's own end mark: never an answer."""
        # Nothing of it was passed on, so the request may be sent again.
        sentence = f"the stream ended before the answer was whole, after {events} useful events"
        return replace(self._failure(sentence, Words(), ended="cut", headers=headers), status=status)

    def complete(self, sentence: str, said: Words, status: int, headers: Mapping[str, str]) -> Failure:
        """A whole answer that is no reply."""
        return replace(self._failure(sentence, said, ended="complete", headers=headers), status=status)

    def keyless(self, sentence: str) -> Failure:
        """A call that was never sent, because its key could not be had."""
        # The word `authentication` is what rules for dead credentials look for.
        said = Words(code="credential_unusable", type="authentication_error")
        return self._failure(f"authentication is not possible: {sentence}", said, ended="none")

    def window_used(self, tokens: int) -> float | None:
        """Size / window as a ratio, where both are known."""
        return tokens / self.window if self.window and tokens else None

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        shown = [(name, value) for name, value in headers.items() if not _HIDDEN_HEADERS.search(name)]
        return {name.lower(): self.redactor.text(value[:_HEADER_VALUE_MAX]) for name, value in shown[:_HEADERS_MAX]}

    def _failure(
        self,
        message: str,
        said: Words,
        *,
        ended: Literal["complete", "cut", "error", "none"],
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Failure:
        headers = headers or {}
        safe = plain(self.redactor.text(whole_text(message))) or "the service gave no readable words"
        shown = self._headers(headers)
        return Failure(
            source="model",
            dependency=self.dependency,
            message=safe,
            code=self.redactor.text(said.code) if said.code else None,
            type=self.redactor.text(said.type) if said.type else None,
            body=storable(body, self.redactor),
            headers=shown,
            protocol=self.protocol,
            ended=ended,
            window_used=_stated_window(body),
            retry_after_s=retry_after_s(shown, body, safe, self.now()),
            request_id=request_id(headers) or said.request_id,
        )


def request_id(headers: Mapping[str, str]) -> str:
    """The service's name of the request, from its headers."""
    return next((headers[name][:200] for name in ("request-id", "x-request-id") if headers.get(name)), "")


def _stated_window(body: Any) -> float | None:
    """llama.cpp's server says how large the prompt and the window are."""
    error = part(body, "error")
    prompt, window = count(part(error, "n_prompt_tokens")), count(part(error, "n_ctx"))
    return prompt / window if prompt and window else None
