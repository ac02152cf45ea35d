"""Reserving: what the next model call may cost, and whether the budgets still hold it (R3.9)."""

from __future__ import annotations

from harnessd.engine.context import measuring
from harnessd.engine.protocol import ModelFacts
from harnessd.engine.situation import Situation
from harnessd.policy import budget as budget_policy

# An answer shorter than this is cut before it says anything: the call is not made instead.
_FLOOR_TOKENS = 256
# The summing-up has a reserve of its own: it is owed even where nothing is left.
_LAST_TURN_TOKENS = 1_024


def exhausted(s: Situation, model: ModelFacts) -> budget_policy.Exhausted | None:
    """The budget that is used up, or that the next call would not fit in."""
    found = budget_policy.judge(s.rules.budget, s.used(), s.counters.warned).exhausted
    return found or _too_dear(s, model) or _unpriced(s, model)


def may_call(s: Situation, model: ModelFacts) -> bool:
    """False where its price is not known, a cost limit holds, and policy charges nobody by guess (unknown_price)."""
    limited = budget_policy.limit_of(s.rules.budget, "cost_usd") is not None
    return model.priced or not limited or s.rules.budget.shape.unknown_price != "refuse"


def most_tokens(s: Situation, model: ModelFacts) -> int:
    """How long the answer may be: lowered to what is left before a call is refused."""
    room = min(_rooms(s, model).values(), default=model.max_output)
    if s.counters.last_turn:
        room = max(room, _LAST_TURN_TOKENS)
    return max(1, min(model.max_output, room))


def cost_usd(model: ModelFacts, sent: float, received: float) -> float:
    """What tokens cost at most; a model without a price of its own has the dearest declared one."""
    return round((sent * (model.input_usd or 0.0) + received * (model.output_usd or 0.0)) / 1_000_000, 6)


def input_tokens(s: Situation) -> int:
    """Size of the next request: what the service counted last and what came since, else our estimate of all of it."""
    return measuring.size(s, s.counters.link or s.brief.model.alias)


def _rooms(s: Situation, model: ModelFacts) -> dict[str, int]:
    """Tokens of an answer that each budget still holds, by budget."""
    sent, used, rooms = input_tokens(s), s.used(), {}
    tokens = budget_policy.limit_of(s.rules.budget, "tokens")
    if tokens is not None:
        rooms["tokens"] = int(tokens - used["tokens"]) - sent
    money = budget_policy.limit_of(s.rules.budget, "cost_usd")
    if money is not None and model.output_usd:
        left = money - used["cost_usd"] - cost_usd(model, sent, 0)
        rooms["cost_usd"] = int(left * 1_000_000 / model.output_usd)
    return rooms


def _unpriced(s: Situation, model: ModelFacts) -> budget_policy.Exhausted | None:
    if may_call(s, model):
        return None
    policy, used = s.rules.budget, s.used()["cost_usd"]
    limit = budget_policy.limit_of(policy, "cost_usd") or 0.0
    sentence = f"the price of model/{model.alias} is not known, and budget/{policy.name} calls none without a price"
    return budget_policy.Exhausted("cost_usd", used, limit, sentence, policy.ref("unknown_price"))


def _too_dear(s: Situation, model: ModelFacts) -> budget_policy.Exhausted | None:
    floor = min(_FLOOR_TOKENS, model.max_output)
    for budget, room in _rooms(s, model).items():
        if room >= floor:
            continue
        policy, used = s.rules.budget, s.used()[budget]
        limit = budget_policy.limit_of(policy, budget) or 0.0
        shown = f"{budget_policy.shown(budget, used)} of {budget_policy.shown(budget, limit)} {budget} used"
        sentence = f"{shown}, and what is left does not hold another call"
        return budget_policy.Exhausted(budget, used, limit, sentence, policy.ref("limits", budget))
    return None
