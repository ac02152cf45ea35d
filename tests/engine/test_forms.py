"""The form of an agent's answer: checked by its schema, asked for again with the exact problem, safe in the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from harnessd.domain.messages import FinishReason, TextBlock
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState
from harnessd.engine.forms import read
from harnessd.engine.protocol import Fits, RunState
from harnessd.tools.arguments import misfits
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, NO_LIMITS, calls, model_failure, policies, reply, says

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}
GOOD = '{"path": "a.py", "lines": 3}'
SAFE = '{"path": ""}'


@pytest.fixture
def fits() -> Fits:
    return partial(misfits, SCHEMA)


def started(fits: Fits, text: str = FREE, safe: str = SAFE, **budget: float) -> Desk:
    brief = replace(BRIEF, wanted=json.dumps(SCHEMA), safe=safe, fits=fits)
    desk = Desk(policies(text, **{**NO_LIMITS, **budget}), brief=brief)
    desk.lease()
    return desk


def test_an_answer_of_the_wanted_form_ends_the_task_and_is_kept_as_a_value(fits: Fits) -> None:  # R3.14
    desk = started(fits)
    desk.replied(says(GOOD))
    assert desk.ledger.state is TaskState.COMPLETED
    assert desk.ledger.path[-1].payload["facts"]["output"] == {"path": "a.py", "lines": 3}


def test_another_form_is_asked_for_again_with_path_and_schema_twice_then_the_safe_one(fits: Fits) -> None:  # R3.14
    desk = started(fits)
    for _ in range(2):
        desk.replied(says('{"path": 42}'))
        desk.waited()
        notice = desk.texts(NodeKind.NOTICE)[-1]
        assert "path: expected string, got number 42" in notice
        assert json.dumps(SCHEMA) in notice
        assert notice in str(desk.requests[-1].request.messages[-1])
    desk.replied(says('{"path": 42}'))
    assert len(desk.requests) == 3
    assert desk.ledger.state is TaskState.COMPLETED
    assert desk.ledger.last_move.error_class == "malformed_output"
    assert desk.ledger.path[-1].payload["facts"] == {"safe": True, "output": {"path": ""}}
    assert desk.ledger.counters.degraded == {"agent/coder": "safe"}
    assert [event.data["link"] for event in desk.ledger.events if event.type == "degraded"] == ["safe"]
    assert [row.decision.error_class for row in desk.ledger.decisions] == ["malformed_output"] * 3


def test_without_a_safe_answer_the_task_stops_with_the_exact_problem(fits: Fits) -> None:  # R3.14
    desk = started(fits, safe="")
    for _ in range(2):
        desk.replied(says("All done."))
        desk.waited()
    desk.replied(says("All done."))
    assert desk.ledger.reason is StopReason.ERROR
    assert "is not JSON" in desk.ledger.last_move.sentence


def test_the_second_answer_may_be_right(fits: Fits) -> None:  # R3.14
    desk = started(fits)
    desk.replied(says("Done: a.py"))
    desk.waited()
    desk.replied(says(GOOD))
    assert desk.ledger.state is TaskState.COMPLETED
    assert desk.ledger.last_move.error_class is None
    assert desk.ledger.counters.degraded == {}


def test_calls_between_do_not_give_more_tries(fits: Fits) -> None:  # R3.14
    desk = started(fits)
    for turn in range(2):
        desk.replied(says("no"))
        desk.waited()
        desk.replied(calls(("look", {"n": turn}), turn=str(turn)))
        desk.returned(f"news {turn}")
    desk.replied(says("no"))
    assert desk.ledger.path[-1].payload["facts"]["safe"]


def test_faults_of_the_service_before_do_not_use_up_the_tries(fits: Fits) -> None:  # R3.14
    desk = started(fits)
    for _ in range(3):
        desk.model_failed(model_failure("server"))
        desk.waited()
    desk.replied(says("no"))
    assert desk.run.state is RunState.BACKOFF
    desk.waited()
    desk.model_failed(model_failure("server"))
    desk.waited()
    desk.replied(says(GOOD))
    assert desk.ledger.state is TaskState.COMPLETED


def test_the_next_link_is_tried_before_the_safe_answer(fits: Fits) -> None:  # R3.14, R3.4
    desk = started(fits, FREE + "---\nkind: fallback\nchains: {model/primary: [model/second]}\n")
    for _ in range(2):
        desk.replied(says("no"))
        desk.waited()
    desk.replied(says("no"))
    assert desk.requests[-1].request.model == "second"
    desk.replied(says(GOOD))
    assert desk.ledger.state is TaskState.COMPLETED


def test_the_tally_survives_a_crash(fits: Fits) -> None:  # R3.14, R6.1
    desk = started(fits)
    for _ in range(2):
        desk.replied(says("no"))
        desk.crash_and_lease()
        if desk.wait is not None:
            desk.waited()
    desk.replied(says("no"))
    assert desk.ledger.path[-1].payload["facts"]["safe"]


def test_a_cut_answer_is_never_taken_though_it_reads_well(fits: Fits) -> None:  # R3.14
    desk = started(fits)
    desk.replied(reply(TextBlock(GOOD), finish=FinishReason.LENGTH))
    assert desk.run.state is RunState.BACKOFF
    assert "cut off at its token limit" in desk.texts(NodeKind.NOTICE)[-1]


def test_the_summing_up_of_a_budgets_end_has_no_form(fits: Fits) -> None:  # R3.9
    desk = started(fits, turns=1.0)
    desk.replied(calls(("look", {})))
    desk.replied(says("I read a.py; the rest is missing."))
    assert desk.ledger.reason is StopReason.BUDGET_EXHAUSTED


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Here it is:\n\n```json\n{GOOD}\n```\nI looked at everything.",
        f"~~~JSON\n{GOOD}\n~~~",
        '```json\n{\n  "path": "a.py",\n  "lines": 3\n}\n```',
        '{"path": "```", "lines": 3}',
    ],
)
def test_a_value_alone_or_in_the_one_fenced_block_is_taken(text: str, fits: Fits) -> None:  # R3.14
    value, problems = read(text, fits)
    assert not problems
    assert value["lines"] == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("Here it is: " + GOOD, "is not JSON"),
        (GOOD + " Done.", "extra data"),
        (f"```json\n{GOOD}\n```\nor\n```json\n{GOOD}\n```", "is not JSON"),
        (f"```json\n{GOOD}", "is not JSON"),
        (f"```python\n{GOOD}\n```", "is not JSON"),
        ("{'path': 'a.py'}", "is not JSON"),
        ('{"path": "a.py",}', "is not JSON"),
        ('{"path": "a.py", "path": "b.py"}', "'path' stands twice"),
        ('{"path": "a.py", "lines": NaN}', "NaN is no JSON number"),
        ('{"path": "a.py", "lines": 1e999}', "too large"),
        ('{"path": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('"' + GOOD.replace('"', '\\"') + '"', "the answer: expected object, got string"),
        ("42", "the answer: expected object, got number 42"),
        ("null", "the answer: expected object, got null"),
        ('{"lines": 3}', "path: missing"),
        ('{"path": "a.py", "lines": "3"}', "lines: expected integer, got string"),
        ('{"path": "a.py", "lines": 3.5}', "lines: expected integer, got number 3.5"),
        ('{"path": "a.py", "more": 1}', "unknown: more"),
        ('{"path": 1, "lines": "x"}', "path: expected string"),
    ],
)
def test_nothing_else_is_guessed(text: str, problem: str, fits: Fits) -> None:  # R3.14
    _, problems = read(text, fits)
    assert problem in "; ".join(problems)
