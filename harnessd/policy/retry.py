"""Retry: what an error is, and how it is tried again: classification, waits, ladders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.domain.failure import ErrorClass, Failure, Owner, Source
from harnessd.policy.conditions import ALWAYS, NEVER, Conditions, Lookup, When
from harnessd.policy.language.facts import MODEL_CLASSES, TOOL_CLASSES
from harnessd.policy.language.figures import Count, Duration, Number, Ratio
from harnessd.policy.language.names import ANYTHING, Ladder, Name, Names
from harnessd.policy.language.shape import Entry, Policy, Shape
from harnessd.policy.language.source import Problem
from harnessd.policy.values import Word

DO = ("retry", "fallback", "park", "compact", "repair", "observe", "probe", "needs_human", "stop")
OWNERS = tuple(owner.value for owner in Owner)

_Retries = Annotated[int, Count(high="100")]
_Base = Annotated[float, Duration(high="10m")]
_Factor = Annotated[float, Number(low="1", high="10")]
_Cap = Annotated[float, Duration(high="1h")]
_Jitter = Annotated[float, Ratio()]
_SwitchAfter = Annotated[int, Count(low="1", high="100")]
_When = Annotated[When, Conditions(scope="retry")]


class ClassPolicy(Shape):
    """How one class is treated; what is not stated comes from the group."""

    do: Annotated[tuple[str, ...], Ladder(actions=DO)] = Field(
        description="The ladder: the first step that can act is taken."
    )
    owner: Annotated[str, Word(words=OWNERS)] = Field(description="Where the chain of the four lines starts.")
    retries: _Retries | None = Field(None, description="Tries after the first, for this class only.")
    base: _Base | None = Field(None, description="First wait, for this class only.")
    factor: _Factor | None = Field(None, description="Growth of the wait, for this class only.")
    cap: _Cap | None = Field(None, description="Longest wait, for this class only.")
    jitter: _Jitter | None = Field(None, description="Jitter, for this class only.")


class ModelClassPolicy(ClassPolicy):
    """How one class of a model service is treated."""

    switch_after: _SwitchAfter | None = Field(None, description="Tries on one link, for this class only.")


class ModelClasses(Shape):
    """The classes of a model service."""

    timeout: ModelClassPolicy = Field(description="No answer in time.")
    network: ModelClassPolicy = Field(description="No connection, or it broke before an answer.")
    rate_limited: ModelClassPolicy = Field(description="Too many requests or tokens in a minute.")
    overloaded: ModelClassPolicy = Field(description="The service is full (503, 529).")
    server_error: ModelClassPolicy = Field(description="The service failed (5xx).")
    stream_interrupted: ModelClassPolicy = Field(description="The answer was cut half-way.")
    quota_exhausted: ModelClassPolicy = Field(description="The account's money or quota is used up.")
    auth: ModelClassPolicy = Field(description="The key is missing, wrong or not allowed.")
    refused: ModelClassPolicy = Field(description="The content was refused.")
    context_overflow: ModelClassPolicy = Field(description="The request is larger than the window.")
    invalid_request: ModelClassPolicy = Field(description="The request itself is wrong.")
    malformed_output: ModelClassPolicy = Field(description="The answer cannot be read, or a tool call is cut.")


class ToolClasses(Shape):
    """The classes of a tool."""

    invalid_arguments: ClassPolicy = Field(description="The arguments do not fit the schema.")
    unknown_tool: ClassPolicy = Field(description="No such tool.")
    permission_denied: ClassPolicy = Field(description="Policy or the system refused it.")
    execution_failed: ClassPolicy = Field(description="It ran and failed.")
    timeout: ClassPolicy = Field(description="It did not end in time.")
    unavailable: ClassPolicy = Field(description="It could not be reached.")
    rate_limited: ClassPolicy = Field(description="Its service allows no more calls now.")
    outcome_unknown: ClassPolicy = Field(description="It began, and nobody knows how it ended.")


class Waits(Shape):
    """Tries and waits of a group: wait n = min(base x factor^n, cap), plus jitter."""

    retries: _Retries = Field(description="Tries after the first; 0 = none.")
    base: _Base = Field(description="The first wait.")
    factor: _Factor = Field(description="Each wait is this many times the one before.")
    cap: _Cap = Field(description="The longest wait; at least base.")
    jitter: _Jitter = Field(description="Added on top of a wait, never taken off.")
    server_wait_max: Annotated[float, Duration(high="24h")] = Field(
        description="A server's wait hint is a floor; a longer one goes to the next step of `do` at once."
    )


class Slow(Shape):
    """When a link counts as slow."""

    over: Annotated[float | None, Duration(low="1s", high="10m", none=True)] = Field(
        description="Median time to the first event above this = slow."
    )
    switch_after: _SwitchAfter = Field(description="Tries on a slow link.")


class ModelRetry(Waits):
    """Calls of models."""

    deadline: Annotated[float, Duration(low="10s", high="24h")] = Field(
        description="One call with all its tries, waits, links and compactions; parked time left out."
    )
    switch_after: _SwitchAfter = Field(description="Tries on one link while another link is left.")
    slow: Slow = Field(description="A slow link gets fewer tries.")
    hedge_after: Annotated[float | None, Duration(low="1s", high="5m", none=True)] = Field(
        description="Second request when the first has no event yet; only calls without tools."
    )
    classes: ModelClasses = Field(description="The ladder of each class.")


class ToolRetry(Waits):
    """Calls of tools. `retry` acts only if the effect is read_only or idempotent, or nothing began."""

    retries: Annotated[int, Count(high="20")] = Field(description="Tries after the first; 0 = none.")
    deadline: Annotated[float, Duration(low="1s", high="24h")] = Field(description="All tries of one tool call.")
    classes: ToolClasses = Field(description="The ladder of each class.")


class ParkPolicy(Shape):
    """Parked: the worker is free, no turn and no try is spent."""

    max: Annotated[float, Duration(low="1m", high="30d")] = Field(
        description="Longest park of one call; then the ladder goes on."
    )


class RetryRule(Entry):
    """One line of classification; the first that fits decides."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("model", "tool", "mcp"))] = Field(
        ANYTHING, alias="for", description="Whose failures: model/ALIAS, tool/NAME, mcp/SERVER."
    )
    when: _When = Field(ALWAYS, description="Facts of the failure.")
    unless: _When = Field(NEVER, description="Facts that speak against it.")
    class_: Annotated[str, Word(words=(*dict.fromkeys((*MODEL_CLASSES, *TOOL_CLASSES)), "ok"))] = Field(
        alias="class", description="What it is; `ok` = a complete answer."
    )


