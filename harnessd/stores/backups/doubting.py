"""Doubting: what happened between a backup and its restore; what is known of it, and who is told that it is not.

A task of the backup may have gone on in the store that it replaces: a mail is sent, and the backup does not know it.
Where the old store is still there and whole, it is asked. Where not, nobody knows, and then a person is asked before
such a task does anything that cannot be undone.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from harnessd.domain.durable.backup import Act
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.task import TaskState
from harnessd.stores.database import Statement, queries
from harnessd.stores.files import AckedMark, examine
from harnessd.stores.kernel import event
from harnessd.stores.rows import encode

_TOLD_MAX = 10  # acts that a task is told by name


def acts_since(database: Path, fresh: Path) -> list[Act] | None:
    """The irreversible acts that the old store knows beyond the backup; None where it cannot be trusted to know.

    It can where it is sound, holds everything it acknowledged, and is the same history gone on.
    """
    if not database.exists():
        return None
    try:
        mark = AckedMark(database)
        try:
            acked = mark.read()
        finally:
            mark.close()
        with _reading(database) as old, closing(sqlite3.connect(fresh, isolation_level=None)) as backup:
            if old.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                return None
            found, copied = examine(old, database), examine(backup, fresh)
            whole = acked is not None and acked[0] == found.store and acked[1] <= found.commits
            if not whole or copied.store != found.store or copied.commits > found.commits:
                return None
            newest = backup.execute(queries()["newest_effect"]).fetchone()
            at = {"seq": newest[0] if newest else 0}
            if newest is not None and old.execute(queries()["effect_at"], at).fetchone() != newest[1:]:
                return None
            rows = old.execute(queries()["acts_behind"], at).fetchall()
    except (sqlite3.Error, HarnessError, OSError):
        return None
    return [Act(*row) for row in rows]


@contextmanager
def _reading(database: Path) -> Iterator[sqlite3.Connection]:
    """The old store as it lies there, its log included; a connection that cannot write leaves both as they are."""
    uri = f"file:{quote(os.fspath(database))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection


def tell_tasks(
    fresh: Path, taken_at: float, now: float, since: Sequence[Act] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write into the copy what its tasks must know; gives those that go on, and those that are in doubt."""
    live: list[str] = []
    doubted: list[str] = []
    with closing(sqlite3.connect(fresh, isolation_level=None)) as copy:
        rows = copy.execute(queries()["tasks_and_counters"]).fetchall()
        copy.execute("BEGIN IMMEDIATE")
        data = {"from": taken_at, "until": now, "known": since is not None, "acts": len(since or ())}
        _run(copy, event(EventType.STORE_RESTORED, now, None, data | {"sentence": _sentence(taken_at, since)}))
        for task, state, counters, doing in rows:
            acts = [act for act in since or () if act.task == task]
            in_doubt = since is None or bool(acts)
            if in_doubt:
                doubted.append(task)
                stored = json.loads(counters) if counters else {}
                begun = min(taken_at, stored.get("doubt", {}).get("from", taken_at))
                stored["doubt"] = {"from": begun, "until": now}
                row = {"task": task, "counters": encode(stored), "doing": doing or ""}
                _run(copy, Statement("save_counters", row))
            if not TaskState(state).ended:
                live.append(task)
                said = {"task": task, "text": _words(taken_at, now, acts, known=not in_doubt), "now": now}
                _run(copy, Statement("insert_notice", said | {"kind": "aside"}))
            about = {"from": taken_at, "until": now, "in_doubt": in_doubt, "acts": [act.effect for act in acts]}
            _run(copy, event(EventType.STORE_RESTORED, now, task, about))
        copy.execute("COMMIT")
    return tuple(live), tuple(doubted)


def _run(copy: sqlite3.Connection, statement: Statement) -> None:
    copy.execute(queries()[statement.name], statement.params)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _sentence(taken_at: float, since: Sequence[Act] | None) -> str:
    words = f"The store was restored from a backup of {_clock(taken_at)}"
    if since is None:
        return f"{words}; what tasks did after it is not known."
    return f"{words}; the store before it knew of {len(since)} acts after it that cannot be undone."


def _words(taken_at: float, now: float, acts: Sequence[Act], *, known: bool) -> str:
    """What the agent is told: what is known is said, nothing is guessed."""
    words = (
        f"This session was restored at {_clock(now)} from a backup of {_clock(taken_at)}. Files of the workspace may be"
        " newer than this history: look before you write."
    )
    if known:
        return f"{words} Nothing that cannot be undone was done in between."
    if acts:
        names = "; ".join(f"{act.name} ({act.state}) at {_clock(act.at)}" for act in acts[:_TOLD_MAX])
        words += f" In between you did what this history does not hold: {names}. Do not do it again."
    else:
        words += " What you did in between is not known: look whether a thing is done before you do it."
    return f"{words} A person is asked before anything that cannot be undone."
