"""Hangs of real commands: who never ends is ended with all it started, who waits for a person fails at once.

The handed cases are named (d04 ...); the others are of their kind.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.ports import ToolOutcome
from harnessd.notify.command import Command
from harnessd.tools.process import OUTPUT_FILE_MAX

if TYPE_CHECKING:
    from tests.tools.conftest import Bench

Alive = Callable[[str], list[int]]
PY = "python3 -c '{}'"
DAEMON = """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(9999)  # {n}
    os._exit(0)
time.sleep(9999)  # {n}"""
FULL = """import subprocess, sys
writes = "import sys; sys.stderr.write(chr(120) * 262144)"
subprocess.Popen([sys.executable, "-c", writes], stderr=subprocess.PIPE).wait()  # {n}"""
DEAF = """import ctypes, os, time
ctypes.CDLL(None).prctl(1, 0)
if os.fork() == 0:
    os.setsid()
time.sleep(9999)  # {n}"""

# {n} is a number of seconds that nobody else sleeps for.
ENDLESS = {
    "d04 pipeline": "yes {n} | cat >/dev/null",
    "pipeline of many": "yes {n} | tee /dev/null | grep -v x | sort | head -c 1",
    "d18 setsid and wait": "setsid sleep {n} & wait",
    "process substitution": "cat <(sleep {n})",
    "coprocess": "coproc sleep {n}; wait",
    "holds stdout": "sleep {n} 2>/dev/null & wait",
    "holds descriptor 3": "exec 3>&1; sleep {n} 3>&1 >/dev/null 2>&1 & wait",
    "holds descriptor 9": "exec 9>&2; (setsid sleep {n} >/dev/null 2>&1 &) ; sleep {n}",
    "closes all it has": "exec 0<&- 1>&- 2>&-; sleep {n}",
    "closes every descriptor": PY.format("import os, time; os.closerange(0, 4096); time.sleep(9999)  # {n}"),
    "stops itself": "sleep {n} & kill -STOP $$",
    "stopped child": "sleep {n} & kill -STOP $!; wait",
    "whole group stopped": "setsid bash -c 'sleep {n} & kill -STOP 0' & wait",
    "ignores TERM and INT": "trap '' TERM INT HUP; while :; do sleep {n}; done",
    "ignores TERM in a child of its own session": "setsid bash -c 'trap \"\" TERM; sleep {n}; sleep {n}' & wait",
    "nohup and disown": "nohup sleep {n} >/dev/null 2>&1 & disown -a; sleep {n}",
    "daemonises": PY.format(DAEMON),
    "zombies": PY.format(
        "import os, time\nfor _ in range(60):\n if os.fork() == 0: os._exit(0)\ntime.sleep(9999)  # {n}"
    ),
    "many children": "for i in $(seq 80); do sleep {n} & done; wait",
    "children that fork on": (
        "f() { sleep {n} & [ $1 -gt 0 ] && f $(($1-1)); }; for i in 1 2 3; do f 12 & done; sleep {n}"
    ),
    "pipe that nobody writes to": "mkfifo p-{n}; cat p-{n}",
    "pipe that nobody reads": "mkfifo p-{n}; echo x > p-{n}",
    "lock that is held": PY.format(
        'import fcntl\na = open("l{n}", "w"); b = open("l{n}", "w")\nfcntl.flock(a, 2); fcntl.flock(b, 2)'
    ),
    "deadlock of threads": PY.format("import threading\nx = threading.Lock(); x.acquire(); x.acquire()  # {n}"),
    "full stderr pipe of its own": PY.format(FULL),
    "reads a terminal of its own": PY.format('import pty\npty.spawn(["sleep", "{n}"])'),
    "follows a file": "tail -f /dev/null --pid=$$ -s {n}",
    "busy without a word": PY.format("x = {n}\nwhile True: x += 1"),
    "folder deleted under it": 'mkdir d; cd d; rmdir "$PWD"; sleep {n}',
    "renamed": "exec -a init sleep {n}",
    "retries for ever": "until false; do sleep 0.05 {n}e-12; done",
    "server": "python3 -m http.server 0 --bind 127.0.0.1 --directory . {n}0 2>/dev/null || sleep {n}",
    "under a timeout of its own": "timeout -s KILL 900 sleep {n}",
    "xargs at once": "seq 4 | xargs -P 4 -I_ sleep {n}",
    "deaf to its parent's death": PY.format(DEAF),
}

