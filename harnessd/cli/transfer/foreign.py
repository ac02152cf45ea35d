"""Foreign: a transcript of another agent as the lines of a session of ours: repaired, its turns as nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import dropwhile
from typing import Any

from harnessd import __version__
from harnessd.cli.client import USAGE, Problem
from harnessd.cli.session import document as documents
from harnessd.cli.session.remarks import NotATranscript
from harnessd.defence.line3_repair.transcript import receiver, repair
from harnessd.defence.line3_repair.transcript.messages import turns_of
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Turn
from harnessd.domain.effect import well_formed
from harnessd.domain.messages import Block, Message, TextBlock, ToolUseBlock
from harnessd.domain.session import NodeKind, assistant_payload, result_payload, user_payload
from harnessd.domain.transfer.chain import CHAIN_START, chain_hash, digest
from harnessd.domain.transfer.lines import Lines

SOURCE = "transcript"
_FORM = "Give a file of harnessctl export, or a transcript that harnessctl session lint reads."
_PROMPT_MAX = 100_000
_LEFT_OUT = "[an image or document that was not imported]"


def lines_of(data: bytes, shown: str, workspace: str) -> tuple[bytes, list[str]]:
    """An exported session as bytes, and what is to be told of it. Raises Problem where there is no transcript."""
    try:
        document = documents.read(data)
    except NotATranscript as wrong:
        raise Problem(USAGE, f"{shown}: {wrong}.", _FORM) from None
    protocol = documents.detect(document)
    talk = list(dropwhile(_is_rule, document.messages))
    if not talk:
        raise Problem(USAGE, f"{shown}: nothing was said in it.", _FORM)
    found = repair(talk, receiver(protocol))
    nodes = _nodes(turns_of(found.messages, Notes()))
    if not nodes:
        raise Problem(USAGE, f"{shown}: nothing was said in it.", _FORM)
    count = len(document.problems) + len(found.notes)
    told = [f"{document.shape}, {protocol}: nodes {len(nodes)}, repairs {count} (see harnessctl session lint)."]
    if len(talk) < len(document.messages) or (document.body or {}).keys() & {"system", "instructions"}:
        told.append("Its system prompt is left out: the agent's own holds.")
    return _written(nodes, workspace, document.shape), told


def _is_rule(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _nodes(turns: Sequence[Turn]) -> list[tuple[NodeKind, dict[str, Any]]]:
    nodes: list[tuple[NodeKind, dict[str, Any]]] = []
    names: dict[str, str] = {}
    answer: list[Block] = []

    def close() -> None:
        if answer:
            nodes.append((NodeKind.ASSISTANT, assistant_payload(Message("assistant", tuple(answer)), imported=True)))
            answer.clear()

    for turn in turns:
        if turn.role == "assistant":
            # Items of one answer stand one by one in some protocols.
            answer += [block for part in turn.parts if (block := _said(part)) is not None]
            names |= {call.id: call.name for call in turn.calls}
            continue
        close()
        if turn.role != "system":
            nodes += _heard(turn, names)
    close()
    return nodes


def _said(part: Part) -> Block | None:
    """What of an answer any model can be shown: thoughts are their own model's alone."""
    if part.kind is Kind.CALL:
        raw = None if part.arguments is not None else well_formed(part.text)
        return ToolUseBlock(part.id, part.name, part.arguments, raw)
    text = _words(part)
    return TextBlock(text) if text.strip() else None


def _heard(turn: Turn, names: dict[str, str]) -> list[tuple[NodeKind, dict[str, Any]]]:
    nodes: list[tuple[NodeKind, dict[str, Any]]] = []
    for part in turn.parts:
        if part.kind is Kind.RESULT:
            inner = [part] if part.inner is None else list(part.inner)
            text = "\n".join(words for one in inner if (words := _words(one)))
            facts = {"tool": names.get(part.id, part.name), "state": "failed" if part.is_error else "done"}
            payload = result_payload(part.id, text, is_error=part.is_error, **facts)
            nodes.append((NodeKind.TOOL_RESULT, payload))
    said = "\n\n".join(text for part in turn.parts if part.kind is not Kind.RESULT and (text := _words(part)).strip())
    if said:
        nodes.append((NodeKind.USER, user_payload(said)))
    return nodes


def _words(part: Part) -> str:
    if part.kind is Kind.MEDIA:
        return _LEFT_OUT
    return part.text if part.kind in (Kind.TEXT, Kind.RESULT) else ""


def _written(nodes: Sequence[tuple[NodeKind, dict[str, Any]]], workspace: str, shape: str) -> bytes:
    now = time.time()
    chain, parent, rows = CHAIN_START, None, []
    for place, (kind, stored) in enumerate(nodes, start=1):
        payload = well_formed(json.dumps(stored, ensure_ascii=False, separators=(",", ":")))
        id_ = f"n{place}"
        chain = chain_hash(chain, digest(id_, parent, kind.value, now, payload))
        rows.append(({"id": id_, "parent": parent, "kind": kind.value, "at": now, "chain": chain.hex()}, payload))
        parent = id_
    turns = sum(kind is NodeKind.ASSISTANT for kind, _ in nodes)
    out = Lines()
    head = out.header(__version__, now, shape) + out.line("task", _task(nodes, workspace, parent, chain, turns))
    return head + b"".join(out.line("node", row, payload) for row, payload in rows) + out.end()


def _task(
    nodes: Sequence[tuple[NodeKind, dict[str, Any]]], workspace: str, pointer: str | None, chain: bytes, turns: int
) -> dict[str, Any]:
    first = next((stored for kind, stored in nodes if kind is NodeKind.USER), None)
    prompt = str(first["blocks"][0]["text"])[:_PROMPT_MAX].replace("\0", "") if first is not None else ""
    return {
        "task": SOURCE,
        "keys_of": None,
        "draft": {"prompt": prompt.strip() or "Imported transcript.", "workspace": workspace},
        "pointer": pointer,
        "nodes": len(nodes),
        "chain": chain.hex(),
        "counters": {"turns": turns},
        "system": None,
    }
