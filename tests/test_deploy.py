"""The systemd units: valid, hardened to the grade we promise, and agreeing with the daemon about its figures."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[1]
DEPLOY = REPO / "deploy"
UNIT = DEPLOY / "harnessd.service"
# What `systemd-analyze security` may find at most, in tenths: the daemon alone, and with tools in bubblewrap (S7).
EXPOSURE, EXPOSURE_WITH_NAMESPACES = 15, 30


@pytest.fixture
def systemd_analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        assert "CI" not in os.environ, "CI must have systemd-analyze: the units would go unchecked"
        pytest.skip("systemd-analyze is not installed: the units were not checked")
    return found


@pytest.fixture
def existing_program(tmp_path: Path) -> Path:
    # `verify` refuses an ExecStart that is not there, and /opt/harnessd is not there before installation.
    program = tmp_path / "harnessd"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def installed(unit: Path, program: Path, into: Path, *drop_ins: Path) -> Path:
    """Copy a unit as an administrator would lay it, with programs that exist."""
    text = re.sub(r"^(Exec\w+=)\S+", rf"\1{program}", unit.read_text(encoding="utf-8"), flags=re.MULTILINE)
    into.mkdir()
    (into / unit.name).write_text(text, encoding="utf-8")
    if drop_ins:
        folder = into / f"{unit.name}.d"
        folder.mkdir()
        for drop_in in drop_ins:
            shutil.copy(drop_in, folder)
    return into / unit.name


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def settings(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


@pytest.mark.parametrize("drop_ins", [[], sorted((DEPLOY / "drop-ins").glob("*.conf"))], ids=["alone", "with drop-ins"])
def test_unit_is_valid(systemd_analyze: str, existing_program: Path, tmp_path: Path, drop_ins: list[Path]) -> None:
    unit = installed(UNIT, existing_program, tmp_path / "units", *drop_ins)
    # Without --recursive-errors=yes a misspelt key still exits 0.
    done = run(systemd_analyze, "verify", "--man=no", "--recursive-errors=yes", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_user_unit_is_valid(systemd_analyze: str, existing_program: Path, tmp_path: Path) -> None:
    unit = installed(DEPLOY / "user" / "harnessd.service", existing_program, tmp_path / "units")
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    done = run(
        systemd_analyze, "--user", "verify", "--man=no", "--recursive-errors=yes", unit, XDG_RUNTIME_DIR=str(runtime)
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_would_notice(systemd_analyze: str, existing_program: Path, tmp_path: Path) -> None:
    unit = installed(UNIT, existing_program, tmp_path / "units")
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectHome=", "ProtectHomes="), encoding="utf-8")
    done = run(systemd_analyze, "verify", "--man=no", "--recursive-errors=yes", unit)
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("drop_ins", "threshold"),
    [([], EXPOSURE), ([DEPLOY / "drop-ins" / "sandbox.conf"], EXPOSURE_WITH_NAMESPACES)],
    ids=["daemon", "with sandboxed tools"],
)
def test_exposure(
    systemd_analyze: str, existing_program: Path, tmp_path: Path, drop_ins: list[Path], threshold: int
) -> None:
    unit = installed(UNIT, existing_program, tmp_path / "units", *drop_ins)
    done = run(
        systemd_analyze, "security", "--offline=true", f"--threshold={threshold}", "--no-pager", unit,
        SYSTEMD_UNIT_PATH=f"{unit.parent}:",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:]
    print(done.stdout.splitlines()[-1])


def test_unit_and_configuration_agree() -> None:
    service = settings(UNIT)
    harness = yaml.safe_load((DEPLOY / "harness.yaml").read_text(encoding="utf-8"))
    assert int(service["TimeoutStopSec"]) > int(harness["drain"].removesuffix("s"))
    writable = [Path("/var/lib") / name for name in service["StateDirectory"].split()]
    assert Path(harness["store"]["url"].removeprefix("sqlite:")).parent in writable
    assert all(Path(root) in writable for root in harness["workspaces"]["roots"])
    named = {model["key"]["credential"] for model in harness["models"].values()}
    assert all(f"LoadCredential={name}:" in UNIT.read_text(encoding="utf-8") for name in named)


def test_unit_restarts_after_a_fault_but_not_after_a_mistake() -> None:
    service = settings(UNIT)
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "78"
    assert (service["Type"], service["NotifyAccess"], service["WatchdogSec"]) == ("notify", "main", "30")
    # A tool must outlive the SIGTERM that the daemon gets, else draining would cut what it waits for.
    assert service["KillMode"] == "mixed"
