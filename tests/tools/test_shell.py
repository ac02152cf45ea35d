"""Shell: a command's result, its timeout, its cancellation, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harnessd.domain.failure import ErrorClass
from harnessd.domain.ports import JobEnded
from harnessd.tools import partial_output

if TYPE_CHECKING:
    from tests.tools.conftest import Bench

Alive = Callable[[str], list[int]]


async def test_output_of_both_streams_and_the_exit_code_come_back(bench: Bench) -> None:
    outcome = await bench.done("bash", command="echo out; echo err >&2; exit 3")
    assert outcome.text == "out\nerr\n[exit code 3]"
    assert outcome.is_error
    assert outcome.exit_code == 3
    assert list(bench.artefacts.iterdir()) == []  # shown whole: no artefact is kept


async def test_a_silent_success_says_so(bench: Bench) -> None:
    outcome = await bench.done("bash", command="true")
    assert (outcome.text, outcome.is_error, outcome.exit_code) == ("(no output)", False, 0)


async def test_reopening_dev_stderr_does_not_empty_the_output(bench: Bench) -> None:
    outcome = await bench.done("bash", command="echo a; echo b > /dev/stderr; echo c > /dev/stdout")
    assert outcome.text == "a\nb\nc"


async def test_it_runs_in_the_workspace_with_the_given_environment_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # security/env-secret-in-child
    monkeypatch.setenv("ANTHROPIC_API_KEY", "CANARY-1")
    outcome = await bench.done("bash", command="pwd; env; tr '\\0' '\\n' < /proc/$PPID/environ")
    assert outcome.text.startswith(str(bench.workspace))
    assert "CANARY" not in outcome.text
    assert "LC_CTYPE" not in outcome.text  # nothing the interpreter of the supervisor adds
    for setting in ("GIT_EDITOR=true", "GIT_SEQUENCE_EDITOR=true", "GIT_TERMINAL_PROMPT=0", "PAGER=cat", "TERM=dumb"):
        assert setting in outcome.text


async def test_stdin_is_at_its_end(bench: Bench) -> None:
    outcome = await bench.done("bash", command="cat; read x; echo $?")
    assert outcome.text == "1"


async def test_signals_that_the_supervisor_ignores_have_their_defaults_again(bench: Bench) -> None:
    outcome = await bench.done("bash", command="(kill -TERM $BASHPID; echo survived); grep SigIgn /proc/self/status")
    assert "survived" not in outcome.text
    ignored = int(outcome.text.split("SigIgn:")[1].split()[0], 16)
    assert ignored & 0x7FFFFFFF == 0, "of the real-time signals, whoever started the tests may ignore some"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_no_editor_can_run(bench: Bench) -> None:  # d07
    started = time.monotonic()
    outcome = await bench.done(
        "bash", command="git init -q . && touch f && git add f && git -c user.name=t -c user.email=t@t.invalid commit"
    )
    assert time.monotonic() - started < 3
    assert outcome.is_error
    assert "empty commit message" in outcome.text


async def test_a_pipeline_is_killed_whole_at_its_timeout(bench: Bench, needle: str, alive: Alive) -> None:
    # R3.12, d04
    context = bench.context(timeout_s=0.4, on_timeout="kill")
    failure = await bench.failed("bash", context, command=f"echo begun; yes {needle} | cat > /dev/null")
    assert failure.hint is ErrorClass.TIMEOUT
    assert failure.exit_code == 124
    assert failure.message == "command timed out after 400 ms"
    assert failure.output == "begun\n"
    assert failure.effect_begun
    assert alive(needle) == []


async def test_the_model_may_ask_for_time_but_not_for_more_than_policy_allows(bench: Bench) -> None:
    context = bench.context(timeout_s=30, timeout_max_s=30.2, on_timeout="kill")
    assert (await bench.done("bash", context, command="echo ok", timeout_s=0.9)).text == "ok"
    context = bench.context(timeout_s=0.2, timeout_max_s=0.3, on_timeout="kill")
    failure = await bench.failed("bash", context, command="sleep 5", timeout_s=4)
    assert failure.message == "command timed out after 300 ms"
    assert "0.3" in failure.advice


ESCAPES = {
    "setsid": "setsid sleep {n} & echo begun; wait",
    "double fork": "( ( setsid sleep {n} & ) & ); echo begun; sleep {n}",
    "ignores every signal": "trap '' TERM HUP INT QUIT; echo begun; while :; do sleep {n}; done",
    "nohup in a new session": "setsid nohup bash -c 'trap \"\" TERM; sleep {n}' >/dev/null 2>&1 & echo begun; wait",
    "scrubbed environment": "env -i setsid /bin/sleep {n} & echo begun; wait",
    "holds the output": "setsid sleep {n} & disown; echo begun; exec sleep {n}",
    "stops its supervisor": "echo begun; sleep 0.1; kill -STOP $PPID; setsid sleep {n} & wait",
    "terminates its supervisor": "kill -TERM $PPID; kill -INT $PPID; kill -HUP $PPID; echo begun; sleep {n}",
    "small fork bomb": (
        "bomb() {{ [ $1 -gt 0 ] && {{ bomb $(($1-1)) & bomb $(($1-1)) & }}; sleep {n}; }}; echo begun; bomb 5"
    ),
    "subreaper below": (
        "echo begun; python3 -c 'import ctypes, os; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0);"
        ' os.fork() or os.setsid(); os.execlp("sleep", "sleep", "{n}")\''
    ),
}


@pytest.mark.parametrize("shape", ESCAPES)
async def test_nothing_lives_after_a_kill(bench: Bench, needle: str, alive: Alive, shape: str) -> None:
    # R3.12, G12: 124 within the limit and 2 s, and no process of the call is left
    started = time.monotonic()
    context = bench.context(timeout_s=0.5, on_timeout="kill")
    failure = await bench.failed("bash", context, command=ESCAPES[shape].format(n=needle))
    assert time.monotonic() - started < 0.5 + 2
    assert failure.exit_code == 124
    assert failure.output == "begun\n"
    assert alive(needle) == []


async def test_a_command_that_kills_its_supervisor_takes_its_children_with_it(
    bench: Bench, needle: str, alive: Alive
) -> None:
    failure = await bench.failed(
        "bash", command=f"setsid sleep {needle} & echo begun; sleep 0.1; kill -9 $PPID; sleep {needle}"
    )
    assert failure.hint is ErrorClass.EXECUTION_FAILED
    assert "watches it" in failure.message
    assert failure.output == "begun\n"
    assert alive(needle) == []


@pytest.mark.parametrize("blow", ["kill -9 $PPID", "kill -STOP $PPID"])
async def test_orphans_of_a_struck_supervisor_do_not_stay_as_zombies(bench: Bench, until: Any, blow: str) -> None:
    mine = Path(f"/proc/self/task/{os.getpid()}/children")
    # This process inherits orphans: what other tests left to it, killed daemons' tools among them, is not looked at.
    others = set(mine.read_text().split())
    context = bench.context(timeout_s=0.3, on_timeout="kill")
    await bench.failed("bash", context, command=f"sleep 33 & setsid sleep 33 & sleep 0.1; {blow}; sleep 33")
    await until(
        lambda: not [pid for pid in mine.read_text().split() if pid not in others and _name(pid) in ("sleep", "bash")]
    )


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def test_a_supervisor_stopped_in_the_first_moment_does_not_hide_that_the_command_runs(
    bench: Bench, needle: str, alive: Alive
) -> None:
    context = bench.context(timeout_s=0.3, on_timeout="kill")
    failure = await bench.failed("bash", context, command=f"kill -STOP $PPID; exec sleep {needle}")
    assert failure.hint is ErrorClass.TIMEOUT
    assert failure.effect_begun
    assert alive(needle) == []


async def test_a_flood_is_ended_at_a_bound(bench: Bench) -> None:
    context = bench.context(timeout_s=60, output_max=4096)
    failure = await bench.failed("bash", context, command="yes 0123456789012345678901234567890123456789")
    assert "256 MiB" in failure.message
    assert len(failure.output) <= 4096
    assert (bench.artefacts / f"{context.call_id}.out").stat().st_size == 256 * 2**20


async def test_a_result_does_not_wait_for_a_child_that_holds_the_output(
    bench: Bench, needle: str, alive: Alive
) -> None:  # d05, d15
    started = time.monotonic()
    outcome = await bench.done("bash", command=f"sleep {needle} </dev/null >/dev/null & echo started")
    assert time.monotonic() - started < 2
    assert outcome.text.startswith("started\n[left running: 1 process, now background job")
    assert outcome.job in bench.jobs.running("t1")
    assert bench.jobs.running("t2") == []  # no other task has it
    assert await bench.jobs.end_task("t1") == 1
    assert alive(needle) == []


@pytest.mark.parametrize("shape", ["sleep {n}", "setsid sleep {n} & wait", "trap '' TERM; (sleep {n}); sleep {n}"])
async def test_cancelling_ends_everything_before_it_goes_on(
    bench: Bench, needle: str, alive: Alive, until: Any, shape: str
) -> None:
    context = bench.context()
    calling = asyncio.create_task(bench.call("bash", context, command=f"echo so far; {shape.format(n=needle)}"))
    await until(lambda: alive(needle) and partial_output(context))
    started = time.monotonic()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert time.monotonic() - started < 2
    assert alive(needle) == []
    assert partial_output(context) == "so far\n"


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancellation_that_comes_together_with_the_start_is_not_lost(
    bench: Bench, needle: str, steps: int
) -> None:
    context = bench.context()
    calling = asyncio.create_task(bench.call("bash", context, command=f"echo; exec sleep {needle}"))
    while not bench.jobs.signs_of_life("t1"):
        await asyncio.sleep(0)
    # The loop is held until the word `started` lies in its socket; it hears of it, and some steps later of the cancel.
    while not partial_output(context):
        time.sleep(0.01)
    for _ in range(steps):
        await asyncio.sleep(0)
    calling.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait({calling})
    assert calling.cancelled()


async def test_cancelling_twice_does_not_leave_the_kill_half_done(
    bench: Bench, needle: str, alive: Alive, until: Any
) -> None:
    calling = asyncio.create_task(bench.call("bash", command=f"kill -STOP $PPID; sleep {needle}"))
    await until(lambda: len(alive(needle)) > 1)
    calling.cancel()
    await asyncio.sleep(0.05)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert alive(needle) == []


async def test_cancelling_at_the_very_start_leaves_nothing(bench: Bench, needle: str, alive: Alive) -> None:
    calling = asyncio.create_task(bench.call("bash", command=f"sleep {needle}"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert alive(needle) == []


async def test_a_slow_command_goes_to_the_background_and_is_told_when_it_ends(
    bench: Bench, until: Any
) -> None:  # R3.12
    told: list[JobEnded] = []
    bench.jobs.listen(told.append)
    context = bench.context(timeout_s=0.5, on_timeout="background")
    outcome = await bench.done("bash", context, command="echo early; sleep 1; echo late; exit 4")
    assert not outcome.is_error
    assert outcome.job
    assert outcome.text.startswith("early\n[The command still runs after 0.5 s")
    assert bench.jobs.running("t1") == [outcome.job]
    await until(lambda: told)
    assert told[0].exit_code == 4
    assert "early\nlate\n" in told[0].text
    assert bench.jobs.running("t1") == []
    assert "early\nlate\n" in (await bench.done("job_output", job=outcome.job)).text


async def test_long_output_is_head_and_tail_and_the_whole_is_an_artefact(bench: Bench) -> None:
    outcome = await bench.done("bash", bench.context(output_max=4096), command="seq 100000")
    assert len(outcome.text.encode()) <= 4096
    assert outcome.text.startswith("1\n2\n3\n")
    assert "\n100000\n" in outcome.text
    assert "bytes left out" in outcome.text
    assert outcome.artefact
    assert (bench.artefacts / outcome.artefact).read_text() == "".join(f"{n}\n" for n in range(1, 100001))
    name = (bench.artefacts / outcome.artefact).stem
    assert name in outcome.text
    shown = await bench.done("job_output", bench.context(output_max=4096), job=name, offset=100)
    assert "Output from byte 100" in shown.text


async def test_bytes_that_are_no_text_cannot_break_the_result(bench: Bench) -> None:
    outcome = await bench.done("bash", command=r"printf 'a\377b\000c\355\240\274d'")
    outcome.text.encode()
    assert "\0" not in outcome.text
    assert outcome.text[:2] == "a\ufffd"
    full = await bench.done(
        "bash", bench.context(output_max=4096), command="head -c 100000 /dev/zero | tr '\\0' '\\377'"
    )
    assert len(full.text.encode()) <= 4096


async def test_a_kill_from_outside_is_put_down_to_the_memory_limit(bench: Bench) -> None:
    outcome = await bench.done("bash", command="kill -9 $$")
    assert outcome.exit_code == 137
    assert "memory limit" in outcome.text


async def test_what_cannot_be_started_is_a_failure_in_words(bench: Bench) -> None:
    long = await bench.failed("bash", command="echo " + "x" * 200_000)
    assert (long.hint, "128 KiB" in long.message) == (ErrorClass.INVALID_ARGUMENTS, True)
    nul = await bench.failed("bash", command="echo \0")
    assert (nul.hint, "NUL" in nul.message) == (ErrorClass.INVALID_ARGUMENTS, True)
    shutil.rmtree(bench.workspace)
    gone = await bench.failed("bash", command="echo")
    assert gone.hint is ErrorClass.EXECUTION_FAILED, "another try will not bring it back"
    assert not gone.effect_begun
    assert str(bench.workspace) not in gone.message


async def test_a_lone_surrogate_becomes_a_replacement_character(bench: Bench) -> None:  # j11
    outcome = await bench.done("bash", command="echo 'ok \ud83c done \U0001f378'")
    assert outcome.text == "ok \ufffd done \U0001f378"


async def test_call_ids_may_be_anything(bench: Bench) -> None:
    context = bench.context(call_id="../../etc/x\ud800 y", output_max=4096)
    outcome = await bench.done("bash", context, command="seq 9999")
    assert [path.parent for path in bench.artefacts.iterdir()] == [bench.artefacts]
    assert outcome.artefact
    assert partial_output(context).startswith("1\n2\n")


async def test_many_commands_at_a_time_keep_their_own_children(bench: Bench, needle: str, alive: Alive) -> None:
    contexts = [bench.context(timeout_s=0.6, on_timeout="kill") for _ in range(4)]
    calls = [
        bench.call("bash", each, command=f"setsid sleep {needle} & echo {number}; wait")
        for number, each in enumerate(contexts)
    ]
    quick = await bench.done("bash", command="sleep 0.2; echo quick")
    assert quick.text == "quick"
    outcomes = await asyncio.gather(*calls)
    assert [outcome.output for outcome in outcomes if not hasattr(outcome, "text")] == ["0\n", "1\n", "2\n", "3\n"]
    assert alive(needle) == []
