"""Rollback by the real daemon and client: files, pointer and state go back together, and forth again."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.acceptance.test_checkpoints import script
from tests.running import Running, running, settings
from tests.simulated import running_simulator
from tests.workspace.trees import look

pytestmark = pytest.mark.acceptance

CHECK = {"command": "test -f src/main.py"}
BREAKER = script(
    ("bash", CHECK),
    ("bash", {"command": "rm -rf src .git/HEAD; echo broken > README; mkdir junk; echo x > junk/y; chmod 755 README"}),
    ("bash", CHECK),
)


def repository(space: Path) -> None:
    """A repository as people have them, with what tools of checkpoints lose."""
    script_ = """
    git init -q; mkdir src empty; echo 'print(1)' > src/main.py; printf 'a\\r\\n' > crlf
    echo '* text=auto' > .gitattributes
    echo '*.log' > .gitignore; echo l > x.log; ln -s src/main.py link; chmod 750 src; head -c 5000 /dev/urandom > bin
    git add -A; git -c user.name=a -c user.email=a@b commit -qm 1; printf t > "$(printf '\\377')"
    """
    subprocess.run(["bash", "-ec", script_], cwd=space, check=True, env={**os.environ, "HOME": str(space.parent)})


def broken(daemon: Running, space: Path, model: str = "breaker") -> tuple[Client, str]:
    """A task that broke its workspace and says it is done."""
    client = daemon.start()
    task = daemon.submit(client, prompt="Tidy up.", agent=model, workspace=str(space))
    assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
    return client, task


def pointer(client: Client, task: str) -> str:
    return str(client.get(f"/v1/tasks/{task}/nodes")["pointer"])


def test_back_to_the_last_good_node_undone_and_back_again(tmp_path: Path) -> None:
    # R5.2, R5.3, f21
    with running_simulator({"breaker": BREAKER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        good = look(space)
        client, task = broken(daemon, space)
        bad, head = look(space), pointer(client, task)
        assert bad != good

        told = daemon.ctl("rollback", task, "--to", "last-good", "--dry-run")
        assert told.returncode == 0, told.stderr
        assert "Nothing was changed." in told.stdout
        assert "junk" in told.stdout
        assert look(space) == bad
        assert pointer(client, task) == head

        done = daemon.ctl("rollback", task, "--to", "last-good")
        assert done.returncode == 0, done.stderr
        assert "Rolled back to n3." in done.stdout
        assert look(space) == good
        assert pointer(client, task) == "n3"
        assert client.get(f"/v1/tasks/{task}")["state"] == "paused"

        undone = daemon.ctl("rollback", task, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert look(space) == bad
        assert pointer(client, task) == head

        again = json.loads(daemon.ctl("rollback", task, "--to", "n3", "--json").stdout)
        assert (again["rolled_back"], again["result"]) == (True, "done")
        assert look(space) == good
        assert daemon.ctl("rollback", task, "--undo").returncode == 0
        assert daemon.ctl("rollback", task, "--undo").returncode == 5, "there is nothing left to undo"


def test_a_commit_of_the_agent_is_kept_and_undone_with_the_rest(tmp_path: Path) -> None:
    # R5.2, f16: what a rollback itself keeps of a commit is nobody's edit
    commit = "git checkout -qb tidy; rm -r src; git add -A; git -c user.name=a -c user.email=a@b commit -qm tidy"
    scene = script(("bash", CHECK), ("bash", {"command": f"{commit}; rm .git/HEAD"}), ("bash", CHECK))
    with running_simulator({"breaker": scene}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        good = look(space)
        _, task = broken(daemon, space)
        bad = look(space)
        for _ in range(2):
            done = daemon.ctl("rollback", task, "--to", "last-good")
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("\nleft ") == 1, done.stdout
            assert "(refs/heads/tidy) as refs/harnessd/" in done.stdout
            now = look(space)
            assert {path: what for path, what in now.items() if path in good and not path.startswith(b".git/logs")} == {
                path: what for path, what in good.items() if not path.startswith(b".git/logs")
            }
            assert all(path.startswith((b".git/objects", b".git/refs/harnessd")) for path in now.keys() - good.keys())
            undone = daemon.ctl("rollback", task, "--undo")
            assert undone.returncode == 0, undone.stderr
            assert look(space) == bad


def test_what_others_changed_is_a_choice_by_name(tmp_path: Path) -> None:
    # R5.2: refuses, and says what does not line up
    with running_simulator({"breaker": BREAKER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        good = look(space)
        _, task = broken(daemon, space)
        (space / "README").write_text("mine\n")
        (space / "own").write_text("also mine\n")
        mine = look(space)

        told = daemon.ctl("rollback", task, "--to", "n3", "--dry-run")
        refused = daemon.ctl("rollback", task, "--to", "n3")
        assert (told.returncode, refused.returncode) == (5, 5)
        assert "conflict       README was also changed from outside the task" in told.stdout
        assert "2 paths were changed from outside" in refused.stderr
        assert "--keep README --keep own" in refused.stderr
        assert look(space) == mine

        kept = daemon.ctl("rollback", task, "--to", "n3", "--keep", "README", "--keep", "own")
        assert kept.returncode == 0, kept.stderr
        assert (space / "README").read_text() == "mine\n"
        assert (space / "own").exists()
        assert (space / "src" / "main.py").exists()
        assert daemon.ctl("rollback", task, "--undo").returncode == 0
        assert look(space) == mine
        over = daemon.ctl("rollback", task, "--to", "n3", "--overwrite", "README", "--overwrite", "own")
        assert over.returncode == 0, over.stderr
        assert look(space) == good


def test_a_word_starts_the_new_branch_at_once(tmp_path: Path) -> None:
    # R5.1
    with running_simulator({"breaker": BREAKER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        client, task = broken(daemon, space)
        done = daemon.ctl("rollback", task, "--steps", "3", "--prompt", "Touch nothing.")
        assert done.returncode == 0, done.stderr
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        said = [node for node in nodes if node["kind"] == "user"]
        assert [node["text"] for node in said] == ["Tidy up.", "Touch nothing."]
        assert len([node for node in nodes if node["parent"] == said[1]["parent"]]) == 2, "two branches from there"
        tree = daemon.ctl("tree", task).stdout
        assert "branches" in tree


@pytest.mark.parametrize("point", ["J16:1"])
def test_a_crash_in_the_middle_is_carried_to_its_end(tmp_path: Path, point: str) -> None:
    # J16: files first, pointer and state in one commit; whoever looks sees rolling_back
    with running_simulator({"breaker": BREAKER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        good = look(space)
        _, task = broken(daemon, space)
        daemon.stop()
        daemon.start(HARNESSD_CRASH=point)
        assert daemon.ctl("rollback", task, "--to", "n3").returncode == 3, "the daemon died"
        assert daemon.process is not None
        daemon.process.wait(20)
        client = daemon.start()
        until = time.monotonic() + 20
        while client.get(f"/v1/tasks/{task}")["state"] == "rolling_back" and time.monotonic() < until:
            time.sleep(0.05)
        assert client.get(f"/v1/tasks/{task}")["state"] == "paused"
        assert pointer(client, task) == "n3"
        assert look(space) == good


def test_processes_end_first_and_the_tree_stays_as_it_was(tmp_path: Path) -> None:
    # f17
    writer = "sh -c 'while :; do date +%N > a; date > made_$$; sleep 0.02; done' & sleep 0.2"
    steps = {"turns": [{"when": {"results": {"max": 0}}, "call": {"tool": "bash", "args": {"command": writer}}},
                       {"call": {"tool": "bash", "args": {"command": "sleep 60"}}}]}  # fmt: skip
    with running_simulator({"breaker": steps}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        (space / "a").write_text("a\n")
        good = look(space)
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="breaker", workspace=str(space))
        until = time.monotonic() + 20
        while not list(space.glob("made_*")) and time.monotonic() < until:
            time.sleep(0.05)
        refused = daemon.ctl("rollback", task, "--to", "n1")
        assert refused.returncode == 5
        assert "pause" in refused.stderr
        assert daemon.ctl("pause", task, "--now").returncode == 0
        while client.get(f"/v1/tasks/{task}")["state"] != "paused" and time.monotonic() < until:
            time.sleep(0.05)
        done = daemon.ctl("rollback", task, "--to", "n1", "--overwrite", "a", "--json")
        assert done.returncode == 0, done.stderr
        assert look(space) == good
        time.sleep(0.5)
        assert look(space) == good


def test_what_cannot_be_a_target_is_refused_with_what_can(tmp_path: Path) -> None:
    with running_simulator({"breaker": BREAKER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        _, task = broken(daemon, space)
        asked: dict[tuple[str, ...], tuple[int, str]] = {
            ("--to", "n2"): (5, "--to n1 or --to n3"),
            ("--to", "n99"): (4, "has no node n99"),
            ("--steps", "9"): (5, "has made 4 turns"),
            ("--undo",): (5, "was not rolled back"),
            (): (2, "exactly one way"),
            ("--to", "n1", "--undo"): (2, "exactly one way"),
            ("--to", "n1", "--keep", "a", "--overwrite", "a"): (2, "cannot be kept and overwritten"),
            ("--to", "n1", "--undo-effects", "e1"): (5, "no declared undo"),
            ("--to", "n1", "--model", "nobody"): (4, "nobody"),
        }
        for words, (code, said) in asked.items():
            told = daemon.ctl("rollback", task, *words)
            assert (told.returncode, said in told.stderr) == (code, True), (words, told.stdout, told.stderr)
        differ: Any = json.loads(daemon.ctl("diff", task, "n3", "n5", "--json").stdout)
        changed = {one["path"]: one["what"] for one in differ["changes"]}
        assert changed["src/main.py"] == "deleted"
        assert changed["junk/y"] == "added"
        assert "README" in daemon.ctl("diff", task, "n3").stdout
