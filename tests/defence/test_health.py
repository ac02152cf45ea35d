"""Measured health: a slow link gets fewer tries while another one is left; the retry budget stops storms (R3.16)."""

from __future__ import annotations

import pytest

from harnessd.defence import face
from harnessd.defence.incident import Episode, Links, incident_of
from harnessd.domain.decision import Fallback, Park, Remedy, Retry
from harnessd.domain.failure import Failure
from tests.engine.scenery import policies

FAILED = Failure("model", "model/primary", "Internal error", status=500, ended="none")
CHAIN = "kind: fallback\nchains: {model/primary: [model/second]}"
STRICT = f"{CHAIN}\n---\nkind: retry\nmodel: {{slow: {{over: 10s, switch_after: 2}}}}"


def decided(text: str, here: int, first_event_s: float | None, *, may_retry: bool = True) -> Remedy:
    """What is done after this many failed tries on the first link."""
    links = Links("model/primary", ("model/primary",), here=here) if "chains" in text else Links()
    episode = Episode("t1", here, links=links, first_event_s=first_event_s, may_retry=may_retry)
    return face(incident_of(FAILED, episode, policies(text))).remedy


@pytest.mark.parametrize(
    ("text", "here", "first_event_s", "remedy"),
    [
        (CHAIN, 1, None, Retry),  # nothing is known: switch_after 4
        (CHAIN, 1, 2.0, Retry),
        (CHAIN, 1, 31.0, Fallback),  # shipped: slow over 30s, then one try
        (STRICT, 1, 11.0, Retry),
        (STRICT, 2, 11.0, Fallback),
        ("kind: loop", 3, 31.0, Retry),  # no other link: a slow answer is better than none
    ],
)
def test_a_slow_link_gets_fewer_tries(text: str, here: int, first_event_s: float | None, remedy: type[Remedy]) -> None:
    # R3.16
    assert isinstance(decided(text, here, first_event_s), remedy)


def test_without_retry_budget_the_next_step_is_taken() -> None:  # R3.16
    assert isinstance(decided(CHAIN, 1, None, may_retry=False), Fallback)
    assert isinstance(decided("kind: loop", 1, None, may_retry=False), Park)
