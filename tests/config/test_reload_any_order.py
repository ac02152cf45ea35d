"""Reload under anything that can happen to a folder: what is in force is always one whole valid set (F28, G14)."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from harnessd.config.load import ReadPolicies, read_policies
from harnessd.config.reload import Candidate, Outcome, Refusal, Reloader
from tests.config.conftest import Site

NAMES = ("budget.yaml", "retry.yaml", "team.yaml")
GOOD = (
    "kind: budget\nlimits: {{turns: {n}}}\n",
    "kind: budget\nname: long\nlimits: {{turns: {n}}}\n",
    "kind: retry\nmodel: {{retries: {n}}}\n",
    "kind: limits\nrules: [{{for: model/primary, concurrency: {n}}}]\n",
)


def replaced(site: Site, path: Path, text: str, chance: random.Random) -> None:
    temporary = site.root / "next"
    temporary.write_text(text)
    if not path.is_dir():
        temporary.replace(path)


def half_written(site: Site, path: Path, text: str, chance: random.Random) -> None:
    path.write_text(text[: chance.randint(0, len(text))])


def deleted(site: Site, path: Path, text: str, chance: random.Random) -> None:
    path.unlink(missing_ok=True)


def a_folder_instead(site: Site, path: Path, text: str, chance: random.Random) -> None:
    path.mkdir()


def random_bytes(site: Site, path: Path, text: str, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(40))


def a_link(site: Site, path: Path, text: str, chance: random.Random) -> None:
    target = site.root / "target.yaml"
    target.write_text(text)
    path.symlink_to(chance.choice([target, site.root / "nowhere"]))


def folder_gone(site: Site, path: Path, text: str, chance: random.Random) -> None:
    shutil.rmtree(site.policies)
    if chance.random() < 0.7:
        site.policies.mkdir()


def all_made_anew(site: Site, path: Path, text: str, chance: random.Random) -> None:
    for name in NAMES:
        _forget(site.policies / name)
    path.write_text(text)


# Whole valid saves as often as all that can go wrong.
THINGS = (
    *(replaced,) * 3,
    *(all_made_anew,) * 3,
    half_written,
    deleted,
    a_folder_instead,
    random_bytes,
    a_link,
    folder_gone,
)


def happen(site: Site, chance: random.Random) -> None:
    """One thing that editors, machines and people do to a policy folder."""
    path = site.policies / chance.choice(NAMES)
    text = chance.choice(GOOD).format(n=chance.randint(1, 90))
    site.policies.mkdir(exist_ok=True)
    thing = chance.choice(THINGS)
    if thing is not replaced:
        _forget(path)
    thing(site, path, text, chance)


def _forget(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(4))
async def test_in_force_is_always_one_whole_valid_set(site: Site, seed: int) -> None:
    # R7.2, I7
    chance = random.Random(seed)
    told: list[Outcome] = []

    async def tell(outcome: Outcome) -> None:
        told.append(outcome)

    loaded = site.load()
    reloader = Reloader(loaded, site.environ, tell)
    in_force = loaded.policies.hash
    applied = refused = 0
    for _ in range(60):
        await asyncio.to_thread(happen, site, chance)
        outcome = await reloader.reload("test")
        truth = read_policies(site.policies, str(site.policies), loaded.settings)
        match outcome:
            case Candidate():
                applied += 1
                in_force = outcome.policies.hash
                assert _hash(truth) == in_force  # exactly what the files say, all of it
            case Refusal():
                refused += 1
                assert truth.policies is None or not truth.snapshot.files  # gone or empty is no wish for the defaults
            case _:
                assert _hash(truth) == in_force
    assert applied > 5
    assert refused > 5


def _hash(read: ReadPolicies) -> str | None:
    return read.policies.hash if read.policies is not None else None
