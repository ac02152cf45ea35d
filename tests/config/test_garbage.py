"""The collector rests while policies are read: no walk of what is alive stops the loop in a reload, nothing is kept."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from harnessd.config.files import builtin_folder
from harnessd.config.garbage import MOMENTS_KEPT, Collector
from harnessd.config.reload import Candidate, Reloader
from tests.config.conftest import Site


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    assert gc.isenabled()


def test_it_rests_until_the_last_has_done() -> None:
    collector = Collector()
    with collector.rests():
        with collector.rests():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="as it comes"), collector.rests():
        raise ValueError("as it comes")
    assert gc.isenabled()


async def test_a_reload_of_the_full_set_walks_nothing(site: Site) -> None:
    # The event loop is blocked at most 10 ms by a reload of the full shipped set
    for file in builtin_folder().glob("*.yaml"):
        shutil.copy(file, site.policies)

    sets: list[weakref.ref[Any]] = []
    live: list[Candidate] = []

    async def tell(outcome: Any) -> None:
        live[:] = [outcome]
        sets.append(weakref.ref(outcome.policies.policies["retry", "default"].shape))

    reloader = Reloader(site.load(), {}, tell)
    reader: list[int] = []
    loop_thread = threading.get_ident()

    def walked(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and (threading.get_ident() != loop_thread or info["generation"] == 2):
            reader.append(info["generation"])

    gc.collect()
    gc.freeze()
    gc.callbacks.append(walked)
    try:
        for number in range(6):
            site.turns(100 + number)
            assert isinstance(await reloader.reload("reload"), Candidate)
    finally:
        gc.callbacks.remove(walked)
    assert len([generation for generation in reader if generation]) == 0
    assert sum(one() is not None for one in sets[:-2]) == 0, "what was set aside is freed when nobody needs it"


def test_cycles_that_were_set_aside_are_found_once_a_full_walk_is_due() -> None:
    class Knot:
        """Refers to itself."""

        def __init__(self) -> None:
            self.me = self

    collector = Collector(moments=MOMENTS_KEPT - 1)
    knot = Knot()
    lives = weakref.ref(knot)
    assert not collector.walk_if_due()
    with collector.rests():
        pass
    del knot
    gc.collect()
    assert lives() is not None, "set aside while it was alive"
    assert collector.walk_if_due()
    assert lives() is None
    assert not collector.walk_if_due()
