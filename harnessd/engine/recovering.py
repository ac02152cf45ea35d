"""Recovering: the task goes back to a trusted node, files and all, and is told what was tried and failed (R5.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harnessd.defence import trusted
from harnessd.domain.decision import Decision, Rollback
from harnessd.domain.effect import EffectState
from harnessd.domain.record import ChangeTask
from harnessd.domain.rollback import Rollback as Request
from harnessd.domain.session import Node, NodeKind, assistant_message
from harnessd.domain.task import Verb
from harnessd.engine.protocol import HandBack, RunState
from harnessd.engine.situation import Situation

_BACK = (
    "You are back at this point: the files are again what they were here, and what came after it was left behind, "
    "because it did not work out. Do not try the same again; plan another way."
)
_TOLD_MAX = 5  # failures that the note to the model names
_WORDS_MAX = 160


def way_back(s: Situation, to: str, turns: int = 0) -> Rollback | str:
    """The remedy that goes back to `last_good`, `before_loop` or `start`; or why there is no such node."""
    if not s.brief.checkpoints:
        return "no checkpoints of the workspace are kept"
    if s.rolling:
        return "a rollback is under way already"
    path = _whole_turns(s.path)
    match to:
        case "start":
            node = path[0] if path else None
        case "before_loop":
            node = trusted.before_loop(path, turns)
        case _:
            node = trusted.last_good(path, s.look.changed.__contains__)
            if node is not None and trusted.work_since(path, node, s.look.changed.__contains__):
                return "what was written since then is not known to be bad"
    if node is None or not path or node.id == path[-1].id:
        return "no node before this one is trusted"
    return Rollback(node.id, to)


def decided(s: Situation, decision: Decision) -> None:
    """Remember the way back with the decision: it begins as soon as nothing is in flight, after a crash too."""
    if not isinstance(decision.remedy, Rollback):
        return
    rule = f"{decision.rule.kind}/{decision.rule.name} {decision.rule.rule}".strip()
    why = f"{rule}: {decision.evidence.get('message', decision.error_class)}"[:300]
    to = decision.remedy.to
    request = Request(to=to, since=None, by=rule, why=why, note=_note(s, to), after="queued", unresolved=True)
    s.count(rollback=request.to_json())


def choices(s: Situation) -> tuple[str, ...]:
    """What a person may choose about the task as a whole; to go back, where there is a trusted node."""
    back = ("rollback",) if isinstance(way_back(s, "last_good"), Rollback) else ()
    return ("go-on", *back, "stop")


def chosen(s: Situation, said: str) -> None:
    """A person chose to go back to the last good node."""
    back = way_back(s, "last_good")
    if not isinstance(back, Rollback):
        return  # it was offered, and others took the way back meanwhile: the task goes on, and knows of the wish
    note = f"{_note(s, back.to)}{said}"
    why = f"A person chose to go back to {back.to}."
    request = Request(to=back.to, since=None, by="a person", why=why, note=note, after="queued", unresolved=True)
    s.count(rollback=request.to_json())


def begin(s: Situation) -> None:
    """Nothing is in flight: the task is `rolling_back`, and whoever restores files goes on with it."""
    for call in s.pending:  # what a restart cut off meanwhile is left behind with its branch
        if call.effect is not None and call.effect.state.open:
            s.settle(call.effect.id, EffectState.UNKNOWN, message="left behind by a rollback")
    request = replace(Request.from_json(s.counters.rollback), since=s.head)
    s.count(rollback=request.to_json(), asking="")
    s.doing = f"rolling back to {request.to}"
    s.records.append(ChangeTask(verb=Verb.ROLL_BACK, why=request.why, sentence=request.why))
    s.acts.append(HandBack("rolling_back"))
    s.state = RunState.OVER


def _whole_turns(path: list[Node]) -> list[Node]:
    """The path without a last turn that still waits for results."""
    end = len(path)
    while end and not trusted.whole(path[:end]):
        end -= 1
    return path[:end]


def _note(s: Situation, to: str) -> str:
    """What the branch that is left tried, so that the next one does not try it again."""
    left = s.path[next(place for place, node in enumerate(s.path) if node.id == to) + 1 :]
    failures = list(_failures(left))
    lines = ["What was tried and failed:", *failures[-_TOLD_MAX:]] if failures else []
    return "\n".join([_BACK, *lines])


def _failures(nodes: Sequence[Node]) -> Iterator[str]:
    asked: dict[str, str] = {}
    for node in nodes:
        if node.kind is NodeKind.ASSISTANT:
            asked = {use.id: f"{use.name} {use.arguments}" for use in assistant_message(node).tool_uses}
        elif node.kind is NodeKind.TOOL_RESULT:
            for block in node.payload["blocks"]:
                if block.get("is_error"):
                    said = str(block.get("text", "")).strip().splitlines()
                    act = asked.get(block["tool_use_id"], "")[:_WORDS_MAX]
                    yield f"- {act}: {said[-1][:_WORDS_MAX] if said else 'failed'}"
