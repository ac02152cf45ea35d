"""What a request asks for: query parameters and choices, checked; a wrong one is named with what is possible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from starlette.datastructures import QueryParams

from harnessd.domain.failure import ErrorClass
from harnessd.domain.ports import TaskFilter
from harnessd.domain.record import Question
from harnessd.domain.task import StopReason, Task, TaskState
from harnessd.policy.assembly.kinds import TASK_KINDS
from harnessd.runtime.control.answers import Bad

_LIMIT_MAX = 10_000


class Query:
    """The query of a request."""

    def __init__(self, parameters: QueryParams) -> None:
        self._parameters = parameters

    def text(self, name: str) -> str | None:
        return self._parameters.get(name) or None

    def texts(self, name: str) -> list[str]:
        return [value for value in self._parameters.getlist(name) if value]

    def flag(self, name: str) -> bool:
        return self._parameters.get(name, "").lower() in ("1", "true", "yes")

    def number(self, name: str, otherwise: str | None = None) -> float | None:
        """A finite number of zero or more. Raises Bad for anything else."""
        value = self._parameters.get(name) or otherwise
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            raise Bad("invalid", f"{name}: {value!r} is not a number.", f"Write {name}=10.")
        return number

    def pairs(self, name: str) -> dict[str, str]:
        """All `k=v` under this name. Raises Bad where there is no `=`."""
        pairs: dict[str, str] = {}
        for value in self.texts(name):
            key, sign, text = value.partition("=")
            if not sign or not key:
                raise Bad("invalid", f"{name}: {value!r} is not a pair.", "Write it as NAME=VALUE.")
            pairs[key] = text
        return pairs


def task_filter(query: Query) -> TaskFilter:
    """The filter behind a list's query."""
    states = tuple(TaskState(word) for word in _words(query, "state", [state.value for state in TaskState]))
    return TaskFilter(
        states=states,
        reasons=tuple(_words(query, "reason", [reason.value for reason in StopReason])),
        error_class=error_class(query),
        agent=query.text("agent"),
        labels=query.pairs("label"),
        since=query.number("since"),
        until=query.number("until"),
        limit=min(_LIMIT_MAX, int(query.number("limit") or 1000)),
    )


def error_class(query: Query) -> str | None:
    """The error class of a filter; one that does not exist is a mistake, not a filter that nothing fits."""
    found = _words(query, "class", [one.value for one in ErrorClass])
    return found[0] if found else None


def policies(query: Query) -> dict[str, str]:
    """The `KIND=NAME` of a filter."""
    pairs = query.pairs("policy")
    for kind in pairs.keys() - set(TASK_KINDS):
        raise Bad("invalid", f'There is no kind of policy "{kind}".', f"There are: {', '.join(TASK_KINDS)}.")
    return pairs


def fits(task: Task, wanted: TaskFilter) -> bool:
    """For tasks named by id: state, reason, agent and labels as the store would filter them."""
    labels = task.draft.labels
    return (
        (not wanted.states or task.state in wanted.states)
        and (not wanted.reasons or (task.reason is not None and task.reason.value in wanted.reasons))
        and wanted.agent in (None, task.draft.agent)
        and wanted.error_class in (None, task.error_class)
        and all(labels.get(name) == value for name, value in wanted.labels.items())
    )


def fits_question(row: Mapping[str, Any], query: Query) -> bool:
    """The inbox's filters on one of its rows."""
    labels: Mapping[str, str] = row["labels"]
    return all(query.text(name) in (None, row[name]) for name in ("agent", "class", "kind")) and all(
        labels.get(name) == value for name, value in query.pairs("label").items()
    )


def choice(body: Mapping[str, Any], question: Question) -> tuple[str, str]:
    """The choice and the word of an answer."""
    chosen, say = body.get("choice"), body.get("say", "")
    if chosen not in question.choices:
        message = f"{question.id} cannot be answered with {chosen!r}."
        raise Bad("invalid", message, f"Choose one of: {', '.join(question.choices)}.")
    if not isinstance(say, str):
        raise Bad("invalid", "say is not a text.", 'Send {"say": "..."}.')
    return str(chosen), say


def _words(query: Query, name: str, possible: list[str]) -> list[str]:
    words = [word for value in query.texts(name) for word in value.split(",")]
    for word in words:
        if word not in possible:
            close = get_close_matches(word, possible, n=1)
            near = f"Did you mean {close[0]}? " if close else ""
            raise Bad("invalid", f'There is no {name} "{word}".', f"{near}There are: {', '.join(possible)}.")
    return words
