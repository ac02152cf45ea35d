"""A program that works on a store and says on its standard output what was acknowledged, until it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harnessd.domain.effect import EffectState
from harnessd.domain.ports import Submitted
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    MovePointer,
    PlanEffect,
    Record,
    SaveCounters,
    SettleEffect,
)
from harnessd.domain.task import Counters, Task, Verb
from harnessd.stores import SqlStore, open_store
from tests.stores.scenes import NOW, assistant, draft, effect, lease_of, result, user


def say(**acked: Any) -> None:
    """One line, out of this process before anything else happens."""
    os.write(1, json.dumps(acked).encode() + b"\n")


def killer(point: str, hit: int) -> Callable[[str], None]:
    """Kill this process at the `hit`-th time the point is passed."""
    left = {point: hit}

    def crashpoint(name: str) -> None:
        if name in left:
            left[name] -= 1
            if left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return crashpoint


async def work(store: SqlStore, task: Task, dice: random.Random) -> None:
    """One task from lease to end."""
    lease, pointer, done = lease_of(task), task.pointer, len(await store.effects(task.id))
    nodes = len(await store.nodes(task.id))
    for turn in range(done, done + dice.randint(1, 4)):
        asked, replied, answered = f"n{nodes + 1}", f"n{nodes + 2}", f"n{nodes + 3}"
        await store.record(
            lease, [AppendNode(user(asked, pointer)), PlanEffect(effect(f"m{turn}", "model", asked))], NOW
        )
        say(task=task.id, node=asked)
        reply = assistant(replied, asked, "x" * dice.randint(0, 3000), ("c1",))
        await store.record(lease, [SettleEffect(f"m{turn}", EffectState.DONE), AppendNode(reply)], NOW)
        say(task=task.id, node=replied)
        await store.record(lease, [PlanEffect(effect(f"e{turn}", node=replied))], NOW)
        say(task=task.id, effect=f"e{turn}")
        outcome = SettleEffect(f"e{turn}", EffectState.DONE, {"turn": turn})
        rest: list[Record] = [AppendNode(result(answered, replied, "c1")), SaveCounters(Counters(turns=turn + 1))]
        await store.record(lease, [outcome, *rest], NOW)
        say(task=task.id, settled=f"e{turn}", node=answered, turns=turn + 1)
        nodes, pointer = nodes + 3, answered
    match dice.randint(0, 3):
        case 0:
            await store.record(lease, [MovePointer(pointer, "n1")], NOW)
            say(task=task.id, pointer="n1")
            await store.record(lease, [ChangeTask(Verb.HAND_BACK)], NOW)
        case 1:
            ask = AskPerson(f"a{nodes}", "question", "n1", None, "Which?", ("go-on",))
            await store.record(lease, [ask, ChangeTask(Verb.ASK)], NOW)
            say(task=task.id, state="waiting")
        case _:
            await store.record(lease, [ChangeTask(Verb.COMPLETE, sentence="Done.")], NOW)
            say(task=task.id, state="completed")


async def person(store: SqlStore, number: int, dice: random.Random) -> None:
    """Submit one task twice, then claim whatever is next."""
    wish = draft(f"Task {number}", key=f"k{number}")
    for _ in range(2):
        answer = await store.submit(wish, NOW)
        assert isinstance(answer, Submitted), answer
        say(key=wish.key, task=answer.task.id)
    for task in await store.claim("child", 1, NOW, 20):
        say(task=task.id, epoch=lease_of(task).epoch)
        await work(store, task, dice)


async def main(path: Path, seed: int, point: str, hit: int) -> None:
    dice = random.Random(seed)
    store = open_store(path, crashpoint=killer(point, hit))
    await store.open("child")
    say(ready=True)
    for round_ in range(8 if point else 10_000):
        await asyncio.gather(*(person(store, 10 * round_ + n, dice) for n in range(dice.randint(1, 10))))
        if point:
            await store.backup(str(path.with_name("backup.db")))
            say(backup=round_)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
