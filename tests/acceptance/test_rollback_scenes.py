"""Scenes of rollbacks by the real daemon: an agent runs the script, `harnessctl rollback` takes it back, and forth.

One daemon for all; each scene has a workspace `ws` in a folder of its own, and a task of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import running_simulator
from tests.workspace.trees import Known, look

pytestmark = pytest.mark.acceptance

WHO = "".join(f"export GIT_{who}_{what}=a@b; " for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))
PLAIN = f"{WHO}export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null; "
AGENT = {
    "turns": [
        {"when": {"results": {"max": 0}}, "call": {"tool": "bash", "args": {"command": ". ../agent.sh"}}},
        {"say": "Done."},
    ]
}  # fmt: skip
FILES: Mapping[str, Mapping[str, str]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "rollbacks.yaml").read_text(encoding="utf-8")
)
# name -> setup, what the agent does; beside those that the room of workspaces is tried with.
OWN: Mapping[str, tuple[str, str]] = {
    "a folder becomes a link outwards": (
        "mkdir d; echo x>d/x; mkdir ../out; echo precious>../out/x",
        "rm -r d; ln -s ../out d; echo gone>d/y",
    ),
    "a link becomes a file": ("echo a>a; ln -s a l", "rm l; echo f>l; ln -s l m"),
    "nested repository deleted": ("git init -q; git init -q sub; echo s>sub/s; git -C sub add s", "rm -rf sub"),
    "git replaced by a link outwards": (
        "git init -q; echo a>a; git add a; git commit -qm 1; git init -q ../evil",
        "mv .git ../moved; ln -s ../evil/.git .git; echo b>a",
    ),
    "worktree file": (
        "git init -q ../main; git -C ../main commit -q --allow-empty -m 1; git -C ../main worktree add -q ../ws/wt",
        "echo 'gitdir: /etc' > wt/.git; echo n>wt/n",
    ),
    "many files": ("mkdir m; for i in $(seq 1500); do echo $i>m/$i; done", "rm -r m; mkdir m; echo 1>m/1; seq 9 > m/n"),
    "the workspace's mode and its last file": ("echo a>a; chmod 700 .", "rm a; chmod 755 ."),
    "newlines, quotes, controls": (
        "echo 1>$'a\\nb'; echo 2>$'\\e[31mred'; echo 3>'it'\"'\"'s'; echo 4>' -rf *'",
        "rm -f -- *; echo 5>$'a\\nb c'",
    ),
    "names that are not UTF-8": (
        "echo 1>$'\\377\\376'; mkdir $'d\\200'; echo 2>$'d\\200/\\311'",
        "rm -r ./*; echo x>$'\\377'",
    ),
    "content equal, mode not": ("echo a>a; chmod 640 a; cp -p a b", "chmod 604 a; rm b; cp a b"),
    "swapped names": (
        "echo a>a; echo b>b; mkdir x y; echo 1>x/f; echo 2>y/f",
        "mv a t; mv b a; mv t b; mv x t; mv y x; mv t y",
    ),
    "a file of nothing": (": >empty; echo a>a; head -c 1 /dev/zero >z", "rm empty; : >a; : >z; : >more"),
    "a hook of git that the agent left": (
        "git init -q; echo a>a",
        "echo exit 1 >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git config core.fsmonitor ./x",
    ),
    "our own folder's name": ("mkdir .harnessd-restore-x; echo a>.harnessd-restore-x/a", "rm -r .harnessd-restore-x"),
}  # fmt: skip
SCENES: Mapping[str, tuple[str, str]] = {
    **{name: (scene["setup"], scene["agent_does"]) for name, scene in FILES.items()},
    **OWN,
}


@dataclass
class House:
    """The daemon, and the scenes that its agents played."""

    daemon: Running
    client: Client

    def space(self, name: str) -> Path:
        return self.daemon.folder / "work" / "".join(sign if sign.isalnum() else "-" for sign in name) / "ws"

    def play(self, name: str, setup: str, agent: str) -> tuple[str, Known]:
        """Set a scene up and submit its task; gives it with what the workspace was."""
        space = self.space(name)
        space.mkdir(parents=True)
        self.sh(space, setup)
        before = look(space)
        (space.parent / "agent.sh").write_text(f"{PLAIN}\n{agent}\n", errors="surrogateescape")
        return self.daemon.submit(self.client, prompt="Go.", agent="agent", workspace=str(space)), before

    def played(self, name: str, setup: str, agent: str) -> tuple[str, Path, Known]:
        """The same, to its end."""
        task, before = self.play(name, setup, agent)
        assert self.daemon.until_ended(self.client, task)["state"] == "completed"
        return task, self.space(name), before

    def sh(self, space: Path, script: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"}
        done = subprocess.run(
            ["bash", "-c", PLAIN + script], cwd=space, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (script, done.stderr)
        return done.stdout

    def back(self, task: str, *words: str, dry: bool = False) -> tuple[int, dict[str, Any]]:
        """`harnessctl rollback`: its exit status, and what it printed."""
        done = self.daemon.ctl("rollback", task, *words, *(("--dry-run",) if dry else ()), "--json")
        return done.returncode, json.loads(done.stdout or done.stderr)

    def pointer(self, task: str) -> str:
        return str(self.client.get(f"/v1/tasks/{task}/nodes")["pointer"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("scenes")
    with running_simulator({"agent": AGENT}) as service, running(folder) as daemon:
        daemon.workspace(".")
        daemon.configure(settings(folder, service.url, {"agent": "anthropic"}))
        yield House(daemon, daemon.start())


def test_every_scene_comes_back_and_forth_byte_for_byte(house: House) -> None:
    # R5.2, R5.3: f02 f04 f08 f09 f18 f21 and their kin
    played = {name: house.play(name, *scene) for name, scene in SCENES.items()}
    wrong: dict[str, Any] = {}
    for name, (task, before) in played.items():
        space = house.space(name)
        assert house.daemon.until_ended(house.client, task)["state"] == "completed"
        after = look(space)
        if after == before:
            wrong[name] = "the scene does nothing"
            continue
        code, told = house.back(task, "--to", "n1")
        if code or look(space) != before or house.pointer(task) != "n1":
            wrong[name] = (code, told, differing(before, look(space)))
            continue
        undone = house.client.post(f"/v1/tasks/{task}/rollback", {"undo": True})
        if not undone["rolled_back"] or look(space) != after:
            wrong[name] = (undone, differing(after, look(space)))
    assert wrong == {}


def differing(wanted: Known, found: Known) -> list[tuple[bytes, Any, Any]]:
    """The paths that differ."""
    every = {*wanted, *found}
    return [(path, wanted.get(path), found.get(path)) for path in every if wanted.get(path) != found.get(path)][:5]


def test_a_file_too_large_to_keep_is_told_and_left(house: House) -> None:
    # f13, R5.3a: neither read nor deleted
    began = time.monotonic()
    task, space, _ = house.played(
        "huge",
        "truncate -s 3G big.bin; echo a>a; mkfifo pipe",
        "echo b>a; printf z | dd of=big.bin conv=notrunc bs=1 seek=10 2>/dev/null",
    )
    code, told = house.back(task, "--to", "n1")
    assert time.monotonic() - began < 30
    assert code == 0, told
    assert house.sh(space, "cat a; head -c 11 big.bin | tail -c 1; stat -c %s big.bin") == f"a\nz{3 << 30}\n"
    assert {one["path"]: one["why"] for one in told["not_covered"]} == {
        "big.bin": "larger than max_file",
        "pipe": "a pipe",
    }
    lines = house.daemon.ctl("logs", task, "--event", "checkpoint", "--json").stdout.splitlines()
    named = [json.loads(line)["data"].get("not_covered") for line in lines]
    assert [names for names in named if names] == [["big.bin: larger than max_file", "pipe: a pipe"]], "told once"


def test_commits_of_the_agent_are_kept_and_named(house: House) -> None:
    # f16
    task, space, _ = house.played(
        "committed",
        "git init -q -b main; echo a>a; git add a; git commit -qm 1",
        "echo b>a; git commit -qam 2; git checkout -q -b topic; echo c>a; git commit -qam 3",
    )
    two, three = (house.sh(space, f"git rev-parse {name}").strip() for name in ("main", "topic"))
    told = house.daemon.ctl("rollback", task, "--to", "n1")
    assert told.returncode == 0, told.stderr
    assert two in told.stdout
    assert three in told.stdout
    assert house.sh(space, "cat a; git branch --format '%(refname:short)'; git status --short") == "a\nmain\n"
    assert sorted(house.sh(space, "git log --all --format=%s").split()) == ["1", "2", "3"]


@pytest.mark.parametrize("hinder", ["chattr +i b", "mount --bind b b"])
def test_a_restore_that_fails_half_way_leaves_everything_as_it_was(house: House, hinder: str) -> None:
    # f19: exit non-zero, the files named, the pointer not moved
    task, space, before = house.played(f"half {hinder}", "echo a>a; echo b>b", "echo 2>a; echo 2>b")
    bad, head = look(space), house.pointer(task)
    if subprocess.run(["bash", "-c", hinder], cwd=space, capture_output=True, check=False).returncode:
        pytest.skip(f"no right to {hinder}")
    try:
        failed = house.daemon.ctl("rollback", task, "--to", "n1")
        assert failed.returncode == 5, failed.stdout
        assert "b (" in failed.stderr
        assert "everything is as it was" in failed.stderr
        assert look(space) == bad
        row = house.client.get(f"/v1/tasks/{task}")
        assert (house.pointer(task), row["state"]) == (head, "completed")
    finally:
        subprocess.run(["bash", "-c", "umount b || chattr -i b"], cwd=space, capture_output=True, check=False)
    assert house.back(task, "--to", "n1")[0] == 0
    assert look(space) == before


def test_what_a_persons_git_would_run_is_not_run(house: House) -> None:
    # f23
    hooks = (
        "for h in pre-commit post-checkout post-index-change reference-transaction; do "
        "printf '#!/bin/sh\\ntouch '$PWD'/../hook-ran\\n' >../hooks/$h; chmod 755 ../hooks/$h; done; "
    )
    setup = (
        "git init -q -b main; echo a>a; git add a; git commit -qm 1; git branch side; echo b>a; git stash -q; "
        f"mkdir ../hooks; {hooks} git config core.hooksPath $PWD/../hooks; git config filter.bad.clean false; "
        "git config filter.bad.required true; git config commit.gpgsign true; "
        "git config init.templateDir /nonexistent; echo '* filter=bad' >.gitattributes"
    )
    task, space, _ = house.played("user repository", setup, "echo c>a; echo n>n")
    mine = look(space / ".git")
    assert house.back(task, "--to", "n1")[0] == 0
    assert look(space / ".git") == mine
    assert not (space.parent / "hook-ran").exists()


@pytest.mark.parametrize(
    ("name", "deed"),
    [
        ("deleted", "rm -rf ../ws"),
        ("a file instead", "rm -rf ../ws; echo f >../ws"),
        ("a link instead", "mv ../ws ../moved; ln -s moved ../ws"),
    ],
)
def test_a_workspace_that_is_gone_is_refused_in_words(house: House, name: str, deed: str) -> None:
    task, space, _ = house.played(f"gone {name}", "echo a>a", "echo b>a")
    house.sh(space, deed)
    head = house.pointer(task)
    for dry in (True, False):
        code, told = house.back(task, "--to", "n1", dry=dry)
        assert code == 5, told
        assert "Traceback" not in json.dumps(told)
    assert house.pointer(task) == head
    assert house.client.get(f"/v1/tasks/{task}")["state"] == "completed"


def test_a_job_of_the_task_is_ended_and_its_writing_is_no_conflict(house: House) -> None:
    # f17: the job goes on writing after the last look; that is the task's own work
    writer = 'sh -c "while :; do date +%N > a; date > made_$$; sleep 0.02; done" & sleep 0.2'
    task, before = house.play("writer", "echo a>a", writer)
    space = house.space("writer")
    house.daemon.until(house.client, task, ("parked", "completed"))
    told = house.daemon.ctl("rollback", task, "--to", "n1", "--json")
    assert told.returncode == 0, told.stderr
    assert look(space) == before
    time.sleep(0.5)
    assert look(space) == before


def test_what_a_person_changed_after_the_job_ended_is_theirs(house: House) -> None:
    task, space, _ = house.played("after the job", "echo a>a", "echo b>a; (sleep 0.3; echo late >job) & sleep 0.01")
    time.sleep(1.2)
    (space / "mine").write_text("mine\n")
    code, told = house.back(task, "--to", "n1", dry=True)
    assert (code, told["conflicts"]) == (5, ["mine"]), told
