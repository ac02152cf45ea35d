"""Rollback sweep: kill -9 a real daemon at seeded moments of rollbacks and of their undoing; files and pointer match.

    python benchmarks/rollback_sweep.py --runs 200 --seed 1

One task, back and forth. A third of the runs kill at a named crash point, the others at a moment in time. Checked after
each: the next daemon carries on by itself; the workspace is exactly as before or exactly as after, byte for byte, and
the pointer is the one that belongs to it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harnessd.cli.client import Client, Problem
from tests.running import Running, running, settings
from tests.simulated import running_simulator
from tests.workspace.trees import Known, look

SETUP = """
git init -q; mkdir src empty; for i in $(seq 60); do echo $i >src/f$i; done
echo '* text=auto' >.gitattributes; printf 'a\\r\\n' >crlf; ln -s src/f1 link; chmod 750 src
head -c 300000 /dev/urandom >bin
"""
SPOIL = (
    "rm -rf src/f1* empty crlf; for i in $(seq 60); do echo x$i >new$i; done; chmod 700 src; ln -sf bin link; : >bin"
)
SCRIPT = {
    "turns": [
        {"when": {"results": {"max": 0}}, "call": {"tool": "bash", "args": {"command": SPOIL}}},
        {"say": "Done."},
    ]
}
POINTS = {"J16": 1, "J16-before": 1, "J16-file": 60}
IN_TIME_S = 0.4


def sweep(folder: Path, runs: int, seed: int, *, say: bool = True) -> list[str]:
    """Kill, start again, compare; gives what was broken, one line for each run."""
    with running_simulator({"m": SCRIPT}) as service, running(folder) as daemon:
        daemon.configure(settings(folder, service.url, {"m": "anthropic"}))
        space = daemon.workspace("w")
        subprocess.run(["bash", "-ec", SETUP], cwd=space, check=True)
        before = look(space)
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="m", workspace=str(space))
        head = str(daemon.until_ended(client, task)["node"])
        sides = {"n1": before, head: look(space)}
        broken = []
        for number in range(seed, seed + runs):
            luck = random.Random(number)
            point = luck.choice(list(POINTS)) if luck.random() < 0.34 else ""
            how = f"{point}:{luck.randint(1, POINTS[point])}" if point else f"after {luck.random() * IN_TIME_S:.3f} s"
            at = pointer(client, task)
            wish = {"to": head} if at == "n1" else {"to": "n1"}
            _kill(daemon, task, wish, how)
            client = daemon.start()
            wrong = list(_compare(client, task, space, sides))
            broken += [f"seed {number}, {how}, to {wish['to']}: {words}" for words in wrong]
            if say:
                print(
                    f"seed {number:4}  {how:16} {at} to {wish['to']:4} {'BROKEN ' + str(wrong) if wrong else 'ok'}",
                    flush=True,
                )
        return broken


def pointer(client: Client, task: str) -> str:
    """Where the task stands."""
    return str(client.get(f"/v1/tasks/{task}")["node"])


def _kill(daemon: Running, task: str, wish: dict[str, str], how: str) -> None:
    if ":" in how:
        daemon.stop()
        daemon.start(HARNESSD_CRASH=how)
    asker = threading.Thread(target=_ask, args=(daemon.socket, task, wish))
    asker.start()
    if ":" in how:
        asker.join(60)
    else:
        time.sleep(float(how.split()[1]))
    with contextlib.suppress(ProcessLookupError):
        daemon.kill()
    asker.join(60)


def _ask(socket: str, task: str, wish: dict[str, str]) -> None:
    with contextlib.closing(Client(socket)) as client, contextlib.suppress(Problem):  # the daemon dies under it
        client.post(f"/v1/tasks/{task}/rollback", wish)


def _compare(client: Client, task: str, space: Path, sides: dict[str, Known]) -> Iterator[str]:
    until = time.monotonic() + 60
    while (row := client.get(f"/v1/tasks/{task}"))["state"] == "rolling_back" and time.monotonic() < until:
        time.sleep(0.02)
    if row["state"] not in ("paused", "completed"):
        yield f"it is {row['state']}"
    now = look(space)
    if row["node"] not in sides:
        yield f"the pointer is {row['node']}"
    elif now != sides[row["node"]]:
        wanted = sides[row["node"]]
        differ = sorted(path for path in {*now, *wanted} if now.get(path) != wanted.get(path))
        yield f"the files are not those of {row['node']}: {differ[:5]}"


def main() -> int:
    """Run the sweep and print its books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollbacks-") as folder:
        broken = sweep(Path(folder), asked.runs, asked.seed)
    print(*broken, sep="\n")
    print(f"{asked.runs} kills, {len(broken)} broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
