"""Effects: what was done to the world, its outcome and key, and what could undo it; C10."""

from __future__ import annotations

import json
import time
from typing import Any

from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.record import AppendNode, PlanEffect, SettleEffect
from harnessd.domain.session import Node, NodeKind, user_payload
from tests.cli.conftest import Ctl
from tests.control_server import ControlServer

WRITE, PAY, READ, LOST = (
    ("tool/write_file", EffectClass.REVERSIBLE, {"path": "data/prices.csv", "content": "x"}),
    ("tool/http_request", EffectClass.IRREVERSIBLE, {"method": "POST", "url": "https://pay.example/v1/notes\x1b[2J"}),
    ("tool/read_file", EffectClass.READ_ONLY, {"path": "a"}),
    ("tool/note", EffectClass.IRREVERSIBLE, {"words": "two\nlines"}),
)


def with_effects(server: ControlServer) -> str:
    task = server.submit("Collect")
    lease = server.run(task)
    server.record(lease, AppendNode(Node("n1", None, NodeKind.USER, user_payload("Collect"), time.time())))
    outcomes: tuple[tuple[EffectState, dict[str, Any]], ...] = (
        (EffectState.DONE, {"exit_code": 0}),
        (EffectState.DONE, {"status": 201, "undo": {"tool": "tool/http_request", "arguments": {"method": "DELETE"}}}),
        (EffectState.DONE, {}),
        (EffectState.UNKNOWN, {"message": "lost"}),
    )
    for number, (act, (state, result)) in enumerate(zip((WRITE, PAY, READ, LOST), outcomes, strict=True), 1):
        name, effect_class, arguments = act
        key = f"{number}f" * 16 if effect_class is EffectClass.IRREVERSIBLE else None
        intent = EffectState.INTENT
        effect = Effect(f"e{number}", "tool", "n1", f"c{number}", name, effect_class, intent, key, arguments)
        server.record(lease, PlanEffect(effect))
        server.record(lease, SettleEffect(effect.id, state, result))
    return task


def test_what_reached_the_world_is_shown_with_outcome_key_and_undo(server: ControlServer, ctl: Ctl) -> None:
    # R5.4
    task = with_effects(server)
    lines = ctl("effects", task).out.splitlines()
    assert lines[0].split() == ["ID", "WHEN", "NODE", "TOOL", "EFFECT", "OUTCOME", "KEY", "WHAT", "UNDO"]
    assert [line.split()[0] for line in lines[1:4]] == ["e1", "e2", "e4"]
    assert lines[1].split()[-4:] == ["done", "-", "data/prices.csv", "files"]
    assert "done 201" in lines[2]
    assert "2f2…" in lines[2]
    assert lines[2].endswith("tool/http_request")
    assert "\x1b" not in lines[2]
    assert "unknown" in lines[3]
    assert lines[3].endswith("none")
    assert lines[4] == "3 of 4 shown: those outside the workspace and the first; --all for the rest"
    assert len(ctl("effects", task, "--all").out.splitlines()) == 5


def test_effects_as_json_hold_everything(server: ControlServer, ctl: Ctl) -> None:
    task = with_effects(server)
    found = json.loads(ctl("effects", task, "--all", "--json").out)
    assert (found["task"], found["of"]) == (task, 4)
    assert found["effects"][1]["result"]["undo"]["arguments"] == {"method": "DELETE"}


def test_a_task_that_called_no_tool_says_so(server: ControlServer, ctl: Ctl) -> None:
    task = server.submit("Collect")
    assert ctl("effects", task).out.strip() == f"{task} did nothing to the world: no tool was called."
    assert ctl("effects", "zzzz").code == 4
