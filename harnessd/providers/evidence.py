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
from harnessd.providers.wire import count, label, load, load_first, part, whole_text, words

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
LARGER_THAN_LIMIT = "request_larger_than_limit"  # our code, from the figures in the words
_LIMITING = frozenset({403, 429, 503, 529})  # statuses that can say that a limit is used up
_QUOTED_FIELD = r"'{}'\s*:\s*'([\w.-]{{1,80}})'"


@dataclass(frozen=True, slots=True)
class Words:
    """What an error body says in its fields. `inner`: the body that it wraps as text, for what only that one knows."""

    message: str = ""
    code: str | None = None
    type: str | None = None
    request_id: str = ""
    inner: Any = None


_MESSAGES = (
    *("message", "msg", "detail", "error_msg", "errmsg", "status_msg", "error_message", "errormessage"),
    *("error_description", "description", "title", "reason"),
)
# Where a relay keeps the reason of the service behind it: OpenRouter; JSON-RPC, whose own words are "Internal error".
_REASONS = (("metadata", "raw"), ("data", "details"), ("data", "message"))
_TYPES = ("type", "error_type", "status", "__type")
_CODES = ("code", "error_code", "errcode", "status_code")


def read_error(body: Any, depth: int = 0) -> Words:
    """The fields of an error body in any of the forms seen; an error wrapped in a message is unwrapped."""
    if isinstance(body, list) and body:  # Google's gateways send a list of one
        return read_error(body[0], depth)
    if not isinstance(body, dict):
        return _unwrapped(Words(words(body)), depth)
    name, error = _error_of(body)
    folded = {key.lower(): value for key, value in error.items()}
    type_ = next((word for key in _TYPES if (word := _label(folded.get(key)))), None)
    found = Words(
        message=_message(folded),
        code=_code_of(folded),
        type=type_.rpartition("#")[2] if type_ else name or None,  # AWS: com.amazon.coral.service#ThrottlingException
        request_id=label(body.get("request_id")) or label(error.get("request_id")),
    )
    return _unwrapped(found, depth)


def tells_of_error(body: Mapping[str, Any]) -> bool:
    """Whether a document or event of a 200 is an error, in the forms that are not the protocol's own."""
    if body.get("error") or body.get("object") == "error" or part(body, "base_resp", "status_code"):
        return True
    if any(key in body for key in ("choices", "usage", "content", "output", "candidates", "response")):
        return False
    name = next(iter(body)) if len(body) == 1 else ""
    return name.endswith("Exception") or any(_said(body.get(key)) for key in _MESSAGES[:7])


