"""Drafts: from what a person asked for to a checked TaskDraft or change, or the one thing that is wrong with it."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.domain.ports import Refused
from harnessd.domain.task import TaskDraft

PROMPT_MAX = 1024 * 1024
TEXT_MAX = 200
PRIORITY_MAX = 1000
BUDGETS = ("tool_calls", "turns", "tokens", "cost_usd", "working_time", "wall_time", "age", "silence")
KINDS = (
    "assign", "retry", "fallback", "breaker", "limits", "budget", "loop", "tools", "compaction", "escalation",
    "notify", "retention", "chaos",
)  # fmt: skip
FIELDS = (
    "prompt", "agent", "workspace", "priority", "labels", "key", "not_before", "after", "model", "budget", "policies",
    "pin_policies", "dry_run", "feature",
)  # fmt: skip
CHANGES = ("priority", "labels", "model", "budget", "policies", "pin_policies", "keep", "say", "now", "text")
_KEEP_MAX_S = 3650 * 86400.0  # as `retention` bounds its own
_TIMES = frozenset({"working_time", "wall_time", "age", "silence"})
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kM]?)")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,62}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Known:
    """The names and folders that drafts are checked against.

    `agents` is name -> model alias, `features` name -> agent; `policies` is kind -> names. `protected` are
    files and folders that no workspace may hold or lie in: what an agent could change there would change harnessd
    itself.
    """

    agents: Mapping[str, str]
    models: Iterable[str]
    default_agent: str | None = None
    policies: Mapping[str, Iterable[str]] = field(default_factory=dict)
    roots: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)


class _Wrong(Exception):  # noqa: N818 - a way out of a check
    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.refused = Refused(code, message, hint)


def draft_from(body: Mapping[str, Any], known: Known) -> TaskDraft | Refused:
    """The draft behind a submit's body. Looks at the workspace's folder, changes nothing."""
    try:
        return _draft(body, known)
    except _Wrong as wrong:
        return wrong.refused


def read_changes(body: Mapping[str, Any], draft: TaskDraft, limits: Mapping[str, Any]) -> dict[str, Any] | Refused:
    """The changes behind a `set`, `resume` or `retry`; `+60` counts from the limit of today.

    `limits` are the effective ones, in base units. Names of models and policies are not judged here.
    """
    try:
        _only(body, CHANGES)
        changes: dict[str, Any] = {}
        if body.get("budget"):
            today = {**limits, **draft.budget}
            changes["budget"] = {**draft.budget, **_budget(body["budget"], today)}
        if body.get("labels"):
            changes["labels"] = {**draft.labels, **_labels(body["labels"])}
        if body.get("policies"):
            changes["policies"] = {**draft.policies, **_policies(body["policies"])}
        if body.get("model") is not None:
            changes["model"] = _word(body, "model")
        if body.get("priority") is not None:
            changes["priority"] = _priority(body["priority"])
        if body.get("pin_policies") is not None:
            changes["pinned_revision"] = 0 if body["pin_policies"] else None
        if "keep" in body:
            changes["keep_s"] = _keep(body["keep"])
    except _Wrong as wrong:
        return wrong.refused
    return changes


def _keep(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _KEEP_MAX_S:
        hint = "Send seconds, at most 3650 days; 0 or null: as policy says."
        raise _Wrong("invalid", f"keep: {str(value)[:40]} is not a time that a task is kept.", hint)
    return float(value) or None


def read_amount(name: str, value: Any) -> float:
    """A limit as people write it: `90`, `2M`, `5.00`, `1h30m`, or a number in base units.

    Raises ValueError with the sentence that says what to write.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(_wanted(name, value))  # noqa: TRY004 - a person's input, not a caller's mistake
    if not isinstance(value, str):
        amount = float(value)
    elif name in _TIMES:
        if not _DURATION.fullmatch(value):
            raise ValueError(_wanted(name, value))
        amount = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        found = _COUNT.fullmatch(value.removeprefix("$") if name == "cost_usd" else value)
        if not found:
            raise ValueError(_wanted(name, value))
        amount = float(found[1]) * _SCALES[found[2]]
    whole = name not in _TIMES and name != "cost_usd"
    if not math.isfinite(amount) or amount < 0 or (whole and amount != int(amount)):
        raise ValueError(_wanted(name, value))
    return amount


