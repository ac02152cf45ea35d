"""Guest: what happens inside the booted machine, as root: harnessd is installed as its manual says, used and hurt.

Each check notes what it saw; one that fails notes why, and the next goes on. Written to /out/findings.json.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

BIN = "/opt/harnessd/bin"
UNIT = "harnessd.service"
KEY = "sk-ant-a-key-for-the-test-alone"
SIMULATOR, RECORDER = 8099, 8100
WORK = Path("/var/lib/harnessd/work")
CONFIG = Path("/etc/harnessd/harness.yaml")
LONG_S = 90.0  # a busy machine is no fault
# Shorter figures than the shipped ones, and nothing else.
FIGURES = "[Service]\nWatchdogSec=4\nRestartSec=1\n[Unit]\nStartLimitIntervalSec=0\n"

LOOK = """{ id -un; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; ls -A /home /root; env; } >look 2>&1
touch /etc/made /usr/made /var/made; printf kept >kept; git --version >>look; true"""


def _bash(command: str) -> dict[str, Any]:
    return {"tool": "bash", "args": {"command": command}}


SCRIPTS: dict[str, Any] = {
    "models": {
        "look": {"turns": [{"when": {"first": True}, "call": _bash(LOOK)}, {"say": "Seen."}]},
        "slow": {
            "turns": [
                {"when": {"first": True}, "call": _bash("touch begun; sleep 3; echo end >>ended")},
                {"when": {"results": {"max": 1}}, "call": _bash("echo two >>two")},
                {"say": "Done."},
            ]
        },
        "long": {
            "turns": [
                {"when": {"first": True}, "call": _bash("touch begun; sleep 60")},
                {"say": "Done."},
            ]
        },
    }
}  # fmt: skip
_findings: dict[str, dict[str, Any]] = {}
_keys: list[str | None] = []


def check(work: Callable[[], Mapping[str, Any]]) -> None:
    """Run one check, note what it saw and how long it took."""
    began = time.monotonic()
    try:
        seen = {"ok": True, **work()}
    except Exception:  # noqa: BLE001 - the next check shall still run
        journal = run("journalctl", "-u", UNIT, "-n", "30", "-o", "cat", "--no-pager").stdout
        seen = {"ok": False, "traceback": traceback.format_exc(), "journal": journal[-3000:]}
    _findings[work.__name__] = {**seen, "took_s": round(time.monotonic() - began, 1)}
    print(work.__name__, json.dumps(_findings[work.__name__]), flush=True)
    Path("/out/findings.json").write_text(json.dumps(_findings, indent=1))


def run(*command: str, status: int | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=LONG_S * 2, **more
    )
    assert status is None or done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def systemctl(*words: str, status: int | None = 0) -> str:
    return run("systemctl", *words, status=status).stdout


def ctl(*words: str, status: int | None = 0) -> str:
    return run(f"{BIN}/harnessctl", *words, status=status).stdout


def facts(*names: str) -> dict[str, str]:
    """Properties of the unit as systemd sees it."""
    lines = systemctl("show", UNIT, *(f"--property={name}" for name in names)).splitlines()
    return dict(line.split("=", 1) for line in lines)


def until(fits: Callable[[], Any], what: str) -> Any:
    ends = time.monotonic() + LONG_S
    while not (found := fits()):
        assert time.monotonic() < ends, f"not within {LONG_S:.0f} s: {what}"
        time.sleep(0.1)
    return found


def submit(model: str, name: str) -> str:
    folder = WORK / name
    folder.mkdir()
    os.chown(folder, *_owner())
    return ctl("submit", "--agent", model, "--workspace", str(folder), "-q", "Work.").strip()


def row(task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ctl("status", task, "--json"))
    return found


def until_completed(task: str) -> dict[str, Any]:
    """The task's row; while the daemon is started anew nobody answers."""

    def ended() -> dict[str, Any] | None:
        done = run(f"{BIN}/harnessctl", "status", task, "--json")
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found if found.get("state") in {"completed", "stopped"} else None

    found: dict[str, Any] = until(ended, f"{task} ends")
    assert found["state"] == "completed", found
    return found


