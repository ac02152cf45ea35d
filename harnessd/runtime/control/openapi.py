"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from harnessd import __version__
from harnessd.domain.task import StopReason, TaskState
from harnessd.runtime.control.routes import Parameter, RouteRow

_NULLABLE_TEXT = {"type": ["string", "null"]}
_NULLABLE_TIME = {"type": ["number", "null"]}
# Answers that are no single JSON document.
_MEDIA = {"EventStream": "text/event-stream", "Text": "text/plain", "JsonLines": "application/jsonl"}

SCHEMAS: dict[str, Any] = {
    "Object": {"type": "object"},
    "EventStream": {"type": "string"},
    "Text": {"type": "string"},
    "JsonLines": {"type": "string", "description": "One JSON object a line; the last holds the SHA-256 of the others."},
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "hint"],
                "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
            }
        },
    },
    "Task": {
        "type": "object",
        "required": ["task", "title", "agent", "workspace", "state", "reason", "class", "sentence", "cost_usd", "next"],
        "properties": {
            "task": {"type": "string"},
            "title": {"type": "string"},
            "agent": {"type": "string"},
            "workspace": {"type": "string"},
            "state": {"enum": [state.value for state in TaskState]},
            "reason": {"enum": [*(reason.value for reason in StopReason), None]},
            "class": _NULLABLE_TEXT,
            "sentence": {"type": "string"},
            "priority": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "submitted_at": {"type": "number"},
            "started_at": _NULLABLE_TIME,
            "ended_at": _NULLABLE_TIME,
            "until": _NULLABLE_TIME,
            "node": _NULLABLE_TEXT,
            "turns": {"type": "integer"},
            "tool_calls": {"type": "integer"},
            "tokens": {"type": "integer"},
            "cost_usd": {"type": "number"},
            "feature": _NULLABLE_TEXT,
            "degraded": {"type": "object", "additionalProperties": {"type": "string"}},
            "output": {
                "description": "The answer as a value, where the agent declares its form and the task completed."
            },
            "safe": {"type": "boolean", "description": "The output is the declared safe answer, not the model's."},
            "next": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        },
    },
    "Tasks": {
        "type": "object",
        "required": ["tasks"],
        "properties": {"tasks": {"type": "array", "items": {"$ref": "#/components/schemas/Task"}}},
    },
    "Nodes": {
        "type": "object",
        "required": ["task", "pointer", "nodes"],
        "properties": {
            "task": {"type": "string"},
            "pointer": _NULLABLE_TEXT,
            "nodes": {"type": "array", "items": {"type": "object", "required": ["node", "parent", "kind", "at"]}},
        },
    },
}


def document(routes: Sequence[RouteRow]) -> dict[str, Any]:
    """OpenAPI 3.1 of the control API."""
    paths: dict[str, dict[str, Any]] = {}
    for row in routes:
        paths.setdefault(template(row.path), {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "harnessd control API", "version": __version__},
        "servers": [{"url": "http://harnessd", "description": "over the daemon's Unix socket"}],
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def template(path: str) -> str:
    """The path as OpenAPI writes it: without the router's converters."""
    return re.sub(r":\w+\}", "}", path)


def _operation(row: RouteRow) -> dict[str, Any]:
    media = _MEDIA.get(row.answer, "application/json")
    good = {"description": row.about, "content": {media: {"schema": {"$ref": f"#/components/schemas/{row.answer}"}}}}
    answers = {"200": good} | ({"201": good} if row.created else {})
    for status in sorted({403, 500, *row.errors}):
        schema = {"$ref": "#/components/schemas/Error"}
        answers[str(status)] = {"description": "refused", "content": {"application/json": {"schema": schema}}}
    operation: dict[str, Any] = {
        "operationId": row.handler,
        "summary": row.about,
        "parameters": [*_path_parameters(template(row.path)), *(_query_parameter(one) for one in row.query)],
        "responses": answers,
    }
    if row.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": row.body}}}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameter(one: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": one.kind}
    if one.many:
        schema = {"type": "array", "items": schema}
    return {"name": one.name, "in": "query", "required": False, "description": one.about, "schema": schema}
