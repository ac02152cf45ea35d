"""Machine: boots this machine's own /usr under systemd-nspawn, with harnessd in /opt, and gives what a scene found.

Nothing of the machine is changed: its root is a tmpfs, its network is loopback alone, and it powers itself off.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"  # an interpreter below a home folder is hidden from the service
BOOT_S = 420.0
_SCENE = """[Unit]
Description=the scene of a test
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/opt/harnessd/bin/python /scene/guest.py
StandardOutput=append:/out/scene.log
StandardError=append:/out/scene.log
"""


def cannot_boot() -> str:
    """Why this machine boots no other; empty if it can."""
    if os.geteuid() != 0:
        return "systemd-nspawn needs root"
    if shutil.which("systemd-nspawn") is None:
        return "systemd-nspawn is not installed (Debian: systemd-container)"
    if not Path(PYTHON).exists():
        return f"there is no {PYTHON}"
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and not Path("/sys/fs/cgroup/systemd").exists():
        return "no control groups of systemd's are mounted"
    return ""


def installation(folder: Path) -> Path:
    """A virtual environment of the system's Python, with harnessd and what constraints/run.txt pins, for /opt/harnessd.

    Where this environment's packages were built for the same Python, they are copied; else pip fetches them.
    """
    run(PYTHON, "-m", "venv", "--without-pip", "--symlinks", str(folder))
    asked = run(PYTHON, "-c", "import sys; print('{}.{}'.format(*sys.version_info))").strip()
    packages = folder / "lib" / f"python{asked}" / "site-packages"
    if asked == "{}.{}".format(*sys.version_info):
        for name in pinned():
            _copy_distribution(name, packages)
    else:
        command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        run(*command, "--target", str(packages), "--require-hashes", "-r", str(REPO / "constraints/run.txt"))
    shutil.copytree(REPO / "harnessd", packages / "harnessd")
    for shipped in ("deploy", "policies"):
        shutil.copytree(REPO / shipped, packages / "harnessd" / "_builtin" / shipped)
    # Nothing can be compiled inside, where it is read-only; what came along compiled is not compiled again.
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(packages)], check=False, stdout=subprocess.DEVNULL)
    for program in ("harnessd", "harnessctl"):
        script = folder / "bin" / program
        script.write_text(f"#!/opt/harnessd/bin/python\nfrom harnessd.cli import {program}\n{program}()\n")
        script.chmod(0o755)
    return folder


def pinned() -> list[str]:
    """The names in constraints/run.txt."""
    text = (REPO / "constraints" / "run.txt").read_text(encoding="utf-8")
    return re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)


def boot(folder: Path, program: Path) -> dict[str, Any]:
    """Boot, let the scene run to its end, and give its findings. `folder` is scratch, `program` an installation."""
    scene, out = folder / "scene", folder / "out"
    for made in (scene, out):
        made.mkdir()
    shutil.copy(Path(__file__).with_name("guest.py"), scene)
    (scene / "scene.service").write_text(_SCENE)
    command = [
        "systemd-nspawn", "-D", "/", "--volatile=yes", "--boot", "--register=no", "--keep-unit", "--private-network",
        "--console=pipe", f"--machine=harnessd-{os.getpid()}", f"--bind-ro={program}:/opt/harnessd",
        f"--bind-ro={scene}:/scene", f"--bind={out}:/out",
        f"--bind-ro={scene}/scene.service:/etc/systemd/system/scene.service", "systemd.wants=scene.service",
        # There is no network to wait for, and other services of this /usr are not looked at.
        *(f"systemd.mask={of}.service" for of in ("systemd-networkd-wait-online", "systemd-networkd", "postgresql")),
    ]  # fmt: skip
    # A machine must not outlive a test run that is killed.
    done = subprocess.run(
        ["timeout", "--kill-after=5", str(BOOT_S), *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        check=False, timeout=BOOT_S + 20,
    )  # fmt: skip
    findings, log = out / "findings.json", out / "scene.log"
    told = f"{done.stdout[-2000:]}\n{log.read_text(errors='replace')[-4000:] if log.exists() else ''}"
    assert findings.exists(), f"the machine ended with {done.returncode} and found nothing:\n{told}"
    found: dict[str, Any] = json.loads(findings.read_text())
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def _copy_distribution(name: str, packages: Path) -> None:
    for file in importlib.metadata.distribution(name).files or ():
        if ".." in file.parts:  # programs and manual pages: nobody calls them here
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(file.locate()), target)
