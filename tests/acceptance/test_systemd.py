"""systemd: the shipped unit, installed by `service install` and run by a real systemd in a booted machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.booted.machine import boot, cannot_boot, installation

pytestmark = pytest.mark.acceptance

CHECKS = {
    *("installed", "ready", "hardened", "credentials", "group", "reloaded", "drained", "cut", "activated", "refused"),
    *("killed", "watched", "uninstalled"),
}


@pytest.mark.timeout(480)
def test_the_shipped_unit_under_a_real_systemd(tmp_path: Path) -> None:
    # F36, S7: ready, reload, watchdog, kill -9, drain, credentials, socket activation, exit status 78, hardening.
    if why := cannot_boot():
        assert "NSPAWN_REQUIRED" not in os.environ, f"this run must boot the unit, and cannot: {why}"
        pytest.skip(f"{why}: the unit was not booted")
    found = boot(tmp_path, installation(tmp_path / "installation"))
    failed = {name: seen for name, seen in found.items() if not seen["ok"]}
    for name, seen in failed.items():
        print(f"--- {name}\n{seen['traceback']}\n{seen['journal']}")
    print(json.dumps({name: seen["took_s"] for name, seen in found.items()}))
    assert not failed, f"checks that failed: {', '.join(failed)}"
    assert set(found) == CHECKS