def _owner() -> tuple[int, int]:
    facts_ = WORK.stat()
    return facts_.st_uid, facts_.st_gid


# --- the checks, in order ---------------------------------------------------------------------------------------------


def installed() -> dict[str, Any]:
    """`service install` from nothing; again with a key; a dry run changes nothing."""
    dry = ctl("service", "install", "--dry-run")
    assert not CONFIG.exists(), "a dry run wrote"
    ctl("service", "install")
    key = Path("/etc/harnessd/credentials/anthropic")
    key.write_text(KEY)
    key.chmod(0o600)
    ctl("service", "install")
    again = ctl("service", "install")
    assert "wrote" not in again, again
    assert systemctl("is-enabled", UNIT).strip() == "enabled"
    figures = Path(f"/etc/systemd/system/{UNIT}.d/figures.conf")
    figures.write_text(FIGURES)
    systemctl("daemon-reload")
    document = yaml.safe_load(CONFIG.read_text())
    primary = document["models"]["primary"]
    document["policies"]["watch"] = False  # so that a reload is what changes a policy
    document["drain"] = "30s"
    local = f"http://127.0.0.1:{SIMULATOR}"
    document["models"] |= {name: primary | {"base_url": local, "model": name} for name in SCRIPTS["models"]}
    document["models"]["recorder"] = primary | {"base_url": f"http://127.0.0.1:{RECORDER}"}
    document["agents"] |= {name: document["agents"]["coder"] | {"model": name} for name in SCRIPTS["models"]}
    CONFIG.write_text(json.dumps(document))
    run(f"{BIN}/harnessd", "check", "--config", str(CONFIG), status=0)
    return {"dry": dry}


def ready() -> dict[str, Any]:
    """`start` comes back when the daemon serves, and not before."""
    systemctl("start", UNIT)
    status = json.loads(ctl("status", "--json"))
    told = facts("Type", "ActiveState", "SubState", "StatusText", "MainPID", "WatchdogUSec", "Result")
    assert status["ready"]
    assert (told["Type"], told["ActiveState"], told["SubState"]) == ("notify", "active", "running")
    assert "in force" in told["StatusText"], told
    assert int(told["MainPID"]) == status["pid"]
    return told


def hardened() -> dict[str, Any]:
    """Tools run inside the shipped unit, the state is written, and what is closed is closed."""
    task = submit("look", "look")
    until_completed(task)
    seen = (WORK / "look" / "look").read_text()
    assert seen.splitlines()[0] == "harnessd", seen
    assert re.search(r"CapEff:\s+0{16}\b", seen), seen
    assert re.search(r"NoNewPrivs:\s+1", seen), seen
    assert re.search(r"Seccomp:\s+2", seen), seen
    assert "git version" in seen
    assert (WORK / "look" / "kept").read_text() == "kept"
    made = [path for path in ("/etc/made", "/usr/made", "/var/made") if Path(path).exists()]
    assert not made, made
    pid = facts("MainPID")["MainPID"]
    assert Path(f"/proc/{pid}").stat().st_uid == _owner()[0] != 0
    assert any(Path("/var/lib/harnessd/state/checkpoints").iterdir()), "no checkpoint was taken"
    assert KEY not in seen
    return {"look": seen}


def credentials() -> dict[str, Any]:
    """The key reaches the service as a file, and stands in no environment."""
    pid = facts("MainPID")["MainPID"]
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert KEY.encode() not in environment
    assert b"CREDENTIALS_DIRECTORY=" in environment
    ctl("model", "check", "recorder", status=None)
    assert _keys, "the service was not called"
    assert set(_keys) == {KEY}, "the key did not arrive"
    logs = run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager").stdout
    assert KEY not in logs
    return {"calls": len(_keys)}


