"""Doctor: each thing it looks at, well and not well; with its remedy where it is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harnessd.cli.upkeep import configuration, premises
from harnessd.cli.upkeep.line import FAIL, OK, WARN
from harnessd.runtime.upkeep.examining import Examining
from tests.running import running, settings
from tests.stores.scenes import opened


# finding 4: sqlite.org/wal.html#walresetbug
@pytest.mark.parametrize(
    ("version", "bug"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_the_wal_reset_bug_is_named(version: tuple[int, int, int], bug: bool) -> None:
    line = premises.wal_reset(version)
    assert line.state == (WARN if bug else OK)
    assert "WAL-reset" in line.says
    assert bool(line.remedy) is bug


def test_a_place_that_a_service_cannot_see_is_told() -> None:
    hidden = "/" + "home/ada/.venv"
    assert premises.place(f"{hidden}/bin/python3", hidden).state == WARN
    assert premises.place("/opt/harnessd/bin/python3", "/opt/harnessd").state == OK
    assert premises.place("/homework/bin/python3", "/homework").state == OK


@pytest.mark.parametrize(("mode", "state"), [(0o644, OK), (0o664, WARN), (0o666, FAIL)])
def test_what_others_may_write_is_told(mode: int, state: str, tmp_path: Path) -> None:
    file = tmp_path / "harness.yaml"
    file.write_text("{}")
    file.chmod(mode)
    line = configuration._guarded("harness.yaml", file, "config")
    assert line.state == state
    assert line.remedy.startswith("chmod") is (state != OK)


@pytest.mark.parametrize(("mode", "state"), [(0o700, OK), (0o750, WARN), (0o777, FAIL)])
def test_a_state_folder_that_others_see_is_told(mode: int, state: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    lines = {line.name: line for line in configuration._state(folder, None)}
    assert lines["folder"].state == state
    assert {"file system", "room"} <= lines.keys()


def test_a_socket_for_everybody_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    tmp_path.chmod(0o755)
    path.chmod(0o666)
    assert premises.socket(str(path)).state == FAIL
    path.chmod(0o660)
    assert premises.socket(str(path)).state == OK


async def test_the_daemon_looks_at_its_store_and_itself(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        found = {line["name"]: line for line in await Examining(store).look()}
    assert found["integrity"]["state"] == OK
    assert found["durability"]["says"] == "journal wal, synchronous full"
    assert {"subreaper", "secrets", "descriptors", "writers", "pidfd", "cgroup"} <= found.keys()
    assert all(line["remedy"] for line in found.values() if line["state"] != OK)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"synchronous_commit": "off"}, FAIL),
        ({"synchronous_commit": "on", "fsync": "off"}, FAIL),
        ({"synchronous_commit": "on", "synchronous_standby_names": ""}, WARN),
        ({"synchronous_commit": "remote_apply", "synchronous_standby_names": "b"}, OK),
    ],
)
async def test_what_a_fail_over_may_lose_is_told(facts: dict[str, str], state: str) -> None:  # finding 10
    class Server:
        async def examine(self) -> dict[str, str]:
            return {"engine": "postgresql", "version": "15", **facts}

    lines = await Examining(Server())._store()  # type: ignore[arg-type]
    assert {line["name"]: line["state"] for line in lines}["durability"] == state


def test_without_a_daemon_it_says_what_it_can(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, "http://127.0.0.1:9", {"m": "anthropic"}))
        done = daemon.ctl("doctor", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        names = {(line["area"], line["name"]): line for line in found["checks"]}
        assert found["ok"] is True
        assert names["daemon", "running"]["state"] == WARN
        assert names["store", "integrity"]["state"] == WARN  # the client opens no store
        assert names["store", "sqlite"]["says"].startswith("SQLite 3.")
        assert daemon.ctl("doctor", "--strict").returncode == 1
        daemon.config.write_text("models: 3")
        broken = daemon.ctl("doctor")
        assert broken.returncode == 1
        assert "harness.yaml" in broken.stdout
        assert not os.path.exists(tmp_path / "state")  # noqa: PTH110 - nothing was made
