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
ACT = {"tool": "bash", "args": {"command": ". ../agent.sh"}}
MORE = {"when": {"results": 1, "last_text_matches": "Once more"}, "call": ACT}
FILES = (b"a", b"d/x", b" sp ", b"\xffn")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("choices")
    with running_simulator({"agent": {"turns": [MORE, *AGENT["turns"]]}}) as service, running(folder) as daemon:
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


def test_the_same_rollback_again_changes_nothing_and_undo_still_undoes(house: House) -> None:
    # R5.2, R5.3, f21: a command that is sent twice, as after a lost answer, is one rollback
    task, space, _ = house.played("again", SETUP, AGENT_DOES)
    after = look(space)
    first = house.daemon.ctl("rollback", task, "--to", "n1")
    assert first.returncode == 0, first.stderr
    assert f"harnessctl rollback {task} --undo takes it back (to checkpoint c" in first.stdout
    again = house.daemon.ctl("rollback", task, "--to", "n1")
    assert (again.returncode, "nothing was changed" in again.stdout) == (0, True)
    assert "--undo" not in again.stdout
    assert house.back(task, "--undo")[0] == 0
    assert look(space) == after


def test_a_kept_file_in_a_folder_that_is_to_go_is_said_to_be_kept(house: House) -> None:
    # R5.2
    task, _, _ = house.played("folder", "echo a >a", "rm a; mkdir a; echo in >a/in")
    status, told = house.back(task, "--to", "n1", "--keep", "a/in", dry=True)
    assert (status, told["blocked"]) == (5, {"a": "holds something that is kept"})


def test_in_a_worktree_it_is_said_that_branch_and_index_stay(house: House) -> None:
    # R5.3, f16: files go back; what lies in the repository outside of the workspace is not touched, and that is told
    task, space, _ = house.played(
        "tree",
        "cd ..; git init -q main; git -C main commit -q --allow-empty -m 1; git -C main worktree add -q ../aside; "
        "mv aside/.git ws; rmdir aside; git -C main worktree repair ../ws",
        "git checkout -q -b side; echo b>a; git add a; git commit -qm 2",
    )
    status, told = house.back(task, "--to", "n1")
    assert (status, [one["path"] for one in told["not_covered"]]) == (0, [".git"])
    assert not (space / "a").exists()
    assert house.sh(space, "git log --format=%s -1 side") == "2\n"


def test_an_imported_task_goes_back_no_further_than_its_files_are_known(house: House, tmp_path: Path) -> None:
    # R5.2: n1 knows of no file, and the folder holds what the first task wrote: those two do not line up
    task, space, _ = house.played("export", "echo a >a", "echo b >a; echo n >n")
    file = tmp_path / "session.jsonl"
    assert house.daemon.ctl("export", task, "-o", str(file)).returncode == 0
    said = house.daemon.ctl("import", str(file), "--workspace", str(space))
    new = said.stdout.split()[0]
    (space.parent / "agent.sh").write_text("echo later >a")
    assert house.daemon.ctl("resume", new, "--say", "Once more.").returncode == 0
    assert house.daemon.until_ended(house.client, new)["state"] == "completed"
    assert (space / "a").read_text() == "later\n"
    refused = house.daemon.ctl("rollback", new, "--to", "n1")
    assert refused.returncode == 5
    assert "it was imported after that" in refused.stderr
    assert house.daemon.ctl("rollback", new, "--to", "n4").returncode == 0
    assert (space / "a").read_text() == "b\n"


def test_more_files_than_are_named_are_counted_whole(house: House) -> None:
    # R5.2: the list of names is cut at 2,000; what it says of the rest is true
    task, space, _ = house.played("many", "echo a >a", "seq 1 2003 | while read i; do : >$i; done; echo b >a")
    told = house.daemon.ctl("rollback", task, "--to", "n1")
    assert told.returncode == 0, told.stderr
    assert "files          2004: 1 restored, 2003 removed" in told.stdout
    assert "and 1991 more" in told.stdout
    assert [one.name for one in space.iterdir()] == ["a"]
    assert "the last rollback taken back" in house.daemon.ctl("status", task).stdout