def group() -> dict[str, Any]:
    """Who is in the group may call; others may not."""
    Path("/etc/sysusers.d/people.conf").write_text("u ada - - / /bin/sh\nm ada harnessd\nu eve - - / /bin/sh\n")
    run("systemd-sysusers", "people.conf", status=0)
    mine = run("setpriv", "--reuid=ada", "--regid=ada", "--init-groups", f"{BIN}/harnessctl", "status")
    other = run("setpriv", "--reuid=eve", "--regid=eve", "--init-groups", f"{BIN}/harnessctl", "status")
    assert mine.returncode == 0, mine.stderr
    assert other.returncode != 0, other.stdout
    return {"refused": other.stderr}


def reloaded() -> dict[str, Any]:
    """`systemctl reload` changes a policy; SIGHUP says RELOADING with its time, and READY."""
    before = json.loads(ctl("status", "--json"))["policies"]["revision"]
    policy = Path("/etc/harnessd/policies/retry.yaml")
    policy.write_text("kind: retry\nmodel: {retries: 3}\n")
    systemctl("reload", UNIT)
    after = json.loads(ctl("status", "--json"))["policies"]["revision"]
    assert after > before, (before, after)
    policy.write_text("kind: retry\nmodel: {retires: 3}\n")
    refused = run("systemctl", "reload", UNIT)
    assert refused.returncode != 0, "a reload that was refused must not look done"
    assert facts("ActiveState")["ActiveState"] == "active"
    policy.write_text("kind: retry\nmodel: {retries: 4}\n")
    systemctl("log-level", "debug")
    systemctl("kill", "--kill-who=main", "--signal=HUP", UNIT)
    pattern = r"Got notification message from PID \d+ \(RELOADING=1, MONOTONIC_USEC=\d+\)"
    until(lambda: re.search(pattern, run("journalctl", "_PID=1", "-o", "cat", "--no-pager").stdout), "RELOADING=1")
    systemctl("log-level", "info")
    until(lambda: json.loads(ctl("status", "--json"))["policies"]["revision"] > after, "the third set is in force")
    until(lambda: facts("SubState")["SubState"] == "running", "READY=1 after it")
    return {"revisions": [before, after]}


def killed() -> dict[str, Any]:
    """kill -9: started again, and the task goes on."""
    return _hurt("killed", signal.SIGKILL, "signal")


def watched() -> dict[str, Any]:
    """A daemon that stands still is found by the watchdog and started again, and the task goes on."""
    return _hurt("watched", signal.SIGSTOP, "watchdog")


def _hurt(name: str, number: signal.Signals, result: str) -> dict[str, Any]:
    before = facts("MainPID", "NRestarts")
    task = submit("slow", name)
    until((WORK / name / "begun").exists, "the tool runs")
    os.kill(int(before["MainPID"]), number)
    until(lambda: int(facts("NRestarts")["NRestarts"]) > int(before["NRestarts"]), "systemd starts it again")
    until_completed(task)
    after = facts("MainPID", "ActiveState", "NRestarts")
    assert after["MainPID"] != before["MainPID"]
    assert after["ActiveState"] == "active"
    journal = run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager").stdout
    assert f"Failed with result '{result}'" in journal, journal[-2000:]
    assert (WORK / name / "two").read_text() == "two\n", "the step after it ran once"
    return after


