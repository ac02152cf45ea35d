"""Snapshot: what a store holds after its daemon ended, read from a copy, so that looking changes nothing.

The checks are written against the file's tables and share no code with the store that wrote them.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass
class Snapshot:
    """All rows, by what they are looked up by."""

    meta: Row
    acked: tuple[str, int] | None  # identity and commit of the mark beside the store
    sound: str
    tasks: dict[str, Row]
    sessions: dict[str, Row]
    nodes: dict[str, list[Row]]  # by task, in order
    effects: list[Row]
    events: list[Row]
    questions: dict[tuple[str, str], Row]
    messages: list[Row]
    revisions: dict[int, Row]
    starts: list[Row]
    restores: list[Row]
    jobs: list[Row]
    checkpoints: list[Row]
    counters: dict[str, Mapping[str, Any]]
    held: dict[str, str] = field(default_factory=dict)  # workspace -> task

    @cached_property
    def sequence(self) -> list[int]:
        """Nodes and events share one sequence."""
        return sorted(
            [row["seq"] for rows in self.nodes.values() for row in rows] + [row["seq"] for row in self.events]
        )


def read(database: Path) -> Snapshot:
    """Read a copy of a store whose daemon has ended. Raises sqlite3.Error where it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
        copy = Path(folder) / "copy.db"
        for ending in ("", "-wal"):
            source = database.with_name(database.name + ending)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + ending))
        mark = database.with_name(database.name + ".acked")
        words = mark.read_text().split() if mark.exists() else []
        with closing(sqlite3.connect(copy)) as connection:
            connection.row_factory = sqlite3.Row
            return _read(connection, (words[0], int(words[1])) if len(words) == 3 else None)


def _read(connection: sqlite3.Connection, acked: tuple[str, int] | None) -> Snapshot:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def rows(table: str, order: str = "rowid") -> list[Row]:
        if table not in tables:
            return []  # a crash between two migrations: nothing was acknowledged yet
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}")]

    return _whole(rows, acked, connection.execute("PRAGMA quick_check(1)").fetchone()[0])


def read_server(ask: Callable[[str], str]) -> Snapshot:
    """Read a store on a server. `ask` gives what a statement says."""

    def rows(table: str, order: str = "1") -> list[Row]:
        told = ask(
            f"SELECT coalesce(json_agg(to_json(_row)), '[]') FROM (SELECT * FROM {table} ORDER BY {order}) AS _row"
        )
        found: list[Row] = [
            {name: bytes.fromhex(value[2:]) if name == "chain" else value for name, value in row.items()}
            for row in json.loads(told)
        ]
        return found

    return _whole(rows, None, "ok")


def _whole(rows: Callable[..., list[Row]], acked: tuple[str, int] | None, sound: str) -> Snapshot:
    nodes: dict[str, list[Row]] = {}
    for row in rows("nodes", "seq"):
        nodes.setdefault(row["task"], []).append(row)
    return Snapshot(
        meta=next(iter(rows("meta")), {"commits": 0, "owner_epoch": 0}),
        acked=acked,
        sound=sound,
        tasks={row["id"]: row for row in rows("tasks")},
        sessions={row["task"]: row for row in rows("sessions", "task")},
        nodes=nodes,
        effects=rows("effects", "seq"),
        events=rows("events", "seq"),
        questions={(row["task"], row["id"]): row for row in rows("approvals", "seq")},
        messages=rows("messages"),
        revisions={row["number"]: row for row in rows("revisions", "number")},
        starts=rows("starts", "epoch"),
        restores=rows("restores", "seq"),
        jobs=rows("jobs", "seq"),
        checkpoints=rows("checkpoints", "seq"),
        counters={row["task"]: json.loads(row["counters"]) for row in rows("budgets", "task")},
        held={row["root"]: row["holder"] for row in rows("workspaces", "root")},
    )