class RetryShape(Shape):
    """What an error is, and how it is tried again."""

    model: ModelRetry = Field(description="Calls of models.")
    tool: ToolRetry = Field(description="Calls of tools.")
    park: ParkPolicy = Field(description="Giving the worker back while a dependency is down.")
    rules: tuple[RetryRule, ...] = Field(description="Facts of a failure -> its class; the first that fits decides.")


RetryPolicy = Policy[RetryShape]


# --- classification ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Classified:
    """The class of a failure, None where it is none (`ok`). `known` is False where no rule fitted: never retried."""

    error_class: ErrorClass | None
    rule: RuleRef
    known: bool = True


def classify(policy: RetryPolicy, failure: Failure) -> Classified:
    """The class of a failure: operator's rules, what a tool knows of itself, shipped rules, the cautious default.

    A rule whose class does not exist for the failure's source does not fit.
    """
    lookup = failure_facts(failure)
    hint = failure.hint
    for index, rule in enumerate(policy.shape.rules):
        if hint is not None and policy.place("rules", index).builtin:
            break
        if _applies(rule, failure) and rule.fits((failure.dependency,), lookup):
            error_class = None if rule.class_ == "ok" else ErrorClass(rule.class_)
            return Classified(error_class, policy.ref("rules", index))
    if hint is not None:
        return Classified(hint, _tool_says(policy, failure))
    fallback = ErrorClass.SERVER_ERROR if failure.source == "model" else ErrorClass.EXECUTION_FAILED
    return Classified(fallback, policy.ref("rules", rule="no rule fits"), known=False)


def _tool_says(policy: RetryPolicy, failure: Failure) -> RuleRef:
    return RuleRef("retry", policy.name, f"{failure.dependency} knows it itself", "harnessd", 0, policy.revision)


def _applies(rule: RetryRule, failure: Failure) -> bool:
    known = MODEL_CLASSES if failure.source == "model" else TOOL_CLASSES
    return rule.class_ == "ok" or rule.class_ in known


def failure_facts(failure: Failure) -> Lookup:
    """The facts of a failure under the names that `retry.rules` use."""

    def look(name: str) -> Any:
        if name.startswith("body."):
            return value_at(failure.body, name[len("body.") :])
        if name.startswith("header."):
            return failure.headers.get(name[len("header.") :].lower())
        if name == "call_cut":
            return failure.call_cut or None
        if name == "rpc_code":
            return value_at(failure.body, "error.code") if failure.source == "tool" else None
        return getattr(failure, name, None)

    return look


