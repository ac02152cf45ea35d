"""The performance gates, each beside its control in one run: `make bench`, or `make bench ARGS="steps tasks"`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import import_module

from benchmarks.gate import Gate, table

BENCHES = {
    "steps": "durable steps beside raw SQLite and LangGraph: speed, slow disk, syncs, long histories",
    "tasks": "the queue beside huey: speed, CPU, start after a silence",
    "guard": "what the gateway adds to a call that succeeds, beside tenacity",
    "calls": "100 model calls in flight, and 1000 held streams, beside bare httpx",
    "saves": "a policy that is saved: soon in force, once a save, never torn; beside watchfiles",
    "checkpoints": "a look at a workspace after one change beside `git status`; a dirty list; syncs",
    "long_task": "2,000 steps in a window of 32,000 tokens on the strict simulator: a late step beside an early one",
    "status": "`harnessctl status` beside `python -c pass`",
    "idle": "a daemon with nothing to do: wake-ups and memory",
}


def main() -> int:
    """Run what is asked for; exit status 1 if a gate was missed."""
    about = "\n".join(f"  {name:<11} {what}" for name, what in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks", epilog=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", nargs="*", metavar="BENCH", help=f"some of: {', '.join(BENCHES)}; default all")
    wanted = parser.parse_args().bench or list(BENCHES)
    if unknown := set(wanted) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    gates: list[Gate] = []
    failed: list[str] = []
    for name in wanted:
        began = time.monotonic()
        print(f"{name}: {BENCHES[name]} ...", flush=True)
        try:
            gates += import_module(f"benchmarks.{name}").gates()
        except Exception as error:  # noqa: BLE001 - whatever it was, the figures of the other benches are worth having
            print(f"  could not be measured: {error}")
            failed.append(name)
        print(f"  took {time.monotonic() - began:.0f} s, load now {os.getloadavg()[0]:.1f}", flush=True)
    print()
    print(table(gates))
    missed = [gate.name for gate in gates if not gate.kept]
    print(
        f"\n{len(gates) - len(missed)} of {len(gates)} gates kept"
        + (f"; missed: {', '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