ASKS = {
    "cat": "cat",
    "read": "read -r answer && echo got",
    "read of the terminal": "read -r answer </dev/tty",
    "prompt of the terminal": "exec 3<>/dev/tty; echo name? >&3; read -r x <&3",
    "input()": PY.format("input()"),
    "getpass": PY.format('import getpass; getpass.getpass("Password: ")'),
    "interpreter": "python3 -i -q; exit 5",
    "shell": "bash -i; exit 5",
    "select": "select x in a b; do echo $x; done; exit 5",
    "d07 git commit": (
        "git init -q . && touch f && git add f && git -c user.name=t -c user.email=t@example.invalid commit"
    ),
    "git commit with an editor of its own": (
        "git init -q . && touch f && git add f && git -c user.name=t -c user.email=t@example.invalid "
        "-c core.editor='cat >/dev/null; false' commit"
    ),
    "git asks for a user": "git -c credential.helper= clone -q http://127.0.0.1:9/x.git",
    "pager": "git -c core.pager='less' --paginate help -a >/dev/null; exit 5",
    "editor": "${EDITOR:-vi} f",
    "visual": '"$VISUAL" f',
    "crontab -e": "$EDITOR /etc/crontab",
    "ssh asks": 'SSH_ASKPASS_WORKS=1; "$SSH_ASKPASS" "Password: "',
    "cp -i": "touch a b; cp -i a b </dev/null; [ $? -eq 0 ] && exit 5",
    "rm -i": "touch a; rm -i a; exit 5",
}


@pytest.mark.parametrize("shape", ENDLESS)
async def test_who_never_ends_is_ended_whole_at_its_timeout(
    bench: Bench, needle: str, alive: Alive, shape: str
) -> None:
    # R3.11, R3.12: 124, the output so far, and nothing is left within 2 s of the limit
    context = bench.context(timeout_s=1.0, on_timeout="kill")
    started = time.monotonic()
    failure = await bench.failed("bash", context, command="echo begun\n" + ENDLESS[shape].replace("{n}", needle))
    assert time.monotonic() - started < 1.0 + 4.0  # the two seconds of a kill, and a busy machine
    assert (failure.hint, failure.exit_code) == (ErrorClass.TIMEOUT, 124)
    assert failure.output.startswith("begun\n")
    assert "timed out after 1000 ms" in failure.message
    assert alive(needle) == []


@pytest.mark.parametrize("shape", ASKS)
async def test_who_asks_a_person_fails_at_once(bench: Bench, shape: str) -> None:
    # R3.11, d07
    if "git" in shape and shutil.which("git") is None:
        pytest.skip("git is not installed")
    started = time.monotonic()
    outcome = await bench.call("bash", bench.context(timeout_s=20.0, on_timeout="kill"), command=ASKS[shape])
    assert isinstance(outcome, ToolOutcome), outcome
    assert time.monotonic() - started < 6.0
    assert outcome.is_error or shape == "cat"
    assert outcome.text


@pytest.mark.parametrize(
    "command",
    [
        "sleep {n} </dev/null >/dev/null & echo started",  # d05: holds stderr
        "sleep {n} </dev/null 2>/dev/null & echo started",  # holds stdout
        "sleep {n} & echo started",  # holds both
        "exec 7>&1; sleep {n} >/dev/null 2>&1 & echo started",
        "setsid nohup sleep {n} & disown; echo started",
        "(setsid bash -c 'trap \"\" TERM HUP; sleep {n}' &) ; echo started",
        "sleep {n} & kill -STOP $!; echo started",
        "coproc sleep {n}; echo started",
    ],
)
async def test_a_result_comes_at_once_and_what_is_left_is_a_job(
    bench: Bench, needle: str, alive: Alive, command: str
) -> None:
    # R3.12, d05, d15
    started = time.monotonic()
    outcome = await bench.done("bash", bench.context(timeout_s=10.0), command=command.replace("{n}", needle))
    assert time.monotonic() - started < 2.0
    assert outcome.text.startswith("started")
    assert outcome.job is not None
    assert bench.jobs.running("t1") == [outcome.job]
    assert "nothing of it is left" in (await bench.done("job_stop", job=outcome.job)).text
    assert alive(needle) == []


