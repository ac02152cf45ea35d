"""Situations that commands are tried in: tasks as a real store holds them."""

from __future__ import annotations

import time

from harnessd.domain.decision import Decision, Pass, Retry, RuleRef
from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    MovePointer,
    PlanEffect,
    RecordDecision,
    SaveCounters,
    SettleEffect,
)
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload
from harnessd.domain.task import Counters, StopReason, Verb
from tests.cli.test_render import HOSTILE
from tests.control_server import ControlServer


def two_lines(err: str) -> list[str]:
    """Every error is one sentence saying what is wrong and one saying what to do."""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert all(lines)
    return lines


def stopped_by_the_service(server: ControlServer) -> str:
    task = server.submit(labels={"team": "web"})
    lease = server.run(task)
    rule = RuleRef("retry", "default", "overloaded", "builtin retry.yaml", 18, 7)
    evidence = {"dependency": "model/primary", "status": 529, "message": "Overloaded", "request_id": "req_77c"}
    decision = Decision(Retry(1.0, 2, 4), "overloaded", rule, evidence, tried=(Pass("line1", "not the model's"),))
    server.record(
        lease,
        AppendNode(Node("n1", None, NodeKind.USER, user_payload("Port the importer"), time.time())),
        RecordDecision("n1", None, decision),
        SaveCounters(Counters(turns=3, tool_calls=66, tokens=1_310_000, cost_usd=2.87, warned=("tool_calls:63",)), "x"),
    )
    sentence = "model/primary could not be reached: Overloaded. The task is kept."
    steps = (("harnessctl", "resume", task), ("harnessctl", "retry", task))
    end = ChangeTask(Verb.STOP, StopReason.SERVICE_UNAVAILABLE, "overloaded", sentence, steps)
    server.record(lease, end)
    return task


def with_branches(server: ControlServer) -> str:
    task = server.submit("Merge the price tables")
    lease = server.run(task)
    now = time.time()
    reply = Message("assistant", (TextBlock(f"I look. {HOSTILE}"), ToolUseBlock("c1", "bash", {"command": HOSTILE})))
    call = Effect("e1", "tool", "n2", "c1", "tool/bash", EffectClass.REVERSIBLE, EffectState.INTENT, arguments={})
    server.record(
        lease,
        AppendNode(Node("n1", None, NodeKind.USER, user_payload("Merge the price tables"), now)),
        AppendNode(Node("n2", "n1", NodeKind.ASSISTANT, assistant_payload(reply, served_by="m"), now)),
        PlanEffect(call),
    )
    server.record(
        lease,
        SettleEffect("e1", EffectState.FAILED),
        AppendNode(
            Node("n3", "n2", NodeKind.TOOL_RESULT, result_payload("c1", HOSTILE, is_error=True, tool="bash"), now)
        ),
        MovePointer("n3", "n1"),
        AppendNode(
            Node("n4", "n1", NodeKind.ASSISTANT, assistant_payload(Message("assistant", (TextBlock("Done."),))), now)
        ),
        ChangeTask(Verb.COMPLETE, sentence=HOSTILE),
    )
    return task


def asking(server: ControlServer, id_: str = "q1", kind: str = "outcome") -> str:
    task = server.submit(labels={"team": "web"})
    lease = server.run(task)
    choices = ("allow", "deny") if kind == "approval" else ("done", "not-done", "stop")
    until = time.time() + 604_700
    server.record(
        lease,
        AskPerson(id_, kind, "", "c1", "mcp/pay/charge ACME", choices, until),  # type: ignore[arg-type]
        ChangeTask(Verb.ASK, until=until, why="mcp/pay/charge ACME", waits_for="answer"),
    )
    return task
