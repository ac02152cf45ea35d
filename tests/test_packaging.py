"""The wheel: what is inside, what it says of itself, and that it works away from the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import harnessd

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once, from a copy of what is committed, so that nothing lying around gets in."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (REPO / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target],
        cwd=source, check=True, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (built,) = target.glob("*.whl")
    return built


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_the_shipped_policies(wheel: Path) -> None:
    # R7.1: the built-in defaults are the repository's files, one truth.
    with zipfile.ZipFile(wheel) as archive:
        shipped = {
            Path(name).name: archive.read(name)
            for name in archive.namelist()
            if re.fullmatch(r"harnessd/_builtin/policies/[a-z]+\.yaml", name)
        }
    assert shipped == {path.name: path.read_bytes() for path in (REPO / "policies").glob("*.yaml")}
    assert shipped


def test_wheel_brings_the_manual_pages(wheel: Path) -> None:
    pages = {name.rpartition("/")[2] for name in names(wheel) if "/data/share/man/man1/" in name}
    assert pages == {"harnessctl.1", "harnessd.1"}


def test_wheel_holds_every_file_the_package_reads(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "harnessd"], cwd=REPO, check=True, capture_output=True
    ).stdout.decode()
    wanted = {name for name in listed.split("\0") if name and (REPO / name).is_file()}
    assert wanted - names(wheel) == set()
    assert "harnessd/py.typed" in names(wheel)


def test_wheel_holds_the_unit(wheel: Path) -> None:
    assert "harnessd/_builtin/deploy/harnessd.service" in names(wheel)


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    own = f"harnessd-{harnessd.__version__}"
    assert {name.split("/")[0] for name in names(wheel)} == {"harnessd", f"{own}.dist-info", f"{own}.data"}
    data = [name for name in names(wheel) if name.startswith(f"{own}.data/")]
    assert all(name.startswith(f"{own}.data/data/share/man/man1/") for name in data), data


def test_metadata_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = f"harnessd-{harnessd.__version__}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
        licence = archive.read(f"{folder}/licenses/LICENSE").decode()
    assert metadata["Version"] == harnessd.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "harnessd = harnessd.cli:harnessd" in scripts
    assert "harnessctl = harnessd.cli:harnessctl" in scripts
    assert "Apache License" in licence


@pytest.mark.parametrize("program", ["harnessd", "harnessctl"])
def test_installed_wheel_runs_away_from_the_source(wheel: Path, tmp_path: Path, program: str) -> None:
    # Unpacked is installed: a pure wheel is its own site-packages folder.
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = f"import sys; sys.argv[0] = {program!r}; from harnessd.cli import {program}; {program}()"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "LANG": "C.UTF-8", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert harnessd.__version__ in done.stdout


def test_installed_wheel_finds_its_policies(wheel: Path, tmp_path: Path) -> None:
    # R7.1: an operator's empty folder works, since the defaults come with the program.
    site, folder = tmp_path / "site", tmp_path / "config"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    shutil.copytree(REPO / "deploy", folder)
    (folder / "policies").mkdir()
    harness = (folder / "harness.yaml").read_text(encoding="utf-8").replace("/etc/harnessd", str(folder))
    (folder / "harness.yaml").write_text(harness, encoding="utf-8")
    code = "from harnessd.cli import harnessd; harnessd()"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "LANG": "C.UTF-8", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "--config", folder / "harness.yaml"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_knows_this_version() -> None:
    changelog = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    assert harnessd.__version__ in headings
    sections = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Fixed", "Removed", "Security"}


def test_direct_dependencies_are_bounded_from_below() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    assert [name for group in groups for name in group if not re.search(r">=|==", name)] == []
