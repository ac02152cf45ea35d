"""Recorded answers: what a service once said, read from data through the decoders that read it live; nothing is sent.

A record is a map: `protocol`, `status`, `headers`, then `body` or `sse` or `transport_error`, and where it matters
`now`. `dependency`, `window` and `window_used` may say what the answer itself does not, and `facts` how an answer
ended of which the bytes are not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply
from harnessd.domain.wait_hints import moment_s
from harnessd.net import Redactor, TransportError
from harnessd.providers.answer import Reader, StreamError
from harnessd.providers.anthropic_stream import AnthropicReader
from harnessd.providers.evidence import Witness
from harnessd.providers.exchange import Ending, Seen, is_json, read_whole
from harnessd.providers.openai_chat_stream import OpenAIChatReader
from harnessd.providers.openai_responses_stream import OpenAIResponsesReader
from harnessd.providers.recorded.foreign import ForeignReader
from harnessd.providers.sse import SseError, SseParser

_READERS: Mapping[str, Callable[[str], Reader]] = {
    "anthropic": AnthropicReader,
    "openai-chat": OpenAIChatReader,
    "openai-responses": OpenAIResponsesReader,
}
# What HTTP clients of all languages say when there is no whole answer -> our word. The first that fits decides.
_TRANSPORT: tuple[tuple[str, str], ...] = (
    (r"name resolution|name or service|getaddrinfo|nodename|no such host|enotfound|eai_again|\bdns\b", "dns"),
    (r"certificate|cert_|unable to verify|self.signed", "tls"),
    (r"connect[ _]?time(d )?out|connecttimeout|connect etimedout|time(d )?out.{0,20}connect|dial.{0,40}i/o", "connect"),
    (r"time(d)?[ -]?out|etimedout|deadline exceeded|operation was aborted due to", "read"),
    (r"\b(ssl|tls)\b|handshake", "tls"),
    (r"refused|econnrefused", "refused"),
    (r"econnreset|\breset\b|broken pipe|epipe|econnaborted|connection abort", "reset"),
    (r"disconnect|closed|incomplete|\beof\b|goaway|premature|terminated|hang ?up|ended early", "closed"),
    (r"unreachable|no route|ehostunreach|enetunreach|connection ?error|connecterror", "unreachable"),
)
# What `facts` may say: names of `Failure`, and the types of their values.
FACTS: Mapping[str, tuple[type, ...]] = {
    "message": (str,),
    "code": (str,),
    "type": (str,),
    "transport": (str,),
    "ended": (str,),
    "finish": (str,),
    "call_cut": (bool,),
    "window_used": (float, int),
    "retry_after_s": (float, int),
    "hint": (str,),
}
_OWN_WORDS = frozenset(
    {
        *("connect_timeout", "read_timeout", "write_timeout", "pool_timeout", "reset", "closed", "dns", "tls"),
        *("refused", "unreachable", "protocol"),
    }
)
_TIMEOUTS = {"connect": "connect_timeout", "read": "read_timeout"}


class RecordError(Exception):
    """A record that cannot be read. `key` is the field at fault, empty for the record as a whole."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(f"{key}: {sentence}" if key else sentence)
        self.key = key
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer as it was written down. `raw` is the body or the stream; `now` is seconds since the Unix epoch."""

    protocol: str
    status: int | None
    headers: Mapping[str, str]
    raw: bytes
    streamed: bool
    transport: TransportError | None
    now: float
    dependency: str = "model/recorded"
    window: int = 0
    window_used: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_record(document: Any, clock_s: float) -> RecordedAnswer:
    """The answer in a document; `clock_s` is the time where nothing says another. Raises RecordError."""
    if not isinstance(document, Mapping):
        raise RecordError("", "the file is no map of protocol, status, headers and body, sse or transport_error")
    protocol = document.get("protocol")
    if not isinstance(protocol, str) or not protocol.strip():
        raise RecordError("protocol", "the name of a protocol is missing")
    headers = _headers(document.get("headers"))
    raw, streamed = _raw(document, headers)
    transport = _transport(document.get("transport_error"))
    status = _status(document, streamed=streamed, broken=transport is not None)
    if transport and not status and not raw:
        status = None
    return RecordedAnswer(
        protocol=protocol.strip(),
        status=status,
        headers=headers,
        raw=raw,
        streamed=streamed,
        transport=transport,
        now=_now(document.get("now"), headers, clock_s),
        dependency=_dependency(document.get("dependency")),
        window=int(_number(document, "window") or 0),
        window_used=_number(document, "window_used"),
        facts=_facts(document.get("facts")),
    )


def outcome(record: RecordedAnswer) -> ModelReply | Failure:
    """The reply or the Failure that a call with this answer would have ended in."""
    reader = _READERS.get(record.protocol, ForeignReader)("recorded")
    witness = Witness(record.dependency, record.protocol, Redactor(()), record.window, lambda: record.now)
    seen = Seen(record.status, record.headers)
    ending = Ending(reader, witness, seen)
    try:
        _replay(record, reader, seen)
    except (TransportError, StreamError, ValueError, SseError) as error:
        found = ending.after(error)
    else:
        found = ending.conclusion()
    if isinstance(found, Failure) and found.window_used is None:
        found = replace(found, window_used=record.window_used)
    return _told(record, found) if record.facts else found


def _told(record: RecordedAnswer, found: ModelReply | Failure) -> Failure:
    """The outcome as `facts` tell of it: what they name counts, whatever the bytes that are left would say."""
    if not isinstance(found, Failure):
        found = Failure("model", record.dependency, "", status=record.status, protocol=record.protocol)
    facts = {name: value for name, value in record.facts.items() if name not in ("hint", "call_cut", "message")}
    hint = record.facts.get("hint")
    return replace(
        found,
        **facts,
        message=record.facts.get("message") or found.message,
        call_cut=bool(record.facts.get("call_cut", found.call_cut)),
        hint=ErrorClass(hint) if hint else found.hint,
    )


def _replay(record: RecordedAnswer, reader: Reader, seen: Seen) -> None:
    if seen.refused or record.status is None:
        seen.body += record.raw
    elif record.streamed:
        _replay_stream(record.raw, reader, seen)
    elif record.transport is None:
        seen.body += record.raw
        if not isinstance(reader, ForeignReader) or not reader.read_documents(record.raw):
            read_whole(reader, record.raw)
    if record.transport is not None:
        raise record.transport


def _replay_stream(raw: bytes, reader: Reader, seen: Seen) -> None:
    seen.streaming = True
    seen.body += raw
    if isinstance(reader, ForeignReader) and raw.lstrip().startswith(b"{") and reader.read_documents(raw):
        seen.events += 1
        return
    parser = SseParser()
    for event in (*parser.feed(raw), *parser.finish()):
        if not reader.settled and reader.read(event) is not None:
            seen.events += 1


# --- fields -----------------------------------------------------------------------------------------------------------


def _headers(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RecordError("headers", "headers are a map of names to values")
    for name, value in given.items():
        if isinstance(value, Mapping | list):
            raise RecordError(f"headers.{name}", "the value of a header is text")
    return {str(name).lower(): _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> str:
    """A header as it stood on the wire, where YAML read it as a number, a time or a truth."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def _raw(document: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """The bytes after the headers, and whether they are a stream of events."""
    body, sse = document.get("body"), document.get("sse")
    if body is not None and sse is not None:
        raise RecordError("sse", "an answer has either a body or sse")
    if sse is not None:
        if isinstance(sse, list) and all(isinstance(line, str) for line in sse):
            return ("\n".join(sse) + "\n").encode("utf-8", "replace"), True
        if isinstance(sse, str):
            return sse.encode("utf-8", "replace"), True
        raise RecordError("sse", "sse is a text, or a list of its lines")
    if body is None:
        return b"", False
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
    streamed = not is_json(headers) and not text.lstrip().startswith(("{", "[", '"'))
    return text.encode("utf-8", "replace"), streamed


def _transport(given: Any) -> TransportError | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise RecordError("transport_error", "transport_error is the client's words")
    own, colon, words = given.partition(": ")
    if colon and own in _OWN_WORDS:
        return TransportError(own, words.strip() or "the connection failed")
    word = next((word for pattern, word in _TRANSPORT if re.search(pattern, given, re.IGNORECASE)), "protocol")
    return TransportError(_TIMEOUTS.get(word, word), given.strip() or "the connection failed")


def _status(document: Mapping[str, Any], *, streamed: bool, broken: bool) -> int | None:
    given = document.get("status")
    if given is None:
        if streamed or "sse" in document:
            return 200
        if broken:
            return None
        raise RecordError("status", "the HTTP status is missing; only transport_error goes without one")
    number = int(given) if isinstance(given, str) and given.isdigit() else given
    if isinstance(number, bool) or not isinstance(number, int) or not (number == 0 or 100 <= number <= 999):
        raise RecordError("status", f"{given!r} is no HTTP status")
    return number or None


def _now(given: Any, headers: Mapping[str, str], clock_s: float) -> float:
    """The moment of the answer: as told, else the service's own `date` header, else the clock."""
    if given is None:
        dated = moment_s(headers.get("date", ""))
        return clock_s if dated is None else dated
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given / 1000 if given > 1e11 else float(given)
    moment = moment_s(given.isoformat() if isinstance(given, datetime | date) else str(given))
    if moment is None:
        raise RecordError("now", f"{given!r} is no time; write 2026-11-30T12:00:00Z or seconds since 1970")
    return moment


def _dependency(given: Any) -> str:
    if given is None:
        return "model/recorded"
    if not isinstance(given, str) or not given.startswith("model/"):
        raise RecordError("dependency", "a dependency is written as model/ALIAS")
    return given


def _facts(given: Any) -> dict[str, Any]:
    """Null says that there is no such fact, whatever the rest of the record looks like."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RecordError("facts", "facts are a map of names to values")
    for name, value in given.items():
        if name not in FACTS:
            raise RecordError("facts", f"there is no fact {name!r}; there are {', '.join(FACTS)}")
        if value is not None and not isinstance(value, FACTS[name]):
            raise RecordError("facts", f"the fact {name} cannot be {value!r}")
    if given.get("hint") is not None and given["hint"] not in set(ErrorClass):
        raise RecordError("facts", f"there is no class {given['hint']!r}")
    return dict(given)


def _number(document: Mapping[str, Any], key: str) -> float | None:
    given = document.get(key)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1e12:
        raise RecordError(key, f"{given!r} is no size")
    return float(given)
