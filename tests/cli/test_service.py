"""harnessctl service: what install writes into a tree, again and again, and takes away; what it refuses, and how."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harnessd.cli.service.hands import hidden_from_service
from tests.running import plain_environment

UNIT = "etc/systemd/system/harnessd.service"


def service(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harnessd.cli", "service", *map(str, words)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=plain_environment() | environment,
    )  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    if shutil.which("systemctl") is None or shutil.which("systemd-sysusers") is None:
        assert "CI" not in os.environ, "CI must have systemd"
        pytest.skip("systemctl is not installed")
    return tmp_path / "tree"


def install(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return service("install", "--root", tree, "--prefix", "/opt/elsewhere", *words)


def test_install_may_be_repeated_and_keeps_what_a_person_wrote(tree: Path) -> None:
    assert install(tree, "--dry-run").returncode == 0
    assert not tree.exists()
    first = install(tree)
    assert first.returncode == 0, first.stderr
    unit = (tree / UNIT).read_text()
    assert "ExecStart=/opt/elsewhere/bin/harnessd run --config /etc/harnessd/harness.yaml" in unit
    assert "ExecReload=/opt/elsewhere/bin/harnessctl policy reload" in unit
    assert (tree / "etc/systemd/system/multi-user.target.wants/harnessd.service").is_symlink()
    assert (tree / "etc/harnessd/credentials").stat().st_mode & 0o777 == 0o700
    (tree / "etc/harnessd/harness.yaml").write_text("# mine\n")
    (tree / "etc/harnessd/credentials/anthropic").write_text("k")
    second = json.loads(install(tree, "--json").stdout)
    done = {file["path"]: file["done"] for file in second["files"]}
    assert done["/etc/systemd/system/harnessd.service"] == "as it was"
    assert (tree / "etc/harnessd/harness.yaml").read_text() == "# mine\n"
    credentials = (tree / f"{UNIT}.d/credentials.conf").read_text()
    assert "LoadCredential=anthropic:/etc/harnessd/credentials/anthropic\n" in credentials


def test_a_socket_unit_comes_and_goes_and_uninstall_leaves_what_is_not_ours(tree: Path) -> None:
    assert install(tree, "--socket-unit", "--drop-in", "sandbox").returncode == 0
    wanted = tree / "etc/systemd/system/sockets.target.wants/harnessd.socket"
    assert wanted.is_symlink()
    own = tree / f"{UNIT}.d/own.conf"
    own.write_text("[Service]\nNice=5\n")
    assert install(tree).returncode == 0
    assert not wanted.is_symlink()
    assert not (tree / f"{UNIT}.d/sandbox.conf").exists()
    done = service("uninstall", "--root", tree)
    assert done.returncode == 0, done.stderr
    assert not (tree / UNIT).exists()
    assert own.exists()
    assert (tree / "etc/harnessd/harness.yaml").exists()
    assert service("uninstall", "--root", tree).returncode == 0


def test_a_unit_that_a_person_wrote_is_written_over_only_by_force(tree: Path) -> None:
    (tree / UNIT).parent.mkdir(parents=True)
    (tree / UNIT).write_text("[Service]\nExecStart=/bin/true\n")
    refused = install(tree)
    assert refused.returncode == 5
    assert "was not written by harnessctl" in refused.stderr
    assert "ExecStart=/bin/true" in (tree / UNIT).read_text()
    assert install(tree, "--force").returncode == 0


def test_an_installation_that_the_unit_hides_is_refused(tmp_path: Path) -> None:
    refused = service("install", "--root", tmp_path / "tree", "--prefix", "/home/ada/venv")
    assert refused.returncode == 5
    assert "/home/ada/venv cannot be seen by a system service" in refused.stderr
    assert "/usr/bin/python3 -m venv /opt/harnessd" in refused.stderr
    assert not (tmp_path / "tree").exists()
    dry = service("install", "--dry-run", "--prefix", "/home/ada/venv")
    assert (dry.returncode, "Nothing was changed." in dry.stderr) == (0, True)


def test_a_link_to_a_hidden_python_is_seen_through(tmp_path: Path) -> None:
    program = tmp_path / "p"
    (program / "bin").mkdir(parents=True)
    interpreter = Path("/home/ada/python")
    (program / "bin" / "python").symlink_to(interpreter)
    # A link that leads nowhere here is no program; where it leads somewhere, its end is what counts.
    assert str(interpreter) not in hidden_from_service(str(program))
    (program / "bin" / "python").unlink()
    (program / "bin" / "python").symlink_to(sys.executable)
    real = os.path.realpath(sys.executable)
    assert (real in hidden_from_service(str(program))) == real.startswith(("/root", "/home", "/tmp"))


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs this machine")
def test_without_systemd_it_says_what_to_do_instead(tmp_path: Path) -> None:
    refused = service("install", "--user", HOME=str(tmp_path))
    assert refused.returncode == 1
    assert "systemd does not run this machine." in refused.stderr
    assert "harnessd run" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_print_shows_the_files_of_a_user(tmp_path: Path) -> None:
    shown = service("print", "--user", "--prefix", "/opt/elsewhere", HOME=str(tmp_path)).stdout
    assert f"# --- {tmp_path}/.config/systemd/user/harnessd.service" in shown
    assert "ExecStart=/opt/elsewhere/bin/harnessd run" in shown
    assert f"sqlite:{tmp_path}/.local/state/harnessd/state/harnessd.db" in shown
    assert "/var/lib/harnessd" not in shown
    assert "/etc/harnessd" not in shown
