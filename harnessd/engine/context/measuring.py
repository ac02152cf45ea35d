"""Measuring: how many tokens the next request takes, by the service's own counts where it has told any (R4.2).

One figure decides when the history is made smaller and whether that helped: the newest count of the service with what
came since, or our estimate in the service's measure, whichever is larger. A count from before a compaction says nothing
of the view after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.defence.line3_repair.compaction.plan import Scene
from harnessd.defence.line3_repair.compaction.standing import is_squeezed, standing
from harnessd.domain.messages import Usage
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.tokens import estimate_tokens
from harnessd.engine.protocol import ModelFacts
from harnessd.engine.situation import Situation
from harnessd.policy import compaction as compaction_policy

# A message's role and separators.
_A_MESSAGE = 4
# Our estimate lies near the truth; a count further away is a mistake of the service's, and is believed so far only.
_LEAST_RATIO, _MOST_RATIO = 0.4, 4.0
_SMALL = 2_000  # tokens; what is smaller is no danger to any window
# A window that overflowed is a little smaller than what did not fit.
_BELOW = 0.95
_LEAST_WINDOW = 0.1  # of the declared one: below it, the overflow had another cause
# The same count for a request that grew: signs of a cut that nobody tells of.
_SAME, _TIMES, _GROWN = 0.02, 3, 1.15
_READER = "job_output"


def note(s: Situation, **changes: Any) -> None:
    """Remember something of the window; None: forget it."""
    known = {**s.counters.context, **changes}
    s.count(context={name: value for name, value in known.items() if value is not None})


def shown(s: Situation) -> list[Node]:
    """The nodes that a model is shown now."""
    return standing(s.path)


def size(s: Situation, alias: str) -> int:
    """Tokens of the next request to a model."""
    raw = raw_size(s)
    own = round(raw * ratio(s, alias))
    told = _told(s, alias)
    if told is None:
        return own
    return max(told, own) if raw > _SMALL else told


def counted(s: Situation, alias: str) -> bool:
    """The size rests on a count of the service, not on our estimate alone."""
    return _told(s, alias) is not None


def _told(s: Situation, alias: str) -> int | None:
    """What the service counted last for a view that still stands, with what came since."""
    nodes, fresh = shown(s), 0
    since = _number(nodes[0]) if nodes and nodes[0].kind is NodeKind.COMPACTION else 0
    for node in reversed(nodes):
        if _number(node) <= since:
            break  # its count is of the view before the compaction
        facts = node.payload.get("facts", {})
        usage = facts.get("usage") if node.kind is NodeKind.ASSISTANT else None
        if usage and facts.get("model") == alias and (charged := sum(usage.values())):
            return int(charged) + round(fresh * ratio(s, alias))
        fresh += raw_of(s, node)
    return None


def _number(node: Node) -> int:
    return int(node.id[1:])


def raw_of(s: Situation, node: Node) -> int:
    """Our own estimate of a node, made once."""
    key = f"{node.id}~" if is_squeezed(node) else node.id
    found = s.sizes.get(key)
    if found is None:
        blocks: Sequence[Mapping[str, Any]] = node.payload.get("blocks", ())
        found = _A_MESSAGE + sum(map(_of_block, blocks))
        if node.id:  # a node that is not recorded yet has no name to remember it by
            s.sizes[key] = found
    return found


def _of_block(block: Mapping[str, Any]) -> int:
    kind = block.get("type")
    if kind in ("text", "tool_result"):
        return estimate_tokens(block.get("text", ""))
    if kind == "tool_use":
        return estimate_tokens([block.get("name", ""), block.get("arguments") or block.get("raw", "")]) + _A_MESSAGE
    return estimate_tokens(block.get("wire", block))


def overhead(s: Situation) -> int:
    """Our own estimate of system prompt and tools: what no compaction can touch."""
    tools = s.brief.tools or s.own.tools
    key = f"/{'/'.join(tool.spec.name for tool in tools)}"
    if key not in s.sizes:
        described = [[tool.spec.name, tool.spec.about, tool.spec.schema] for tool in tools]
        s.sizes[key] = estimate_tokens(s.brief.system) + estimate_tokens(described)
    return s.sizes[key]


def raw_size(s: Situation) -> int:
    """Our own estimate of the whole next request."""
    return overhead(s) + sum(raw_of(s, node) for node in shown(s))


def ratio(s: Situation, alias: str) -> float:
    """The service's count over our estimate, as it was last; 1 before the first count."""
    return float(s.counters.context.get("ratio", {}).get(alias, 1.0))


