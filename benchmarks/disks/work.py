"""Work: what is done under the recorder: tasks from submit to end, and checkpoints of a workspace; each answer aloud.

Usage: python -m benchmarks.disks.work FOLDER SEED ROUNDS [PRAGMA ...]
"""

from __future__ import annotations

import asyncio
import random
import sys
from hashlib import sha256
from pathlib import Path

from harnessd.stores import open_store
from harnessd.workspace.checkpoints import Checkpoints
from tests.stores.acks import person, say


class Files:
    """A workspace that changes, and its checkpoints. Its own files are nobody's promise; what is kept of them is."""

    def __init__(self, root: Path, state: Path, luck: random.Random) -> None:
        self._root, self._luck = root, luck
        self._checkpoints = Checkpoints(state, segment_max=64 << 10)
        root.mkdir(exist_ok=True)

    def step(self) -> None:
        for _ in range(self._luck.randint(1, 4)):
            name = self._root / f"f{self._luck.randint(0, 9)}"
            if name.exists() and self._luck.random() < 0.2:
                name.unlink()
            else:
                name.write_bytes(self._luck.randbytes(self._luck.choice((0, 10, 700, 9000))))
        held = {path.name: sha256(path.read_bytes()).hexdigest() for path in self._root.iterdir()}
        say(manifest=self._checkpoints.take(str(self._root)).manifest, files=held)

    def close(self) -> None:
        self._checkpoints.close()


async def work(folder: Path, seed: int, rounds: int, pragmas: tuple[str, ...]) -> None:
    luck = random.Random(seed)
    for life in range(2):  # an orderly end folds the log in: that moment and the next start are tried as well
        store = open_store(folder / "state" / "harnessd.db", pragmas=pragmas)
        await store.open(f"life {life}")
        await store.release_all(1_800_000_000.0)
        say(ready=life)
        files = Files(folder.with_name("ws"), folder / "state" / "checkpoints", luck)
        for number in range(rounds):
            first = 1000 * life + 10 * number
            await asyncio.gather(*(person(store, first + n, luck) for n in range(luck.randint(1, 5))))
            await asyncio.to_thread(files.step)
        files.close()
        await store.close()
        say(closed=life)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), tuple(sys.argv[4:])))
