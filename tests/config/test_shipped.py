"""What is shipped: the default policies are found in the checkout, and in an installed wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harnessd.config.files import builtin_folder
from harnessd.config.load import builtin_policies

ROOT = Path(__file__).resolve().parents[2]


def test_the_defaults_are_found_in_the_repository() -> None:
    assert builtin_folder() == ROOT / "policies"


@pytest.mark.slow
def test_the_wheel_carries_the_defaults(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "from harnessd.config.files import builtin_folder\n"
        "from harnessd.config.load import builtin_policies\n"
        "print(builtin_folder(), builtin_policies().hash)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(tmp_path / "installed")},
    )
    folder, content = ran.stdout.split()
    assert folder == str(tmp_path / "installed/harnessd/_builtin/policies")
    assert content == builtin_policies().hash
