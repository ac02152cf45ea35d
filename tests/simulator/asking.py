"""A client by hand for these tests: it sends what it is told, right or wrong, and shows what came back."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.simulated import SimulatedService

VERSION = {"anthropic-version": "2023-06-01"}


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers, and the body as JSON or as it came."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def message(self) -> str:
        """The words of an error."""
        return str(self.body["error"]["message"])

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of a stream, event by event; `[DONE]` left out."""
        lines = [line[6:] for line in str(self.body).splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def post(service: SimulatedService, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
    """One POST on a connection of its own. Raises what http.client raises."""
    parts = urlsplit(service.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        raw = answer.read()
        named = {key.lower(): value for key, value in answer.getheaders()}
        kind = named.get("content-type", "")
        whole = json.loads(raw) if "json" in kind else raw.decode("utf-8", "replace")
        return Reply(answer.status, named, whole)
    finally:
        connection.close()


def tools(*names: str) -> list[dict[str, Any]]:
    """Tools as the Messages API wants them."""
    return [{"name": name, "description": name, "input_schema": {"type": "object"}} for name in names]


def ask(service: SimulatedService, model: str, messages: Any, **more: Any) -> Reply:
    """One call of the Messages API."""
    headers = VERSION | more.pop("headers", {})
    body = {"model": model, "max_tokens": 2000, "messages": messages} | more
    return post(service, "/v1/messages", body, headers)


def functions(*names: str) -> list[dict[str, Any]]:
    """Tools as Chat Completions wants them."""
    parameters = {"type": "object", "properties": {}}
    return [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in names]


def chat(service: SimulatedService, model: str, messages: Any, **more: Any) -> Reply:
    """One call of Chat Completions."""
    headers = more.pop("headers", {})
    return post(service, "/v1/chat/completions", {"model": model, "messages": messages} | more, headers)


def user(text: str) -> dict[str, str]:
    """A user's message; the same in both protocols."""
    return {"role": "user", "content": text}
