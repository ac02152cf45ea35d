"""Routes of the control API: a table that the router, the OpenAPI document and its test all read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; `many` may stand several times."""

    name: str
    about: str
    kind: str = "string"
    many: bool = False


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One method of one path. `body` is a JSON Schema of the request; `answer` names a schema of the answer."""

    method: str
    path: str
    handler: str  # the method's name in `Handlers`
    about: str
    answer: str = "Object"
    query: tuple[Parameter, ...] = ()
    body: Mapping[str, Any] | None = None
    errors: tuple[int, ...] = ()
    created: bool = field(default=False)


_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_AMOUNTS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
_DRY = Parameter("dry_run", "Say what would happen; change nothing.", "boolean")

_CHANGES: Mapping[str, Any] = {
    "budget": _AMOUNTS | {"description": "Budget -> new limit, or `+60` on top of the present one."},
    "policies": _TEXTS | {"description": "Kind -> policy name."},
    "model": {"type": "string"},
    "priority": {"type": "integer"},
    "labels": _TEXTS,
    "keep": {"type": ["number", "null"], "description": "set: seconds that it is kept after its end."},
    "pin_policies": {"type": "boolean", "description": "Stay at the revision in force; false: follow again."},
    "say": {"type": "string", "description": "resume, retry: a word to the agent."},
    "text": {"type": "string", "description": "send: the word."},
    "now": {"type": "boolean", "description": "pause: cancel the call under way."},
}
_SUBMIT: Mapping[str, Any] = {
    "type": "object",
    "required": ["prompt", "workspace"],
    "additionalProperties": False,
    "properties": {
        "prompt": {"type": "string"},
        "workspace": {"type": "string", "description": "Absolute path of a folder."},
        "agent": {"type": "string"},
        "model": {"type": "string"},
        "feature": {"type": "string", "description": "The agent's feature to begin with."},
        "priority": {"type": "integer"},
        "labels": _TEXTS,
        "key": {"type": "string", "description": "Same key and body: the same task."},
        "not_before": {"type": "number", "description": "Seconds since the Unix epoch."},
        "after": {"type": "array", "items": {"type": "string"}},
        "budget": _AMOUNTS,
        "policies": _TEXTS,
        "pin_policies": {"type": "boolean"},
    },
}
_LIST = (
    Parameter("state", "Task state.", many=True),
    Parameter("reason", "Stop reason.", many=True),
    Parameter("class", "Error class."),
    Parameter("agent", "Agent name."),
    Parameter("label", "k=v.", many=True),
    Parameter("policy", "KIND=NAME that is in force for the task.", many=True),
    Parameter("id", "Ids or prefixes; only these.", many=True),
    Parameter("since", "Seconds since the Unix epoch.", "number"),
    Parameter("until", "Seconds since the Unix epoch.", "number"),
    Parameter("limit", "At most so many; 1000 if not said.", "integer"),
)
_EVENTS = (
    Parameter("task", "Only this task's."),
    Parameter("after", "Only above this sequence number; Last-Event-ID works too.", "integer"),
    Parameter("follow", "Go on with what comes.", "boolean"),
    Parameter("until_end", "With task and follow: end with the task, or when it waits for a person.", "boolean"),
    Parameter("heartbeat", "Seconds between comments while nothing happens, 1 to 60.", "number"),
)
_INBOX = (
    Parameter("task", "Only this task's."),
    Parameter("agent", "Agent name."),
    Parameter("label", "k=v.", many=True),
    Parameter("class", "Error class."),
    Parameter("kind", "approval, outcome or question."),
)
_ANSWER: Mapping[str, Any] = {
    "type": "object",
    "required": ["choice"],
    "additionalProperties": False,
    "properties": {"choice": {"type": "string"}, "say": {"type": "string"}},
}
_VERB: Mapping[str, Any] = {"type": "object", "additionalProperties": False, "properties": _CHANGES}

_RELOAD: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"yes": {"type": "boolean"}, "expect": {"type": "string"}, "note": {"type": "string"}},
}
_REVERT: Mapping[str, Any] = {
    "type": "object",
    "required": ["revision"],
    "additionalProperties": False,
    "properties": {"revision": {"type": ["integer", "string"]}, "note": {"type": "string"}},
}

_BREAKER: Mapping[str, Any] = {
    "type": "object",
    "required": ["do"],
    "additionalProperties": False,
    "properties": {
        "do": {"enum": ["trip", "reset"]},
        "for": {"type": "number", "description": "trip: seconds, an hour if not said."},
        "note": {"type": "string"},
    },
}

_NAMED = {"type": "array", "items": {"type": "string"}}
_ROLLBACK: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "to": {"type": "string", "description": "A node, or last-good."},
        "steps": {"type": "integer", "description": "So many turns."},
        "undo": {"type": "boolean", "description": "Take the last rollback back."},
        "keep": _NAMED | {"description": "Paths that stay as they are."},
        "overwrite": _NAMED | {"description": "Paths that go back whoever changed them."},
        "undo_effects": _NAMED | {"description": "Effects whose declared undo is called."},
        "prompt": {"type": "string", "description": "A word to the agent; it goes on at once."},
        "model": {"type": "string", "description": "Who goes on."},
    },
}
_BACKUP: Mapping[str, Any] = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {"file": {"type": "string", "description": "Absolute path of the backup."}},
}
_DRAIN: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "node": {"type": "string", "description": "A daemon's name; this one if not said."},
        "timeout": {"type": "number", "description": "Seconds; `drain` of harness.yaml if not said."},
        "cancel": {"type": "boolean", "description": "Take work again."},
    },
}
_IMPORT = (
    _DRY,
    Parameter("workspace", "Absolute path of a folder; the session's own if not said."),
    Parameter("agent", "Who goes on; the session's own agent if not said."),
)
_DIFF = (
    Parameter("from", "A node."),
    Parameter("to", "A node; the workspace as it is now if not said."),
)

ROUTES: tuple[RouteRow, ...] = (
    RouteRow("GET", "/v1/status", "status", "The daemon, its queue, what runs, and what ended in the last day."),
    RouteRow("GET", "/v1/openapi.json", "openapi", "This document."),
    RouteRow("GET", "/v1/top", "top", "What has not ended: step, use, what it waits for.", query=_LIST, errors=(422,)),
    RouteRow("GET", "/metrics", "metrics", "Figures in Prometheus' text form.", "Text", errors=(409,)),
    RouteRow("GET", "/v1/tasks", "list_tasks", "Tasks, newest first.", "Tasks", _LIST, errors=(422,)),
    RouteRow(
        "POST",
        "/v1/tasks",
        "submit",
        "Queue a task. 201: new; 200: the same key and body were there before.",
        "Task",
        (_DRY,),
        _SUBMIT,
        (400, 404, 409, 413, 415, 422),
        created=True,
    ),
    RouteRow("GET", "/v1/tasks/{task}", "task", "One task, by id or unique prefix.", "Task", errors=(404, 409)),
    RouteRow(
        "POST",
        "/v1/tasks/{task}/rollback",
        "rollback",
        "Take a task back to a node, files and all; dry_run tells what it would do.",
        query=(_DRY,),
        body=_ROLLBACK,
        errors=(400, 404, 409, 413, 415, 422),
    ),
    RouteRow("GET", "/v1/tasks/{task}/checkpoints", "checkpoints", "Checkpoints of its workspace.", errors=(404, 409)),
    RouteRow("GET", "/v1/tasks/{task}/diff", "diff", "What differs between nodes.", query=_DIFF, errors=(404, 409)),
    RouteRow(
        "POST",
        "/v1/tasks/{task}/{verb}",
        "verb",
        "cancel, pause, resume, retry, send or set.",
        "Task",
        (_DRY,),
        _VERB,
        (400, 404, 409, 413, 415, 422),
    ),
    RouteRow(
        "GET", "/v1/tasks/{task}/export", "export", "A whole session as JSON lines.", "JsonLines", errors=(404, 409)
    ),
    RouteRow(
        "POST",
        "/v1/import",
        "bring_in",
        "JSON lines of an export become a new task, paused; dry_run checks them.",
        "Task",
        _IMPORT,
        {"description": "The lines of an exported session, sent as application/json."},
        (400, 404, 409, 413, 415, 422),
        created=True,
    ),
    RouteRow("GET", "/v1/tasks/{task}/nodes", "nodes", "The session tree, all branches.", "Nodes", errors=(404, 409)),
    RouteRow("GET", "/v1/tasks/{task}/nodes/{node}", "node", "One node with its payload.", errors=(404, 409)),
    RouteRow("GET", "/v1/tasks/{task}/context", "context", "What fills the window of a task.", errors=(404, 409)),
    RouteRow("GET", "/v1/tasks/{task}/decisions", "decisions", "All decisions, in order.", errors=(404, 409)),
    RouteRow("GET", "/v1/tasks/{task}/effects", "effects", "The journal of effects, in order.", errors=(404, 409)),
    RouteRow("GET", "/v1/inbox", "inbox", "What waits for a person, oldest first.", query=_INBOX, errors=(422,)),
    RouteRow(
        "POST",
        "/v1/inbox/{question:path}",
        "answer",
        "A person's answer.",
        "Task",
        (_DRY,),
        _ANSWER,
        (400, 404, 409, 413, 415, 422),
    ),
    RouteRow("GET", "/v1/breakers", "breakers", "All breakers.", errors=(409,)),
    RouteRow(
        "POST",
        "/v1/breakers/{name:path}",
        "change_breaker",
        "Trip or reset a breaker by hand.",
        body=_BREAKER,
        errors=(400, 404, 409, 413, 415, 422),
    ),
    RouteRow("GET", "/v1/models", "models", "All models and what is measured of them.", errors=(409,)),
    RouteRow("POST", "/v1/models/{alias}/check", "check_model", "One cheap real call.", errors=(404, 409, 415)),
    RouteRow("GET", "/v1/tools", "tools", "All tools.", errors=(409,)),
    RouteRow("POST", "/v1/tools/{tool}/check", "check_tool", "Whether it can be called now.", errors=(404, 409, 415)),
    RouteRow("GET", "/v1/policies", "policies", "What is in force, what is held, what was refused."),
    RouteRow("GET", "/v1/policies/revisions", "revisions", "All revisions, newest first."),
    RouteRow("GET", "/v1/policies/revisions/{number}", "revision", "One revision and its texts.", errors=(404, 422)),
    RouteRow("GET", "/v1/policies/standing", "standing", "The running tasks and what they have used."),
    RouteRow(
        "POST",
        "/v1/policies/reload",
        "reload_policies",
        "Read the files now.",
        body=_RELOAD,
        errors=(400, 409, 413, 415, 422),
    ),
    RouteRow(
        "POST",
        "/v1/policies/revert",
        "revert_policies",
        "Put a kept revision in force and hold it.",
        body=_REVERT,
        errors=(400, 404, 409, 413, 415, 422),
    ),
    RouteRow(
        "POST",
        "/v1/notify/{channel}/test",
        "test_channel",
        "Send one message to a channel of notify, and give what it answered.",
        errors=(404, 409),
    ),
    RouteRow(
        "POST",
        "/v1/backup",
        "back_up",
        "A whole copy of what the daemon keeps, in one file: complete or absent.",
        body=_BACKUP,
        errors=(400, 403, 404, 409, 413, 415, 422),
    ),
    RouteRow(
        "POST",
        "/v1/gc",
        "collect",
        "Let go what policy keeps no longer; dry_run says what that would be.",
        query=(_DRY,),
        body={"type": "object", "additionalProperties": False, "properties": {}},
        errors=(400, 409, 413, 415, 422),
    ),
    RouteRow(
        "POST",
        "/v1/drain",
        "drain",
        "Take no new work and become empty; or, with cancel, take work again. Answers at once.",
        body=_DRAIN,
        errors=(400, 404, 409, 413, 415, 422),
    ),
    RouteRow("GET", "/v1/drain", "drain_state", "How far the drain is: what runs, what was cut.", errors=(409,)),
    RouteRow("GET", "/v1/nodes", "store_nodes", "The daemons that share this store."),
    RouteRow("GET", "/v1/doctor", "doctor", "What the daemon finds when it looks at itself.", errors=(409,)),
    RouteRow(
        "GET",
        "/v1/events",
        "events",
        "Events as server-sent events; id = sequence number.",
        "EventStream",
        _EVENTS,
        errors=(404, 422),
    ),
)
