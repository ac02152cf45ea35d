"""What the store's tests have in common: places, drafts, nodes, a store that is closed again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Block, Message, TextBlock, ToolUseBlock
from harnessd.domain.ports import Refused, Submitted
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload
from harnessd.domain.task import Lease, Task, TaskDraft
from harnessd.stores import SqlStore, open_store
from tests.stores.postgres_server import new_store

NOW = 1_800_000_000.0
MEMORY = Path("/dev/shm")
PLACES = ("disk", "memory", "postgres")


@dataclass(frozen=True, slots=True)
class Server:
    """A store's address, in place of a folder."""

    url: str

    def __truediv__(self, file: str) -> str:
        return self.url


@contextmanager
def folder(place: str, tmp_path: Path) -> Iterator[Path | Server]:
    """A folder on the disk, or on a memory file system; or a server, which holds a store where a folder has a file."""
    if place == "postgres":
        yield Server(new_store())
        return
    if place == "disk":
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="harnessd-test-", dir=MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@asynccontextmanager
async def opened(path: Path | str, owner: str = "a1", **options: Any) -> AsyncIterator[SqlStore]:
    """A store that is closed again, whatever happens."""
    if isinstance(path, str):
        options = {"node": {"clock": "caller"}, **options}  # these tests say what time it is
    store = open_store(path, **options)
    await store.open(owner)
    try:
        yield store
    finally:
        await store.close()


def draft(prompt: str = "Do it", workspace: str = "", **facts: Any) -> TaskDraft:
    return TaskDraft(prompt=prompt, agent=facts.pop("agent", "coder"), workspace=workspace, **facts)


async def submitted(store: SqlStore, *args: Any, now: float = NOW, **facts: Any) -> Task:
    answer = await store.submit(draft(*args, **facts), now)
    assert isinstance(answer, Submitted), answer
    return answer.task


async def claimed(store: SqlStore, now: float = NOW, ttl_s: float = 20.0) -> Task:
    (task,) = await store.claim("a1", 1, now, ttl_s)
    return task


async def running(store: SqlStore, *args: Any, **facts: Any) -> tuple[Task, Lease]:
    await submitted(store, *args, **facts)
    task = await claimed(store)
    return task, lease_of(task)


def lease_of(task: Task) -> Lease:
    assert task.lease is not None
    return task.lease


def a_task(answer: Task | Refused) -> Task:
    assert isinstance(answer, Task), answer
    return answer


def refused(answer: object) -> Refused:
    assert isinstance(answer, Refused), answer
    assert answer.message.endswith("."), answer
    return answer


def user(id_: str, parent: str | None, text: str = "Do it", at: float = NOW) -> Node:
    return Node(id_, parent, NodeKind.USER, user_payload(text), at)


def assistant(id_: str, parent: str | None, text: str = "", calls: tuple[str, ...] = (), at: float = NOW) -> Node:
    blocks: tuple[Block, ...] = (TextBlock(text), *(ToolUseBlock(call, "bash", {"command": "true"}) for call in calls))
    return Node(id_, parent, NodeKind.ASSISTANT, assistant_payload(Message("assistant", blocks)), at)


def result(id_: str, parent: str | None, call: str, text: str = "ok", at: float = NOW) -> Node:
    return Node(id_, parent, NodeKind.TOOL_RESULT, result_payload(call, text, is_error=False), at)


def effect(id_: str, kind: str = "tool", node: str = "n1", call: str = "c1", **facts: Any) -> Effect:
    name = "tool/bash" if kind == "tool" else "model/primary"
    return Effect(id_, kind, node, call, name, EffectClass.REVERSIBLE, EffectState.INTENT, at=NOW, **facts)