def learn(s: Situation, alias: str, call: str, usage: Usage) -> None:
    """Set our measure by what a service counted for a request."""
    counted = sent(usage)
    arguments = s.effects[call].arguments or {}
    raw = int(arguments.get("estimated", 0))
    if not counted or not raw:
        return
    known = s.counters.context.get("ratio", {})
    if _cut_in_silence(s, alias, counted, raw):
        return  # its count is of what it kept, and says nothing of our measure
    # Upwards at once, downwards by half at most: one odd count must not make a full window look empty.
    least = max(_LEAST_RATIO, 0.5 * float(known.get(alias, 0.0)))
    measure = round(min(_MOST_RATIO, max(least, counted / raw)), 3)
    if known.get(alias) != measure:
        note(s, ratio={**known, alias: measure})


def _cut_in_silence(s: Situation, alias: str, counted: int, raw: int) -> bool:
    """A service that takes more than its window cuts the front and says nothing: the request grows, its count does not.

    Several times the same count, for requests that grew by more than any error of ours: that count is its window.
    """
    seen = s.counters.context.get("seen", {})
    first, grown_from, times = seen.get(alias, (0, 0, 0))
    same = counted >= _SMALL and abs(counted - first) <= _SAME * counted and raw >= grown_from
    note(s, seen={**seen, alias: [first, grown_from, times + 1] if same else [counted, raw, 1]})
    if not same or times + 1 < _TIMES or raw < _GROWN * grown_from:
        return same and times > 1
    found(s, alias, counted)
    sentence = (
        f"model/{alias} counted {counted:,} tokens {times + 1} times for requests that grew: it seems to cut what is "
        "beyond its window, and harness.yaml declares a larger one."
    )
    s.say("budget_warning", budget="context", level="cut", sentence=sentence, window_used=round(raw / grown_from, 3))
    return True


def sent(usage: Usage) -> int:
    """The size of the request as the service counted it, cached tokens included."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def window(s: Situation, model: ModelFacts) -> int:
    """The model's window: the declared one, or the smaller one that it turned out to have."""
    return min(model.window, int(s.counters.context.get("windows", {}).get(model.alias, model.window)))


def overflowed(s: Situation, model: ModelFacts, stated: int | None = None) -> None:
    """A request did not fit, whatever was declared or estimated. `stated`: its size in the service's own words.

    Where the service never counted this view, our measure is what was wrong; where it did, the window is.
    """
    whole = window(s, model)
    if stated is None and counted(s, model.alias):
        true = less(s, model)
        if true > _LEAST_WINDOW * model.window:
            found(s, model.alias, true)
        return
    size_ = round(1.02 * max(size(s, model.alias), whole)) if stated is None else stated
    measure = round(min(_MOST_RATIO, size_ / max(1, raw_size(s))), 3)
    if measure > ratio(s, model.alias):
        note(s, ratio={**s.counters.context.get("ratio", {}), model.alias: measure})
    elif stated is None:
        found(s, model.alias, less(s, model))


def less(s: Situation, model: ModelFacts) -> int:
    """A window that the next request, as it stands, would not fit."""
    return int(_BELOW * min(size(s, model.alias), window(s, model)))


def found(s: Situation, alias: str, tokens: int) -> None:
    """A model's true window is smaller than declared: remembered for the rest of the session."""
    note(s, windows={**s.counters.context.get("windows", {}), alias: tokens})


def where(s: Situation, model: ModelFacts) -> compaction_policy.Standing:
    """The tier that the next request reaches."""
    return compaction_policy.standing(
        s.rules.compaction, size(s, model.alias), window(s, model), _answer(model, window(s, model))
    )


def _answer(model: ModelFacts, whole: int) -> int:
    """What is kept back for an answer; of a window that turned out smaller than declared, half at most."""
    return model.max_output if whole >= model.window else min(model.max_output, whole // 2)


def room_for_answer(s: Situation, model: ModelFacts) -> int:
    """How long an answer the window still holds."""
    whole = window(s, model)
    return max(min(_SMALL, whole // 4), int(0.98 * whole) - size(s, model.alias))


def scene(s: Situation, model: ModelFacts, whole: int | None = None) -> Scene:
    """What a plan is made from; `whole`: another window than the one that is known."""
    factor, policy = ratio(s, model.alias), s.rules.compaction
    whole = window(s, model) if whole is None else whole
    return Scene(
        nodes=shown(s),
        size_of=lambda node: round(raw_of(s, node) * factor),
        measure=lambda text: round(estimate_tokens(text) * factor) + 1,
        overhead=round(overhead(s) * factor),
        window=compaction_policy.effective_window(policy, whole, _answer(model, whole)),
        size=size(s, model.alias),
        policy=policy,
        readable=any(tool.spec.name == _READER for tool in s.brief.tools),
    )


def estimate(text: str) -> int:
    """Our own estimate of a text."""
    return estimate_tokens(text)