def value_at(body: Any, path: str) -> Any:
    """The value at a dotted path of JSON: names of maps, numbers of lists. None where there is none."""
    for step in path.split("."):
        if isinstance(body, Mapping):
            body = next((body[key] for key in body if str(key).lower() == step.lower()), None)
        elif isinstance(body, list | tuple) and step.isdigit() and int(step) < len(body):
            body = body[int(step)]
        else:
            return None
    return None if isinstance(body, Mapping | list | tuple) else body


# --- ladders and waits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """How a class is treated. Times are seconds; `rule` is the line of the ladder."""

    do: tuple[str, ...]
    owner: Owner
    retries: int
    base_s: float
    factor: float
    cap_s: float
    jitter: float
    switch_after: int
    server_wait_max_s: float
    deadline_s: float
    park_max_s: float
    rule: RuleRef


_AGENT_OWNERS = {
    ErrorClass.LOOP_DETECTED: Owner.SESSION,
    ErrorClass.NO_PROGRESS: Owner.SESSION,
    ErrorClass.BUDGET_EXHAUSTED: Owner.RUNTIME,
    ErrorClass.HANG: Owner.RUNTIME,
    ErrorClass.STATE_CORRUPT: Owner.OPERATOR,
    ErrorClass.INTERNAL_ERROR: Owner.OPERATOR,
}


def for_class(policy: RetryPolicy, source: Source, error_class: ErrorClass) -> ClassSettings:
    """The ladder and waits of a class. Classes of the agent itself stop, and no file changes that."""
    if source == "agent" or error_class in _AGENT_OWNERS:
        return _fixed(policy, error_class)
    shape = policy.shape
    group: ModelRetry | ToolRetry = shape.model if source == "model" else shape.tool
    stated = getattr(group.classes, error_class.value, None)
    if stated is None:  # a class of the other group: treated as the cautious default of this one
        return for_class(policy, source, ErrorClass.SERVER_ERROR if source == "model" else ErrorClass.EXECUTION_FAILED)

    def either(name: str) -> Any:
        value = getattr(stated, name, None)
        return value if value is not None else getattr(group, name, None)

    return ClassSettings(
        do=stated.do,
        owner=Owner(stated.owner),
        retries=either("retries"),
        base_s=either("base"),
        factor=either("factor"),
        cap_s=either("cap"),
        jitter=either("jitter"),
        switch_after=either("switch_after") or 1,
        server_wait_max_s=group.server_wait_max,
        deadline_s=group.deadline,
        park_max_s=shape.park.max,
        rule=policy.ref(source, "classes", error_class.value, "do", rule=f"{source}.classes.{error_class.value}"),
    )


def _fixed(policy: RetryPolicy, error_class: ErrorClass) -> ClassSettings:
    return ClassSettings(
        do=("stop",),
        owner=_AGENT_OWNERS.get(error_class, Owner.OPERATOR),
        retries=0,
        base_s=0.0,
        factor=1.0,
        cap_s=0.0,
        jitter=0.0,
        switch_after=1,
        server_wait_max_s=0.0,
        deadline_s=policy.shape.model.deadline,
        park_max_s=policy.shape.park.max,
        rule=RuleRef("retry", policy.name, f"{error_class.value} always stops", "harnessd", 0, policy.revision),
    )


def backoff_s(settings: ClassSettings, n: int, random01: float) -> float:
    """Wait before retry n (0 = the first), in seconds: min(base x factor^n, cap) x (1 + random x jitter)."""
    try:
        wait = settings.base_s * settings.factor**n
    except OverflowError:
        wait = settings.cap_s
    return min(wait, settings.cap_s) * (1 + random01 * settings.jitter)


def relations(policy: RetryPolicy) -> Iterator[Problem]:
    """Base <= cap, in each group and each class."""
    for source in ("model", "tool"):
        group: ModelRetry | ToolRetry = getattr(policy.shape, source)
        yield from _base_under_cap(policy, (source,), group.base, group.cap)
        for name in type(group.classes).model_fields:
            one: ClassPolicy = getattr(group.classes, name)
            if one.base is None and one.cap is None:
                continue
            base = group.base if one.base is None else one.base
            cap = group.cap if one.cap is None else one.cap
            yield from _base_under_cap(policy, (source, "classes", name), base, cap)


def _base_under_cap(policy: RetryPolicy, path: tuple[str, ...], base: float, cap: float) -> Iterator[Problem]:
    if base <= cap:
        return
    written = {key: policy.written(*path, key) or policy.written(path[0], key) for key in ("base", "cap")}
    message = f"{'.'.join(path)}.base {written['base']} is above cap {written['cap']}"
    yield Problem.at(
        policy.blame((*path, "base"), (*path, "cap"), (path[0], "base"), (path[0], "cap")),
        message,
        "write a base of at most the cap",
    )
