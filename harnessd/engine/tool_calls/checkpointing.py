"""Checkpointing: the workspace is looked at before a call that can write, and after it.

A turn that only reads costs nothing. The look before catches what others changed since; the look after ties what the
call did to its result. Where a tool names the one path it writes, only that is looked at.
"""

from __future__ import annotations

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import IllegalEvent
from harnessd.domain.record import KeepCheckpoint
from harnessd.domain.session import Checkpoint
from harnessd.domain.workspace import TakenCheckpoint, Uncovered
from harnessd.engine.protocol import CheckpointFailed, CheckpointTaken, RunState, TakeCheckpoint
from harnessd.engine.situation import PendingCall, Situation
from harnessd.engine.tool_calls import results
from harnessd.engine.tool_calls.callfacts import tool_of
from harnessd.policy.tools import ToolSettings

LOOK = "checkpoint"  # its name among what is in flight: there is one at a time
_NAMED_MAX = 20  # names that are not covered, in one event


def before(s: Situation, call: PendingCall, settings: ToolSettings) -> bool:
    """Whether the workspace is looked at first; the call starts once that is durable."""
    if not s.brief.checkpoints or settings.effect is EffectClass.READ_ONLY or call.captured or s.in_flight:
        return False
    tool = tool_of(s, call)
    if tool is None or tool.touches == "nothing":
        return False
    s.look.call = call
    _look(s, _paths(s, call) if tool.touches == "path" else None)
    return True


def ran(s: Situation, call: PendingCall) -> None:
    """A call that can write has run, well or not: a look is due."""
    if call.captured:
        tool = tool_of(s, call)
        s.look.due = True
        s.look.dirty = _paths(s, call) if tool is not None and tool.touches == "path" else None


def after(s: Situation) -> bool:
    """Whether a look that is due has begun."""
    if not s.look.due or s.in_flight:
        return False
    s.look.due = False
    _look(s, s.look.dirty)
    return True


def came_back(s: Situation, event: CheckpointTaken | CheckpointFailed) -> None:
    """A look is over."""
    if isinstance(event, CheckpointTaken):
        _taken(s, event)
    else:
        _failed(s, event)


def _taken(s: Situation, event: CheckpointTaken) -> None:
    """The contents are durable: the row makes the checkpoint count, unless it is the same as the newest."""
    call, seen = _landed(s), event.taken
    if seen.manifest != s.counters.checkpoint:
        number = s.counters.checkpoints + 1
        s.count(checkpoints=number, checkpoint=seen.manifest)
        one = Checkpoint(
            node=s.head or "",
            ref=f"c{number}",
            manifest=seen.manifest,
            root=seen.root,
            at=s.at,
            why="after" if call is None else "before",
            changed=seen.changed,
            uncovered=len(seen.uncovered if seen.uncovered is not None else s.look.uncovered),
        )
        s.records.append(KeepCheckpoint(one))
        if one.why == "after":
            s.look.changed.add(one.node)
        _tell(s, one, seen)
    if call is not None:
        call.captured = True


def _failed(s: Situation, event: CheckpointFailed) -> None:
    """A call that can write never starts without a checkpoint: what it did could not be taken back."""
    call = _landed(s)
    if event.cancelled or s.ending is not None:
        return
    if call is None:
        s.say("checkpoint", failed=event.sentence)
        return
    text = f"{call.use.name} was not started: {event.sentence}"
    results.give(s, call, text, is_error=True, state="not_started", reason=event.sentence)


def _look(s: Situation, dirty: tuple[str, ...] | None) -> None:
    s.in_flight[LOOK] = None
    s.acts.append(TakeCheckpoint(LOOK, dirty))
    s.state = RunState.TOOLS


def _landed(s: Situation) -> PendingCall | None:
    """The call that waited for the look that came back; None for a look after one."""
    if LOOK not in s.in_flight:
        raise IllegalEvent("a checkpoint came back that nobody asked for")
    del s.in_flight[LOOK]
    call, s.look.call = s.look.call, None
    return call


def _tell(s: Situation, one: Checkpoint, seen: TakenCheckpoint) -> None:
    """What no checkpoint covers is named once, not with each."""
    if seen.uncovered is None:
        return
    known = {name.path for name in s.look.uncovered}
    new = [name for name in seen.uncovered if name.path not in known]
    s.look.uncovered = seen.uncovered
    if new or seen.notes:
        facts = {"checkpoint": one.ref, "why": one.why, "changed": one.changed, "uncovered": one.uncovered}
        s.say("checkpoint", **facts, not_covered=[_shown(name) for name in new[:_NAMED_MAX]], notes=list(seen.notes))


def _shown(name: Uncovered) -> str:
    return f"{name.path}: {name.why}".encode("utf-8", "replace").decode()


def _paths(s: Situation, call: PendingCall) -> tuple[str, ...] | None:
    """The path that a file tool writes, from the workspace's root; None where it is not plainly beneath it."""
    path = (call.use.arguments or {}).get("path")
    if not isinstance(path, str):
        return None
    root = s.brief.workspace.rstrip("/")
    if path.startswith("/"):
        if not path.startswith(f"{root}/"):
            return None
        path = path[len(root) :]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/".join(parts),) if parts and ".." not in parts else None
