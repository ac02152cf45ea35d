"""Plan: the agent's task list is shown, counted, and handed back to be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harnessd.domain.failure import ErrorClass

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


async def test_the_plan_is_the_tools_durable_note(bench: Bench) -> None:
    # R6.1
    items = [{"text": "read", "state": "done"}, {"text": "write", "state": "doing"}, {"text": "test", "state": "todo"}]
    outcome = await bench.done("task_list", items=items)
    assert outcome.note == items
    assert outcome.text == "1 of 3 done.\n[x] read\n[>] write\n[ ] test"


async def test_an_empty_plan_is_a_plan(bench: Bench) -> None:
    outcome = await bench.done("task_list", items=[])
    assert (outcome.note, outcome.text) == ([], "0 of 0 done.")


async def test_an_unknown_state_is_refused(bench: Bench) -> None:
    failure = await bench.failed("task_list", items=[{"text": "x", "state": "dong"}])
    assert failure.hint is ErrorClass.INVALID_ARGUMENTS
    assert failure.message == 'items[0].state: expected one of ["todo", "doing", "done"], got string "dong"'