def _error_of(body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The part of a body that tells of the error, and its name where that names the error."""
    if len(body) == 1:
        name, only = next(iter(body.items()))
        if name.endswith("Exception") and isinstance(only, dict):  # an AWS event stream
            return name, only
    for key in ("error", "errors", "base_resp", "detail"):
        error = body.get(key)
        if isinstance(error, list) and error and key == "errors":
            error = error[0]
        if isinstance(error, dict) and error:
            return "", error
        if words(error) and key != "detail":
            return "", {"message": error} | {name: value for name, value in body.items() if name != key}
    return "", body


def _code_of(error: Mapping[str, Any]) -> str | None:
    """The finest machine-readable word: a number says no more than the status does where a detail has a name."""
    codes = [found for key in _CODES if (found := _label(error.get(key)))]
    inner = (part(error, name, "code") for name in ("innererror", "inner_error"))
    details = error.get("details")
    named = [code for code in codes if not code.lstrip("-").isdigit()]
    for detail in details if isinstance(details, list) and not named else []:  # google.rpc.Status
        named += [words(part(detail, "violations", 0, "quotaId")), words(part(detail, "reason"))]
    return next((code for code in [*named, *codes, *map(_label, inner)] if code), None)


def _message(error: Mapping[str, Any]) -> str:
    message = next((said for key in _MESSAGES if (said := _said(error.get(key)))), "")
    for path in _REASONS:
        raw = part(error, *path)
        if isinstance(raw, str) and raw and raw not in message:
            return f"{message}: {raw}" if message else raw
    return message


def _said(value: Any) -> str:
    """Words, or what FastAPI says of each wrong field."""
    if isinstance(value, dict):
        value = value.get("detail") or value.get("message")
    if isinstance(value, list):
        return "; ".join(filter(None, (words(part(item, "msg")) or words(item) for item in value[:5])))
    return words(value) if words(value).strip() else ""


def _label(value: Any) -> str | None:
    """A code or type as text; llama.cpp and OpenRouter send numbers."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    return whole_text(str(value)[:200]) if isinstance(value, str | int) else None


def _unwrapped(found: Words, depth: int) -> Words:
    """The inner error where the message holds one, with what only the outer one knew."""
    start = found.message.find("{")
    if start < 0 or depth >= _DEPTH:
        return found
    try:
        inner, end = load_first(found.message, start)
    except ValueError:
        code = re.search(_QUOTED_FIELD.format("code"), found.message)
        type_ = re.search(_QUOTED_FIELD.format("type"), found.message)
        return replace(
            found,
            code=code[1] if code else found.code,
            type=type_[1] if type_ else found.type,
        )
    deeper = read_error(inner, depth + 1)
    if not isinstance(inner, dict) or not deeper.message:
        return found
    return Words(
        message=found.message[:start] + deeper.message + found.message[end:],
        code=deeper.code or found.code,
        type=deeper.type or found.type,
        request_id=deeper.request_id or found.request_id,
        inner=[inner, deeper.inner],
    )


_ASKED = re.compile(r"\blimit:?\s*([0-9][0-9,_]*)[^0-9].{0,40}?\brequested:?\s*([0-9][0-9,_]*)", re.IGNORECASE)


def larger_than_limit(message: str) -> bool:
    """One request asks for more than the whole limit of its minute, by the figures that the answer gives."""
    match = _ASKED.search(re.sub(r"used:?\s*[0-9,_]+", "", message, flags=re.IGNORECASE))
    if match is None:
        return False
    limit, asked = (int(re.sub("[,_]", "", figure)) for figure in match.groups())
    return asked > limit


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
        body = _body_of(text)
        said = read_error(body) if body is not None else Words(plain(text))
        message = (said.message if said.message.strip() else plain(text)) or f"HTTP status {status} without a body"
        if 300 <= status < 400:
            target = headers.get("location", "").partition("?")[0]
            message = f"HTTP status {status} redirects to {target!r}; redirects are not followed"
        if larger_than_limit(message) and status in {413, 429}:
            said = replace(said, code=LARGER_THAN_LIMIT)
        limited = status in _LIMITING
        failure = self._failure(message, said, ended="none", body=body, headers=headers, limited=limited)
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
        limited: bool = False,
    ) -> Failure:
        headers = headers or {}
        safe = plain(self.redactor.text(whole_text(message))) or "the service gave no readable words"
        shown = self._headers(headers)
        type_ = said.type or shown.get("x-amzn-errortype", "").partition(":")[0]
        return Failure(
            source="model",
            dependency=self.dependency,
            message=safe,
            code=self.redactor.text(said.code) if said.code else None,
            type=self.redactor.text(type_) if type_ else None,
            body=storable(body, self.redactor),
            headers=shown,
            protocol=self.protocol,
            ended=ended,
            window_used=_stated_window(body) or _figures_in(safe),
            retry_after_s=retry_after_s(shown, [body, said.inner], safe, self.now(), limited=limited),
            request_id=request_id(headers) or said.request_id,
        )


def _body_of(text: str) -> Any:
    """The JSON of an error's body, also of one that came as an event; None where there is none."""
    candidates = [text, *(line.partition(":")[2] for line in text.splitlines()[:20] if line.startswith("data:"))]
    for candidate in candidates:
        try:
            return load(candidate)
        except ValueError:
            continue
    return None


def request_id(headers: Mapping[str, str]) -> str:
    """The service's name of the request, from its headers."""
    return next((headers[name][:200] for name in ("request-id", "x-request-id") if headers.get(name)), "")


def _stated_window(body: Any) -> float | None:
    """llama.cpp's server says how large the prompt and the window are."""
    error = part(body, "error")
    prompt, window = count(part(error, "n_prompt_tokens")), count(part(error, "n_ctx"))
    return prompt / window if prompt and window else None


_FIGURE = re.compile(r"(?<![\w.-])[0-9][0-9,_]{3,12}(?![\w.]*[a-z])", re.IGNORECASE)
_OF_TOKENS = re.compile(r"\btokens?\b|\bcontext\b", re.IGNORECASE)
_OF_OUTPUT = re.compile(r"\bmax_tokens\b|\b(output|completion)[ _]tokens?\b", re.IGNORECASE)


def _figures_in(message: str) -> float | None:
    """Size / window by the figures of a sentence such as "208310 tokens > 200000 maximum": the service has counted.

    The largest figure is the size and the next one the window, wherever they stand. Figures of the answer's own
    length say nothing of the window.
    """
    if not _OF_TOKENS.search(message) or ("context" not in message.lower() and _OF_OUTPUT.search(message)):
        return None
    figures = {int(re.sub("[,_]", "", figure)) for figure in _FIGURE.findall(message)}
    counted = sorted(figure for figure in figures if 1000 <= figure < 10**9)
    return counted[-1] / counted[-2] if len(counted) > 1 else None
