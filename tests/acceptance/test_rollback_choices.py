"""Choices by name at a rollback: in every spelling a shell knows, names that are no text, names of nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_rollback_scenes import AGENT, House
from tests.running import running, settings
from tests.simulated import running_simulator
from tests.workspace.trees import Known, look

pytestmark = pytest.mark.acceptance

SETUP = "mkdir d; for f in a d/x ' sp ' $'\\377n'; do echo person >\"$f\"; done"
AGENT_DOES = "for f in a d/x ' sp ' $'\\377n'; do echo agent >\"$f\"; done"
FILES = (b"a", b"d/x", b" sp ", b"\xffn")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("choices")
    with running_simulator({"agent": AGENT}) as service, running(folder) as daemon:
        daemon.workspace(".")
        daemon.configure(settings(folder, service.url, {"agent": "anthropic"}))
        yield House(daemon, daemon.start())


def edited(house: House, name: str) -> tuple[str, Path, Known]:
    """A task that ended, and each of its files changed by a person since; with what the person left."""
    task, space, _ = house.played(name, SETUP, AGENT_DOES)
    for file in FILES:
        Path(os.fsdecode(os.fsencode(space) + b"/" + file)).write_text("person, later\n")
    return task, space, look(space)


def test_a_path_is_known_in_every_spelling(house: House) -> None:
    # R5.2: what the hint names can be given back to it, a name that is no UTF-8 too
    task, space, mine = edited(house, "spelt")
    status, told = house.back(task, "--to", "n1", dry=True)
    assert (status, sorted(told["conflicts"])) == (5, [" sp ", "a", "d/x", "\ufffdn"])
    assert "--keep '\ufffdn'" in told["refusal"]["hint"]
    kept = ("--keep", "./a", "--keep", f"{space}/d/", "--keep", " sp ", "--keep", "\ufffdn")
    status, told = house.back(task, "--to", "n1", *kept)
    assert (status, told["conflicts"]) == (0, [])
    assert look(space) == mine
    assert house.back(task, "--undo")[0] == 0
    assert house.back(task, "--to", "n1", *kept[:6], "--overwrite", os.fsdecode(b"\xffn"))[0] == 0
    assert look(space) == mine | {b"\xffn": look(space)[b"\xffn"]} != mine


def test_the_whole_workspace_is_one_choice(house: House) -> None:
    # R5.2
    task, space, mine = edited(house, "whole")
    assert house.back(task, "--to", "n1", "--keep", ".")[0] == 0
    assert look(space) == mine
    assert house.back(task, "--undo")[0] == 0
    assert house.back(task, "--to", "n1", "--overwrite", str(space))[0] == 0
    assert {Path(os.fsdecode(os.fsencode(space) + b"/" + file)).read_text() for file in FILES} == {"person\n"}


def test_a_name_of_nothing_is_told_and_changes_nothing(house: House) -> None:
    # R5.2: a slip of the pen must not give up the file that was meant
    task, space, mine = edited(house, "nothing")
    for word, said in (
        ("b", "There is no b in the workspace"),
        ("", "An empty name is no path."),
        ("../x", "../x is not in the workspace"),
        ("/etc/passwd", "/etc/passwd is not in the workspace"),
    ):
        done = house.daemon.ctl("rollback", task, "--to", "n1", "--overwrite", ".", "--keep", word)
        assert done.returncode in (2, 5)
        assert said in done.stderr
    twice = house.daemon.ctl("rollback", task, "--to", "n1", "--keep", "./a", "--overwrite", "a")
    assert (twice.returncode, "a cannot be kept and overwritten." in twice.stderr) == (2, True)
    assert look(space) == mine


def test_a_checkpoint_is_no_node_and_its_node_is_named(house: House) -> None:
    # R5.4
    task, _, _ = edited(house, "marked")
    done = house.daemon.ctl("rollback", task, "--to", "c1")
    assert done.returncode == 4
    assert "c1: that is a checkpoint." in done.stderr
    assert "--to n" in done.stderr