def drained() -> dict[str, Any]:
    """`harnessctl drain`: empty, no new claims, and back; then `systemctl stop` hands a running task back."""
    first = submit("slow", "drained")
    until((WORK / "drained" / "begun").exists, "the tool runs")
    told = ctl("drain", "--timeout", "60s")
    assert "is empty after" in told, told
    assert "nothing was cut" in told, told
    assert json.loads(ctl("status", "--json"))["draining"]
    assert row(first)["state"] == "queued"
    assert (WORK / "drained" / "ended").read_text() == "end\n", "the call was let end"
    ctl("drain", "--cancel")
    until_completed(first)
    second = submit("slow", "stopped")
    until((WORK / "stopped" / "begun").exists, "the tool runs")
    began = time.monotonic()
    systemctl("stop", UNIT)
    took_s = time.monotonic() - began
    assert facts("Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    assert (WORK / "stopped" / "ended").read_text() == "end\n", "the call was let end"
    systemctl("start", UNIT)
    until_completed(second)
    events = ctl("logs", second, "--json")
    assert "handed_back" in events, events[-1500:]
    assert (WORK / "stopped" / "ended").read_text() == "end\n", "nothing ran twice"
    return {"told": told, "stop_s": round(took_s, 1)}


def cut() -> dict[str, Any]:
    """A step that does not end is cut at the timeout, the exit status says so, and the task goes on afterwards."""
    task = submit("long", "long")
    until((WORK / "long" / "begun").exists, "the tool runs")
    done = run(f"{BIN}/harnessctl", "drain", "--timeout", "1s")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 task cut" in done.stdout, done.stdout
    ctl("drain", "--cancel")
    until_completed(task)
    return {"told": done.stdout}


def activated() -> dict[str, Any]:
    """With the socket unit the first connection starts the daemon, and restarts refuse nobody."""
    systemctl("stop", UNIT)
    ctl("service", "install", "--socket-unit")
    systemctl("start", "harnessd.socket")
    assert facts("ActiveState")["ActiveState"] == "inactive"
    inode = Path("/run/harnessd/api.sock").stat().st_ino
    assert json.loads(ctl("status", "--json"))["ready"]
    assert facts("ActiveState")["ActiveState"] == "active"
    systemctl("restart", UNIT)
    ctl("status")
    assert Path("/run/harnessd/api.sock").stat().st_ino == inode, "it is systemd's socket all the time"
    mine = run("setpriv", "--reuid=ada", "--regid=ada", "--init-groups", f"{BIN}/harnessctl", "status")
    assert mine.returncode == 0, mine.stderr
    systemctl("stop", "harnessd.socket", UNIT)
    ctl("service", "install")
    assert not Path("/etc/systemd/system/harnessd.socket").exists()
    return {}


def refused() -> dict[str, Any]:
    """A configuration that cannot be used: exit status 78, and no second try."""
    whole = CONFIG.read_text()
    CONFIG.write_text(whole.replace('"workspaces"', '"workspases"'))
    try:
        done = run("systemctl", "start", UNIT)
        assert done.returncode != 0
        time.sleep(2.5)  # RestartSec= is 1 here
        told = facts("ActiveState", "ExecMainStatus", "NRestarts", "Result")
        assert (told["ActiveState"], told["ExecMainStatus"], told["NRestarts"]) == ("failed", "78", "0"), told
        journal = run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager").stdout
        assert "workspases" in journal
    finally:
        CONFIG.write_text(whole)
    systemctl("start", UNIT)
    return told


def uninstalled() -> dict[str, Any]:
    """Gone from systemd; configuration and state stay."""
    Path(f"/etc/systemd/system/{UNIT}.d/figures.conf").unlink()
    ctl("service", "uninstall")
    assert facts("LoadState", "ActiveState") == {"LoadState": "not-found", "ActiveState": "inactive"}
    assert CONFIG.exists()
    assert Path("/var/lib/harnessd/state/harnessd.db").exists()
    ctl("service", "uninstall")
    return {}


class _Recorder(http.server.BaseHTTPRequestHandler):
    """A service that refuses everybody and notes the key they bring."""

    def do_POST(self) -> None:
        _keys.append(self.headers.get("x-api-key"))
        body = b'{"type":"error","error":{"type":"permission_error","message":"no"}}'
        self.send_response(403)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


def main() -> None:
    scripts = Path("/run/scripts.json")
    scripts.write_text(json.dumps(SCRIPTS))
    command = [f"{BIN}/python", "-m", "harnessd.simulator", "--port", str(SIMULATOR), "--scripts", str(scripts)]
    simulator = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    recorder = http.server.ThreadingHTTPServer(("127.0.0.1", RECORDER), _Recorder)
    threading.Thread(target=recorder.serve_forever, daemon=True).start()
    for work in (
        *(installed, ready, hardened, credentials, group, reloaded, drained, cut, activated, refused),
        *(killed, watched, uninstalled),
    ):
        check(work)
    simulator.terminate()


main()
