"""Reload: every way in which editors and machines save files, on real files."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harnessd.config.reload import Candidate, Refusal, Unchanged
from tests.config.conftest import Site, turns_of, watching


def _budget(turns: int) -> str:
    return f"kind: budget\nlimits: {{turns: {turns}}}\n"


def _in_place(path: Path, text: str) -> None:
    path.write_text(text)


def _rename(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _vim(path: Path, text: str) -> None:
    """backup by rename, write anew under the old name, delete the backup; a probe file 4913 first."""
    probe = path.with_name("4913")
    probe.write_text("")
    probe.unlink()
    swap = path.with_name(f".{path.name}.swp")
    swap.write_text("swap")
    backup = path.with_name(path.name + "~")
    path.rename(backup)
    path.write_text(text)
    backup.unlink()
    swap.unlink()


def _emacs(path: Path, text: str) -> None:
    """A lock link, an auto-save file, a backup by rename, then the new file."""
    lock = path.with_name(f".#{path.name}")
    lock.symlink_to("user@host.1:1")
    saved = path.with_name(f"#{path.name}#")
    saved.write_text(text)
    path.rename(path.with_name(path.name + "~"))
    path.write_text(text)
    saved.unlink()
    lock.unlink()


def _code(path: Path, text: str) -> None:
    """Truncates and writes in place, in two writes."""
    with path.open("w") as file:
        file.write(text[:7])
        file.flush()
        file.write(text[7:])


def _sed(path: Path, text: str) -> None:
    """A temporary name without suffix, renamed over."""
    temporary = path.with_name("sedAbCdEf")
    temporary.write_text(text)
    temporary.replace(path)


def _delete_and_make_again(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


SAVES: list[Callable[[Path, str], None]] = [_in_place, _rename, _vim, _emacs, _code, _sed, _delete_and_make_again]


@pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__.strip("_"))
async def test_each_save_is_one_reload(site: Site, save: Callable[[Path, str], None]) -> None:
    # R7.2, h01, h02
    async with watching(site) as watched:
        for turns in (60, 70, 80):
            save(site.policies / "budget.yaml", _budget(turns))
            await watched.until(lambda turns=turns: watched.turns[-1:] == [turns])  # type: ignore[misc]
        await watched.quiet()
        assert watched.turns == [60, 70, 80]
        assert not watched.refusals


async def test_an_invalid_set_changes_nothing_and_mending_it_is_told(site: Site) -> None:
    # R7.2, h07, h08
    async with watching(site) as watched:
        site.write("retry.yaml", "kind: retry\nmodel: {retrys: 3}\n")
        await watched.until(lambda: bool(watched.refusals))
        assert [str(problem) for problem in watched.refusals[0].problems] == [
            f'{site.root}/policies/retry.yaml:2:9: unknown key "retrys": did you mean "retries"?'
        ]
        (site.policies / "retry.yaml").unlink()
        await watched.until(lambda: isinstance(watched.told[-1][1], Unchanged))
        assert watched.told[-1][1] == Unchanged("files", restored=True)
        assert not watched.candidates


async def test_one_bad_file_of_many_keeps_the_whole_set_back(site: Site) -> None:
    # R7.2: whole set or nothing
    async with watching(site) as watched:
        site.write("retry.yaml", "kind: retry\nmodel: {retries: -1}\n")
        site.turns(77)
        await watched.until(lambda: bool(watched.refusals))
        await watched.quiet()
        assert not watched.candidates
        site.write("retry.yaml", "kind: retry\nmodel: {retries: 1}\n")
        await watched.until(lambda: bool(watched.candidates))
        assert watched.turns == [77]


async def test_a_config_map_is_swapped_by_its_data_link(site: Site) -> None:
    # Kubernetes writes a new hidden folder and renames ..data onto the old link; no event names the policy file.
    shutil.rmtree(site.policies)
    site.policies.mkdir()

    def publish(version: int) -> None:
        folder = site.policies / f"..v{version}"
        folder.mkdir()
        (folder / "budget.yaml").write_text(_budget(version))
        link = site.policies / "..data_tmp"
        link.symlink_to(folder.name)
        link.rename(site.policies / "..data")
        if not (site.policies / "budget.yaml").is_symlink():
            (site.policies / "budget.yaml").symlink_to("..data/budget.yaml")
        for old in site.policies.glob("..v*"):
            if old.name != folder.name:
                shutil.rmtree(old)

    publish(51)
    async with watching(site) as watched:
        for version in (52, 53):
            publish(version)
            await watched.until(lambda version=version: watched.turns[-1:] == [version])  # type: ignore[misc]
        await watched.quiet()
        assert watched.turns == [52, 53]


async def test_a_link_to_another_folder_and_an_edit_behind_it_are_seen(site: Site, tmp_path: Path) -> None:
    # h04
    for version in (1, 2):
        folder = tmp_path / "releases" / str(version)
        folder.mkdir(parents=True)
        (folder / "budget.yaml").write_text(_budget(50 + version))
    link = site.policies / "budget.yaml"
    link.unlink()
    link.symlink_to(tmp_path / "releases/1/budget.yaml")
    async with watching(site) as watched:
        fresh = site.policies / ".next"
        fresh.symlink_to(tmp_path / "releases/2/budget.yaml")
        fresh.rename(link)
        await watched.until(lambda: watched.turns == [52])
        (tmp_path / "releases/2/budget.yaml").write_text(_budget(99))
        await watched.until(lambda: watched.turns == [52, 99])


async def test_the_whole_folder_is_a_link_that_is_turned(site: Site) -> None:
    # GitOps: ln -sfn releases/$sha policies.next && mv -T policies.next policies
    for version in (1, 2):
        folder = site.root / "releases" / str(version)
        folder.mkdir(parents=True)
        (folder / "budget.yaml").write_text(_budget(50 + version))
    shutil.rmtree(site.policies)
    site.policies.symlink_to("releases/1")
    async with watching(site) as watched:
        fresh = site.root / "policies.next"
        fresh.symlink_to("releases/2")
        fresh.rename(site.policies)
        await watched.until(lambda: watched.turns == [52])
        (site.root / "releases/2/budget.yaml").write_text(_budget(98))
        await watched.until(lambda: watched.turns == [52, 98])


async def test_a_folder_that_vanishes_is_refused_and_seen_when_it_is_back(site: Site) -> None:
    async with watching(site) as watched:
        away = site.root / "elsewhere"
        site.policies.rename(away)
        await watched.until(lambda: bool(watched.refusals))
        assert "the folder is gone: put it back, or ask for the built-in defaults" in str(
            watched.refusals[0].problems[0]
        )
        away.rename(site.policies)
        await watched.until(lambda: isinstance(watched.told[-1][1], Unchanged))
        site.turns(61)
        await watched.until(lambda: watched.turns == [61])
        for file in site.policies.glob("*"):
            file.unlink()
        await watched.until(lambda: len(watched.refusals) == 2)
        assert "the folder is empty" in str(watched.refusals[1].problems[0])
        outcome = await watched.reloader.reload("policy reload --yes", yes=True)
        assert isinstance(outcome, Candidate)
        assert turns_of(outcome) == 120


async def test_a_folder_that_comes_later_is_seen(site: Site) -> None:
    shutil.rmtree(site.policies)
    async with watching(site) as watched:
        site.policies.mkdir()
        site.turns(33)
        await watched.until(lambda: watched.turns[-1:] == [33])


async def test_a_file_that_is_still_being_written_is_waited_for(site: Site) -> None:
    async with watching(site) as watched:
        with (site.policies / "budget.yaml").open("w") as file:
            file.write("kind: budget\n")
            file.flush()
            await watched.quiet(0.25)  # far longer than settle; the text so far is a valid set
            assert not watched.told
            file.write("limits: {turns: 5}\n")
        await watched.until(lambda: watched.turns == [5])


async def test_a_storm_of_saves_ends_in_the_last_one_and_nothing_torn(site: Site) -> None:
    # G14: whatever is applied is a state that a writer finished
    path = site.policies / "budget.yaml"
    finished: set[int] = {50}

    def storm() -> None:
        for turns in range(1000, 2000):
            finished.add(turns)
            if turns % 2:
                _rename(path, _budget(turns))
            else:
                path.write_text(_budget(turns))
            if turns % 100 == 0:
                time.sleep(0.06)

    async with watching(site) as watched:
        writer = threading.Thread(target=storm)
        writer.start()
        await asyncio.to_thread(writer.join)
        await watched.until(lambda: watched.turns[-1:] == [1999])
        await watched.quiet()
        assert watched.turns[-1] == 1999
        assert set(watched.turns) <= finished
        assert len(watched.turns) < 40


async def test_agents_are_read_in_the_same_step_and_other_keys_name_the_restart(site: Site) -> None:
    async with watching(site) as watched:
        text = site.config.read_text()
        added = "workers: 4\nagents:\n  tester: {model: primary, policies: {budget: small}}\n"
        _rename(site.config, text.replace("agents:\n", added))
        await watched.until(lambda: bool(watched.refusals))
        assert 'agent tester: no budget policy "small"' in str(watched.refusals[0].problems[0])
        site.write("small.yaml", "kind: budget\nname: small\nlimits: {turns: 3}\n")
        await watched.until(lambda: bool(watched.candidates))
        candidate = watched.candidates[0]
        assert set(candidate.settings.agents) == {"coder", "tester"}
        assert candidate.settings.workers == 32
        assert candidate.restart == ("workers",)


async def test_the_slow_check_finds_what_no_event_tells(site: Site) -> None:
    # A write through another name of the same file: the kernel tells the other folder only, as with a bind mount.
    other = site.root / "elsewhere"
    other.mkdir()
    os.link(site.policies / "budget.yaml", other / "budget.yaml")
    async with watching(site, recheck_s=0.2) as watched:
        (other / "budget.yaml").write_text(_budget(44))
        await watched.until(lambda: watched.turns == [44])
        assert watched.candidates[0].trigger == "recheck"


async def test_reload_on_demand_judges_again_even_without_a_watch(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("settle: 20ms", "settle: 20ms, watch: false"))
    async with watching(site) as watched:
        site.turns(45)
        await watched.quiet()
        assert not watched.told
        assert isinstance(await watched.reloader.reload("SIGHUP"), Candidate)
        assert await watched.reloader.reload("SIGHUP") == Unchanged("SIGHUP")
        site.write("budget.yaml", "kind: budget\nlimits: {turns: x}\n")
        first, second = await watched.reloader.reload("SIGHUP"), await watched.reloader.reload("SIGHUP")
        assert isinstance(first, Refusal)
        assert isinstance(second, Refusal)


async def test_editor_leavings_and_foreign_files_are_no_news(site: Site) -> None:
    async with watching(site) as watched:
        for name in (".budget.yaml.swp", "budget.yaml~", "#budget.yaml#", "README.md", "budget.yaml.orig"):
            (site.policies / name).write_text("not: [yaml")
        await watched.quiet()
        assert not watched.told


async def test_saving_is_in_force_soon(site: Site) -> None:
    """The whole way is the settle time and one reading; the bound is loose for a busy machine."""
    async with watching(site) as watched:
        took = []
        for turns in range(100, 110):
            begun = time.monotonic()
            site.turns(turns)
            await watched.until(lambda turns=turns: watched.turns[-1:] == [turns])  # type: ignore[misc]
            took.append(watched.told[-1][0] - begun)
        assert sorted(took)[len(took) // 2] < 0.5, took


def test_no_thread_is_left(site: Site) -> None:
    async def once() -> None:
        async with watching(site):
            pass

    before = threading.active_count()
    asyncio.run(once())
    assert threading.active_count() <= before
    assert not list(site.policies.glob("*.tmp"))
