"""Jobs: background commands are seen, readable, stoppable, bounded in life, and end with their task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harnessd.domain.failure import ErrorClass
from harnessd.domain.jobs import JobBook, KeptJob
from harnessd.domain.ports import JobEnded
from harnessd.runtime.redact import Redactor
from harnessd.tools import Jobs, builtin_tools, partial_output
from harnessd.workspace.confine import confine
from tests.tools.conftest import Bench

Alive = Callable[[str], list[int]]


async def _start(bench: Bench, command: str, task: str = "t1", **limits: Any) -> str:
    context = bench.context(task=task, timeout_s=0.3, on_timeout="background", **limits)
    outcome = await bench.done("bash", context, command=command)
    assert outcome.job
    return outcome.job


async def test_a_job_is_read_while_it_runs_and_on_from_where_one_was(bench: Bench, needle: str) -> None:
    job = await _start(bench, f"echo one; sleep {needle}")
    first = await bench.done("job_output", job=job)
    assert "is running" in first.text
    assert first.text.endswith("read on from offset 4.\none\n")
    again = await bench.done("job_output", job=job, offset=4)
    assert again.text.endswith("read on from offset 4.\n(nothing new)")


class WaitingBook(JobBook):
    """A disk without room: what is begun is written down when there is some again."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.asked = asyncio.Event()

    async def begun(self, job: KeptJob) -> None:
        self.asked.set()
        await self.room.wait()

    async def ended(self, job: KeptJob, text: str) -> None:
        """Nobody looks."""

    async def find(self, task: str, job: str) -> KeptJob | None:
        return None


async def test_nobody_hears_of_a_job_before_it_is_written_down(bench: Bench, needle: str) -> None:
    # J19
    book = WaitingBook()
    bench.jobs = Jobs(book)
    bench.tools = builtin_tools(confine, bench.jobs)
    starting = asyncio.create_task(_start(bench, f"sleep {needle}"))
    async with asyncio.timeout(20):
        await book.asked.wait()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not starting.done()
        book.room.set()
        job = await starting
    assert bench.jobs.running("t1") == [job]


async def test_a_stopped_job_is_gone_and_stopping_again_does_nothing(bench: Bench, needle: str, alive: Alive) -> None:
    told: list[JobEnded] = []
    bench.jobs.listen(told.append)
    job = await _start(bench, f"setsid sleep {needle} & sleep {needle}")
    assert "nothing of it is left" in (await bench.done("job_stop", job=job)).text
    assert alive(needle) == []
    assert "nothing to stop" in (await bench.done("job_stop", job=job)).text
    assert "was stopped" in (await bench.done("job_output", job=job)).text
    await asyncio.sleep(0.05)
    assert told == []  # who stops a job needs no waking


async def test_a_job_ends_at_its_life_limit_with_124(bench: Bench, needle: str, alive: Alive, until: Any) -> None:
    # R3.12
    told: list[JobEnded] = []
    bench.jobs.listen(told.append)
    await _start(bench, f"echo begun; sleep {needle}", life_s=0.3)
    await until(lambda: told)
    assert told[0].exit_code == 124
    assert "life limit of 0.3 s" in told[0].text
    assert "begun" in told[0].text
    assert alive(needle) == []


async def test_what_a_job_left_behind_counts_as_running_until_it_ends(bench: Bench, needle: str, until: Any) -> None:
    told: list[JobEnded] = []
    bench.jobs.listen(told.append)
    job = await _start(bench, f"sleep {needle} & sleep 0.4; exit 3")
    await until(lambda: told)
    assert told[0].exit_code == 3
    assert "1 process it left behind still run" in (await bench.done("job_output", job=job)).text
    assert bench.jobs.running("t1") == [job]


async def test_the_end_of_left_over_processes_is_told(bench: Bench, until: Any) -> None:
    told: list[JobEnded] = []
    bench.jobs.listen(told.append)
    outcome = await bench.done("bash", command="(sleep 0.5; echo bye) & echo started")
    assert outcome.job
    await until(lambda: told)
    assert told[0].job == outcome.job
    assert "bye" in told[0].text
    assert bench.jobs.running("t1") == []


async def test_the_end_of_a_task_ends_its_jobs_and_no_other_ones(bench: Bench, needle: str, alive: Alive) -> None:
    await _start(bench, f"setsid sleep {needle}1 & sleep {needle}1")
    await _start(bench, f"sleep {needle}1")
    other = await _start(bench, f"sleep {needle}2", task="t2")
    assert await bench.jobs.end_task("t1") == 2
    assert alive(f"{needle}1") == []
    assert bench.jobs.running("t1") == []
    assert bench.jobs.running("t2") == [other]
    assert await bench.jobs.end_task("t1") == 0
    await bench.jobs.aclose()
    assert alive(needle) == []


