"""A call that was not made because the day's money is used up: the limit's own ladder decides, no try is spent."""

from __future__ import annotations

import pytest

from harnessd.defence import face
from harnessd.defence.incident import Episode, Links, incident_of
from harnessd.domain.decision import NeedsHuman, Park, Remedy, Stop
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.task import StopReason
from tests.engine.scenery import policies

HOURS_16 = 16 * 3600.0
RULE = {"kind": "limits", "name": "default", "rule": "rules[0]", "file": "limits.yaml", "line": "3"}


def refused(*do: str) -> Failure:
    """As the gateway answers when agent/crawler has spent its day's money."""
    return Failure(
        "model",
        "agent/crawler",
        "10.00 of 10.00 USD a day used by agent/crawler",
        code="day_limit_reached",
        retry_after_s=HOURS_16,
        body={"do": list(do), "limit": "agent/crawler", "rule": RULE},
        hint=ErrorClass.QUOTA_EXHAUSTED,
    )


@pytest.mark.parametrize(
    ("do", "remedy"),
    [
        (("park",), Park(HOURS_16)),  # longer than park.max, and no other model: it is the agent that may not spend
        (("stop",), Stop(StopReason.QUOTA_EXHAUSTED)),
        (("needs_human", "stop"), NeedsHuman("agent/crawler: 10.00 of 10.00 USD a day used by agent/crawler")),
    ],
)
def test_the_limits_own_ladder_decides(do: tuple[str, ...], remedy: Remedy) -> None:  # A3, R3.15
    with_chain = policies("kind: fallback\nchains: {model/primary: [model/second]}")
    episode = Episode("t1", tries=0, links=Links("model/primary", ("model/primary",)))
    decision = face(incident_of(refused(*do), episode, with_chain))
    assert decision.remedy == remedy
    assert (decision.rule.kind, decision.rule.file, decision.rule.line) == ("limits", "limits.yaml", 3)