def write_amount(name: str, amount: float) -> str:
    """A limit as `read_amount` takes it: whole units (of money: cents), rounded up, never nothing."""
    if name == "cost_usd":
        return f"{max(1, math.ceil(round(amount * 100, 6))) / 100:.2f}"
    if name not in _TIMES:
        return str(max(1, math.ceil(amount)))
    minutes = math.ceil(amount / 60)
    return f"{minutes}m" if amount >= 60 else f"{max(1, math.ceil(amount))}s"


def _draft(body: Mapping[str, Any], known: Known) -> TaskDraft:
    _only(body, FIELDS)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise _Wrong("invalid", "There is no prompt.", 'Say what shall be done: harnessctl submit "..."')
    if "\x00" in prompt:
        raise _Wrong("invalid", "The prompt holds a NUL character.", "Take it out: a prompt is text.")
    if len(prompt) > PROMPT_MAX:
        message = f"The prompt is longer than {PROMPT_MAX} characters."
        raise _Wrong("invalid", message, "Put large input into a file of the workspace.")
    agent = body.get("agent") or known.default_agent
    if not agent:
        raise _Wrong("invalid", "No agent is named.", f"Choose one with --agent: {_names(known.agents)}.")
    _known("agent", agent, known.agents)
    if body.get("model") is not None:
        _known("model", _word(body, "model"), known.models)
    policies = _policies(body.get("policies") or {})
    for kind, name in policies.items():
        if kind in known.policies:
            _known(f"{kind} policy", name, known.policies[kind])
    return TaskDraft(
        prompt=prompt,
        agent=str(agent),
        workspace=_workspace(body.get("workspace"), known),
        priority=_priority(body.get("priority") or 0),
        labels=_labels(body.get("labels") or {}),
        key=_key(body.get("key")),
        not_before=_instant(body.get("not_before")),
        after=_ids(body.get("after") or []),
        model=body.get("model"),
        feature=_feature(body, str(agent), known),
        budget=_budget(body.get("budget") or {}, {}),
        policies=policies,
    )


def _feature(body: Mapping[str, Any], agent: str, known: Known) -> str | None:
    if body.get("feature") is None:
        return None
    name = _word(body, "feature").removeprefix("feature/")
    _known("feature", name, known.features)
    if known.features[name] != agent:
        mine = [feature for feature, whose in known.features.items() if whose == agent]
        hint = f"Agent {agent} has: {_names(mine)}."
        raise _Wrong("invalid", f"The feature {name} belongs to agent {known.features[name]}, not to {agent}.", hint)
    return name


def _only(body: Mapping[str, Any], fields: Iterable[str]) -> None:
    for name in body:
        if name not in fields:
            raise _Wrong("invalid", f'There is no field "{name}".', _meant(name, fields))


def _known(what: str, name: Any, names: Iterable[str]) -> None:
    names = sorted(names)
    if name not in names:
        hint = _meant(str(name), names) or f"There are: {_names(names)}."
        raise _Wrong("not_found", f'There is no {what} "{name}".', hint)


