"""policy explain and schema: every key can be asked for; what is written as an example is valid; near misses."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from harnessd.config.load import builtin_policies
from harnessd.policy.assembly.kinds import KINDS
from harnessd.policy.reference.explain import keys
from tests.cli.policy.conftest import Ctl, Place


def test_all_kinds_are_named(ctl: Ctl) -> None:
    done = ctl("explain")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["KIND", *KINDS]
    found = json.loads(ctl("explain", "--json").out)["kinds"]
    assert {row["kind"]: row["scope"] for row in found}["assign"] == "daemon"


def test_a_kind_lists_its_keys(ctl: Ctl) -> None:
    done = ctl("explain", "budget")
    row = next(line for line in done.out.splitlines() if line.startswith("limits.tool_calls"))
    assert row.split("  ")[0] == "limits.tool_calls"
    for word in ("count or none", "90", "0..1M"):
        assert word in row
    assert "note" in done.err


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "retry.model.classes.rate_limited.retries",
            ("count", "10", "0..100", "classes: {rate_limited: {retries: 10}}"),
        ),
        ("retry.model.classes.malformed_output.retries", ("count", "  default  2\n", "{retries: 2}")),
        ("tools.rules.timeout.life", ("duration or none", "2h", "1s..30d", "rules: [{timeout: {life: 2h}}]")),
        ("tools.rules[].timeout.life", ("duration or none",)),
        ("budget.warn_at", ("list of ratio", "[70%, 90%]")),
        ("budget.note", ("500 characters", "The reason or the ticket")),
    ],
)
def test_one_key(ctl: Ctl, path: str, words: tuple[str, ...]) -> None:
    # R7.3; the paths that policies.md names
    done = ctl("explain", path)
    assert done.code == 0
    for word in words:
        assert word in done.out, done.out


def test_a_part_of_a_kind(ctl: Ctl) -> None:
    found = json.loads(ctl("explain", "retry.model.slow", "--json").out)["keys"]
    assert [key["path"] for key in found] == ["retry.model.slow.over", "retry.model.slow.switch_after"]


@pytest.mark.parametrize(
    ("path", "code", "hint"),
    [
        ("bugdet", 2, '"budget"'),
        ("budget.limits.tool_cals", 4, "budget.limits.tool_calls"),
        ("budget.\x1b[2J", 4, ""),
        ("retry.model.retries.more", 4, ""),
    ],
)
def test_near_misses(ctl: Ctl, path: str, code: int, hint: str) -> None:
    done = ctl("explain", path)
    assert (done.code, done.out) == (code, "")
    assert len(done.err.splitlines()) == 2
    assert hint in done.err
    assert "\x1b" not in done.err
    error = json.loads(ctl("explain", path, "--json").err)["error"]
    assert error["code"] == {2: "usage", 4: "not_found"}[code]


def test_every_key_can_be_asked_for(ctl: Ctl) -> None:
    shipped = builtin_policies().policies
    for kind in KINDS:
        for key in keys(kind, shipped[kind, "default"]):
            done = ctl("explain", key.asked)
            assert done.code == 0, key
            assert "  meaning" in done.out or "KEY " in done.out, key
            assert key.meaning.splitlines()[0][:40] in done.out, key


def test_what_explain_writes_is_valid(place: Place, ctl: Ctl) -> None:
    shipped = builtin_policies().policies
    named: list[str] = []
    for kind in KINDS:
        for key in keys(kind, shipped[kind, "default"]):
            if "NAME" in key.path or "[]" in key.path:
                continue
            lines = ctl("explain", key.asked).out.splitlines()
            place_of = next((number for number, line in enumerate(lines) if line.startswith("  write")), None)
            if place_of is None or "..." in lines[-1]:
                continue
            text = "\n".join(line[11:] for line in lines[place_of:]) + "\n"
            if KINDS[kind].daemon:  # there is one document of it
                place.write("tried.yaml", text)
                done = ctl("check")
                assert done.code == 0, f"{lines}\n{done.out}"
            else:
                named.append(f"{text}name: t{len(named)}\n")
    place.write("tried.yaml", "---\n".join(named))
    done = ctl("check")
    assert done.code == 0, done.out
    assert len(named) > 30


def test_schemas_are_json(ctl: Ctl) -> None:
    whole = json.loads(ctl("schema").out)
    assert set(whole["$defs"]) == set(KINDS)
    one = json.loads(ctl("schema", "budget").out)
    assert one["properties"]["limits"]["properties"]["tool_calls"]
    assert ctl("schema", "bugdet").code == 2


def test_the_group_has_help_and_near_misses(ctl: Ctl) -> None:
    done = ctl("--help")
    assert done.code == 0
    assert "reload" in done.out
    done = ctl("chek")
    assert (done.code, done.err.splitlines()[-1]) == (2, "Did you mean: harnessctl policy check")


def test_going_back_loads_nothing_heavy() -> None:
    # At the time of an incident `history` and `revert` are as quick as a `status`.
    program = (
        "import sys\nfrom harnessd.cli import client_table, run\n"
        "code = run(client_table(), ['--socket', '/nowhere/s', 'policy', *sys.argv[1:]])\n"
        "print(code, *sorted({'pydantic', 'yaml', 'asyncio', 'harnessd.policy', 'harnessd.config'} & set(sys.modules)))"
    )
    for words in (("history",), ("revert", "r4"), ("reload",)):
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["3"], done.stdout


@pytest.mark.parametrize("columns", [60, 96])
def test_a_kind_fits_a_terminal(columns: int) -> None:
    # R7.3; a table of `retry` is 400 columns wide: on a terminal nothing is cut, and a class does not repeat another
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    words = [sys.executable, "-c", "import harnessd.cli as c; raise SystemExit(c.run(c.client_table(), "]
    words[-1] += "['policy', 'explain', 'retry']))"
    with subprocess.Popen(words, stdout=child, stderr=subprocess.DEVNULL) as asking:
        os.close(child)
        shown = b"".join(iter(lambda: _read(parent), b"")).decode()
    os.close(parent)
    assert asking.returncode == 0
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\u2026" not in shown
    assert lines.count("model.classes.CLASS.jitter") == 1
    assert "Tries after the first; 0 = none." in shown


def _read(terminal: int) -> bytes:
    """What a terminal was shown; nothing once its last writer is gone, which Linux tells by EIO."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