async def test_the_end_of_a_task_ends_a_call_that_is_still_waited_for(bench: Bench, needle: str, until: Any) -> None:
    calling = asyncio.create_task(bench.call("bash", command=f"sleep {needle}"))
    await until(lambda: bench.jobs.signs_of_life("t1"))
    assert await bench.jobs.end_task("t1") == 1
    outcome = await calling
    assert outcome.exit_code == 137
    assert bench.jobs.signs_of_life("t1") == {}


async def test_a_task_sees_its_own_jobs_only(bench: Bench, needle: str) -> None:
    job = await _start(bench, f"sleep {needle}")
    failure = await bench.failed("job_stop", bench.context(task="t2"), job=f"{job}x")
    assert failure.hint is ErrorClass.EXECUTION_FAILED
    assert f"no job {job}x" in failure.message
    assert "No job of this task is running" in failure.advice
    assert job in (await bench.failed("job_output", job="nonsense")).advice


async def test_after_a_restart_a_jobs_output_is_still_there(bench: Bench, needle: str) -> None:
    job = await _start(bench, f"echo before; sleep {needle}")
    await bench.jobs.aclose()
    restarted = builtin_tools(confine, Jobs())
    outcome = await restarted["job_output"].run({"job": job}, bench.context())
    assert "does not run" in str(getattr(outcome, "text", ""))
    assert "before\n" in str(getattr(outcome, "text", ""))
    stopped = await restarted["job_stop"].run({"job": job}, bench.context())
    assert "nothing to stop" in str(getattr(stopped, "text", ""))


async def test_a_repeated_call_id_does_not_write_into_a_running_jobs_file(bench: Bench, needle: str) -> None:
    context = bench.context(call_id="same", timeout_s=0.3)
    first = await bench.done("bash", context, command=f"echo first; sleep {needle}")
    second = await bench.done("bash", context, command=f"echo second; sleep {needle}")
    assert (first.job, second.job) == ("same", "same-2")
    assert (await bench.done("job_output", job="same")).text.endswith("first\n")


async def test_a_repeated_call_id_keeps_the_earlier_calls_artefact(bench: Bench) -> None:
    first = await bench.done("bash", bench.context(call_id="same", output_max=4096), command="seq 9999")
    before = time.time()
    assert partial_output(bench.context(call_id="same"), since=before) == ""
    second = await bench.done("bash", bench.context(call_id="same", output_max=4096), command="seq 5000 9999; echo end")
    assert first.artefact
    assert second.artefact
    assert Path(first.artefact).read_text().startswith("1\n")
    assert partial_output(bench.context(call_id="same")).startswith("5000\n")


async def test_a_listener_that_fails_does_not_end_the_watch(
    bench: Bench, needle: str, alive: Alive, until: Any
) -> None:
    def fail(_: JobEnded) -> None:
        raise RuntimeError("a listener's own fault")

    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: reported.append(str(fault["exception"])))
    bench.jobs.listen(fail)
    job = await _start(bench, f"sleep {needle} & sleep 0.3", life_s=0.8)
    await until(lambda: reported)
    assert reported == ["a listener's own fault"]
    assert bench.jobs.running("t1") == [job]
    await until(lambda: not bench.jobs.running("t1"))
    assert alive(needle) == []


async def test_a_job_name_cannot_lead_out_of_the_artefacts(bench: Bench) -> None:
    (bench.workspace.parent / "secret.out").write_text("CANARY")
    for name in ("../secret", "..", "/etc/passwd", "a/b", ""):
        failure = await bench.failed("job_output", job=name)
        assert failure.hint is ErrorClass.INVALID_ARGUMENTS


async def test_whole_outputs_lose_their_secrets_on_disk(tmp_path: Path, needle: str) -> None:
    """A secret that a command printed is in no file that is kept: of a cut result, a killed call, a job."""
    secret = "sk-test-4711-CANARY"
    bench = Bench(tmp_path, scrub=Redactor([secret]).file)
    prints = f"for i in $(seq 3000); do echo $i {secret}; done"
    cut = await bench.done("bash", bench.context(output_max=4096), command=prints)
    assert cut.artefact
    killed = bench.context(timeout_s=1.0, on_timeout="kill", output_max=4096)
    await bench.failed("bash", killed, command=f"{prints}; sleep {needle}")
    job = await _start(bench, f"{prints}; sleep {needle}", output_max=4096)
    await bench.done("job_output", job=job)
    await bench.jobs.aclose()
    files = list(bench.artefacts.iterdir())
    assert len(files) == 3
    for file in files:
        assert secret not in file.read_text()
        assert "3000 [secret]" in file.read_text()