def _meant(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"Did you mean {close[0]}?" if close else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def workspace_refused(workspace: str, known: Known) -> Refused | None:
    """Why a task may not work in its folder now: what was right at submit may be gone, or a link to elsewhere."""
    try:
        real = _workspace(workspace, known)
    except _Wrong as wrong:
        return wrong.refused
    if real != workspace:
        return Refused("refused", f"The workspace {workspace} leads to {real} now.", "Put the folder back.")
    return None


def _workspace(value: Any, known: Known) -> str:
    if not isinstance(value, str) or not value:
        raise _Wrong("invalid", "No workspace is named.", "Name a folder with --workspace.")
    given = Path(value)
    if "\x00" in value or not given.is_absolute():
        raise _Wrong("invalid", f"The workspace {value!r} is not an absolute path.", "Name the whole path.")
    try:
        folder = given.resolve(strict=True)
    except (OSError, RuntimeError):
        raise _Wrong("not_found", f"The workspace {value} is not there.", "Make the folder first.") from None
    if not folder.is_dir():
        raise _Wrong("invalid", f"The workspace {value} is not a folder.", "Name a folder with --workspace.")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise _Wrong("refused", f"The daemon may not read and write {value}.", "Give its user access to the folder.")
    roots = [root.expanduser().resolve() for root in known.roots]
    if roots and not any(folder.is_relative_to(root) for root in roots):
        allowed = ", ".join(str(root) for root in known.roots)
        raise _Wrong("refused", f"The workspace {value} lies outside workspaces.roots.", f"Allowed below: {allowed}.")
    for place in known.protected:
        real = place.resolve()
        if real.is_relative_to(folder) or (real.is_dir() and folder.is_relative_to(real)):
            message = f"The workspace {value} holds harnessd's own {place.name}, or lies in it."
            raise _Wrong("refused", message, "Choose a folder apart from harness.yaml, policies and state.")
    return str(folder)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY_MAX:
        message = f"The priority {value!r} is not a whole number."
        hint = f"Write a number from -{PRIORITY_MAX} to {PRIORITY_MAX}; the highest runs first."
        raise _Wrong("invalid", message, hint)
    return value


def _labels(value: Any) -> dict[str, str]:
    hint = "Write --label team=web: letters, digits and _ . / - in the name."
    if not isinstance(value, Mapping):
        raise _Wrong("invalid", "labels is not an object of texts.", hint)
    for name, text in value.items():
        if not isinstance(text, str) or not _LABEL.fullmatch(name) or len(text) > TEXT_MAX or _CONTROL.search(text):
            raise _Wrong("invalid", f"The label {name!r} cannot be used.", f"{hint} At most {TEXT_MAX} characters.")
    return dict(value)


def _key(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value or len(value) > TEXT_MAX or _CONTROL.search(value):
        hint = f"Use up to {TEXT_MAX} printable characters."
        raise _Wrong("invalid", "The key cannot be used.", hint)
    return value


def _instant(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _Wrong("invalid", "not_before is not a time.", "Give seconds since the Unix epoch.")
    return float(value)


def _ids(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Wrong("invalid", "after is not a list of task ids.", "Write --after TASK.")
    return tuple(value)


def _word(body: Mapping[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str) or not value or _CONTROL.search(value):
        raise _Wrong("invalid", f"{name} is not a name.", f"Write --{name} NAME.")
    return value


def _budget(value: Any, today: Mapping[str, Any]) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise _Wrong("invalid", "budget is not an object.", "Write --budget tool_calls=150.")
    budget: dict[str, float] = {}
    for name, wanted in value.items():
        if name not in BUDGETS:
            hint = _meant(name, BUDGETS) or f"There are: {', '.join(BUDGETS)}."
            raise _Wrong("invalid", f'There is no budget "{name}".', hint)
        more = isinstance(wanted, str) and wanted.startswith("+")
        try:
            amount = read_amount(name, wanted[1:] if more else wanted)
        except ValueError as fault:
            raise _Wrong("invalid", str(fault), f"Write --budget {name}={_EXAMPLES[name]}.") from None
        if more and today.get(name) is None:
            raise _Wrong("invalid", f"{name} has no limit to add to.", f"Write --budget {name}={_EXAMPLES[name]}.")
        budget[name] = amount + (float(today[name]) if more else 0.0)
    return budget


def _policies(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value.values()):
        raise _Wrong("invalid", "policies is not an object of names.", "Write --policy retry=strict.")
    for kind in value:
        if kind not in KINDS:
            hint = _meant(kind, KINDS) or f"There are: {', '.join(KINDS)}."
            raise _Wrong("invalid", f'There is no policy kind "{kind}".', hint)
    return dict(value)


_EXAMPLES = {
    "tool_calls": "150",
    "turns": "200",
    "tokens": "2M",
    "cost_usd": "5.00",
    "working_time": "1h",
    "wall_time": "5h",
    "age": "36h",
    "silence": "20m",
}


def _wanted(name: str, value: Any) -> str:
    kind = "a duration" if name in _TIMES else "an amount in USD" if name == "cost_usd" else "a count"
    return f"{name}: {value!r} is not {kind}."