async def test_a_left_over_server_ends_with_its_task_and_frees_its_port(bench: Bench, until: Any) -> None:
    # R3.12, d15
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outcome = await bench.done(
        "bash", command=f"nohup python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1 & echo up"
    )
    assert outcome.job

    def answers() -> bool:
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", port)) == 0

    await until(answers, 10.0)
    assert await bench.jobs.end_task("t1") == 1
    assert not answers()
    assert bench.jobs.running("t2") == [], "another task does not inherit it"


async def test_a_long_quiet_command_within_its_limit_is_left_alone(bench: Bench) -> None:
    # R3.11, d17
    outcome = await bench.done("bash", bench.context(timeout_s=30.0), command="sleep 1.5; echo ok")
    assert outcome.text == "ok"


HELPER_ANSWERS_LATE = """
import subprocess, sys
code = '''
import sys, json
for line in sys.stdin:
    sys.stderr.write("x" * 262144); sys.stderr.flush()
    print(json.dumps({"ok": 1}), flush=True)
'''
helper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
helper.stdin.write("ask\\n"); helper.stdin.flush()
print(helper.stdout.readline().strip(), flush=True)
helper.stdin.close(); helper.wait()
"""


async def test_a_quarter_of_a_mebibyte_on_stderr_holds_no_answer_up(bench: Bench) -> None:
    # d09: stderr is read whatever happens on stdout, and bounded
    (bench.workspace / "helper.py").write_text(HELPER_ANSWERS_LATE)
    started = time.monotonic()
    context = bench.context(timeout_s=10.0, output_max=4096)
    outcome = await bench.done("bash", context, command="python3 helper.py")
    assert time.monotonic() - started < 4.0
    assert '{"ok": 1}' in outcome.text
    assert len(outcome.text) < 4096


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_both_sides_write_a_mebibyte_before_they_read(stream: str) -> None:
    # d10: what a program is given is no pipe, and what it says is read while it runs
    program = (
        f"import sys; sys.{stream}.write('y' * 1048576 + chr(10)); sys.{stream}.flush();"
        " data = sys.stdin.readline(); print(len(data), flush=True)"
    )
    channel = Command(("/usr/bin/env", "python3", "-c", program), {"PATH": "/usr/bin:/bin:/usr/local/bin"}, 10.0)
    started = time.monotonic()
    delivery = await channel.deliver({"text": "z" * 1048576})
    assert time.monotonic() - started < 8.0
    assert delivery.done, delivery
    assert "10485" in delivery.said


@pytest.mark.parametrize(
    "command", ["cat /dev/zero", "cat /dev/zero >&2", "yes; true", "while :; do echo {n}; done | cat"]
)
async def test_a_flood_is_bounded_on_disk_and_in_memory(bench: Bench, command: str) -> None:
    # R3.12
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    context = bench.context(timeout_s=20.0 if "echo" not in command else 1.0, on_timeout="kill", output_max=65536)
    failure = await bench.call("bash", context, command=command)
    assert isinstance(failure, Failure)
    assert failure.exit_code in (124, 137)
    assert len(failure.output.encode()) <= 65536
    assert sum(file.stat().st_size for file in bench.artefacts.iterdir()) <= OUTPUT_FILE_MAX
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


async def test_a_hung_command_holds_no_other_one_up(bench: Bench, needle: str) -> None:
    # R6.1a: one stalled session blocks no other
    stalled = [
        asyncio.create_task(
            bench.call(
                "bash",
                bench.context(task=f"s{n}", timeout_s=4.0, on_timeout="kill"),
                command=f"trap '' TERM; sleep {needle}",
            )
        )
        for n in range(8)
    ]
    await asyncio.sleep(0.5)
    started = time.monotonic()
    assert (await bench.done("bash", command="echo quick")).text == "quick"
    assert time.monotonic() - started < 2.0
    assert all(isinstance(outcome, Failure) for outcome in await asyncio.gather(*stalled))
