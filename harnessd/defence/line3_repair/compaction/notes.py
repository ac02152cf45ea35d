"""Notes: the words that stand for a dropped history; all of them are put together by code, the summary is one part."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.defence.line3_repair.compaction import receipts
from harnessd.defence.line3_repair.compaction.clip import clip
from harnessd.defence.line3_repair.compaction.plan import LAST, Plan, Scene, kept_as, shares, words
from harnessd.defence.line3_repair.compaction.standing import Replaced, Request
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.session import Node, NodeKind, assistant_message, notes_of

_HEAD = (
    "[harnessd made the earlier history smaller. These notes stand for it; what follows them is word for word. "
    "The acts below are done: do not do them again.]"
)
_MARKS = {"todo": "[ ]", "doing": "[>]", "done": "[x]"}


def carried(
    scene: Scene, plan: Plan, effect_of: receipts.EffectOf, *, how: str, summary: str = "", why: str = ""
) -> tuple[Replaced, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """What the compaction node says, the words the model is shown, and whole texts to keep as files, by name.

    `summary` is what a summariser wrote; without one the last summary stands, and code says what was dropped since.
    `why` says why there is no new one. The words of persons, the receipts and the task list never pass a summariser.
    """
    before, limits = scene.before, shares(scene, plan.level)
    asked = [*before.requests, *(Request(n.id, words(n)) for n in plan.dropped if n.kind is NodeKind.USER)]
    groups = receipts.receipts_of(plan.dropped, effect_of, tuple(before.receipts))
    notes = {**before.notes, **notes_of(scene.nodes)}
    answers = sum(node.kind is NodeKind.ASSISTANT for node in plan.dropped)
    if not summary and plan.dropped:
        dropped = f"{_dropped(plan.dropped)} {why}".strip()
        summary = "\n\n".join(part for part in (before.summary, dropped) if part)
    summary = clip(summary, limits["summary"], scene.measure)
    said, files = _requests(scene, asked, limits["requests"])
    parts = [_HEAD, *said[1:], summary]
    parts.append(_listed("## Done so far, by harnessd's journal", receipts.written(groups), limits["receipts"], scene))
    parts += [_plan_of(tool, note, limits["notes"], scene) for tool, note in notes.items()]
    if plan.level >= LAST:
        newest = _exchange(scene.nodes)
        parts.append(f"## Newest exchange\n{clip(newest, limits['exchange'], scene.measure)}" if newest else "")
    replaced = Replaced(
        kept_from=plan.kept_from,
        summary=summary,
        how=how,
        turns=before.turns + answers,
        requests=tuple(asked),
        receipts=groups,
        notes=notes,
        squeezed=plan.squeezed,
    )
    return replaced, (said[0], "\n\n".join(part for part in parts if part)), (*plan.files, *files)


def _requests(
    scene: Scene, asked: Sequence[Request], tokens: int
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The first request, and a list of what was said since; the first and the newest get most of the room."""
    if not asked:
        return ("",), ()
    files: list[tuple[str, str]] = []

    def shown(request: Request, room: int) -> str:
        name = f"kept-{request.node}"
        text = clip(request.text, room, scene.measure, f"{name} (job_output reads it)" if scene.readable else name)
        if text != request.text:
            files.append((name, request.text))
        return text

    first, *rest = asked
    if not rest:
        return (shown(first, tokens),), tuple(files)
    head, newest = shown(first, tokens * 4 // 10), shown(rest[-1], tokens * 3 // 10)
    each = max(20, tokens * 3 // 10 // max(1, len(rest) - 1))
    many = rest[:-1][-max(1, tokens * 3 // 10 // 20) :]
    lines = [*(shown(request, each) for request in many), newest]
    said = "## What persons said since, oldest first\n" + "\n".join(f"- {line}" for line in lines)
    return (head, said), tuple(files)


def _listed(title: str, lines: Sequence[str], tokens: int, scene: Scene) -> str:
    """A list that keeps its newest lines where it is too long; how many are missing is said."""
    if not lines:
        return ""
    shown: list[str] = []
    left = tokens
    for line in reversed(lines):
        left -= scene.measure(line) + 1
        if left < 0 and shown:
            break
        shown.append(line)
    missing = len(lines) - len(shown)
    more = [f"- {missing} earlier kinds of acts, not shown here; the journal has them"] if missing else []
    return "\n".join([title, *more, *reversed(shown)])


def _plan_of(tool: str, note: Any, tokens: int, scene: Scene) -> str:
    """The agent's own plan as it stands."""
    text = json.dumps(note, ensure_ascii=False)
    if isinstance(note, list) and all(isinstance(item, Mapping) and "text" in item for item in note):
        text = "\n".join(f"{_MARKS.get(str(item.get('state')), '-')} {item['text']}" for item in note)
    title = "Task list" if tool == "task_list" else tool
    return f"## {title}, as it stands\n{clip(text, tokens, scene.measure)}"


def _dropped(nodes: Sequence[Node]) -> str:
    """What code can say of turns that nobody summarised."""
    uses: Counter[str] = Counter()
    said = ""
    answers = 0
    for node in nodes:
        if node.kind is NodeKind.ASSISTANT:
            message = assistant_message(node)
            answers += 1
            uses.update(use.name for use in message.tool_uses)
            said = message.text.strip() or said
    calls = ", ".join(f"{tool} x{times}" for tool, times in uses.most_common(12)) or "no tools"
    last = f" The last words of yours among them: {' '.join(said.split())[:600]}" if said else ""
    return f"## Dropped without a summary\n{answers} answers of yours were dropped ({calls}).{last}"


def _exchange(nodes: Sequence[Node]) -> str:
    """The newest answer and its results as text, for a turn that does not fit as it is."""
    start = next((n for n in range(len(nodes) - 1, -1, -1) if nodes[n].kind is NodeKind.ASSISTANT), None)
    return "\n".join(transcript_line(node) for node in nodes[start:]) if start is not None else ""


def transcript_line(node: Node, most: int | None = None) -> str:
    """A node as text, for a summariser or for notes; `most` characters of each of its parts."""
    if node.kind is NodeKind.ASSISTANT:
        message = assistant_message(node)
        calls = [f"[call {use.name}] {_cut(_arguments(use), most)}" for use in message.tool_uses]
        said = [f"[assistant] {_cut(message.text, most)}"] if message.text.strip() else []
        return "\n".join([*said, *calls])
    tool = node.payload.get("facts", {}).get("tool", "tool")
    who = f"result of {tool}" if node.kind is NodeKind.TOOL_RESULT else node.kind.value
    return f"[{who}] {_cut(words(node), most)}"


def _arguments(use: ToolUseBlock) -> str:
    if use.arguments is None:
        return use.raw or ""
    return json.dumps(dict(use.arguments), ensure_ascii=False)


def _cut(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} [...] {text[-(most // 3) :]}"


__all__ = ["carried", "kept_as", "transcript_line"]
