"""Blocks: what stands in one record of an agent's session file, as a message that a protocol knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
# Fields of a message that carry the talk; the rest of a record is its agent's own bookkeeping.
_TALK = frozenset(
    {
        *("role", "content", "tool_calls", "tool_call_id", "toolCallId", "toolName", "isError", "name", "refusal"),
        *("reasoning_content", "function_call"),
    }
)
_BOOKKEEPING = frozenset(
    {
        *(
            "uuid",
            "parentUuid",
            "parentId",
            "parent_id",
            "parent",
            "timestamp",
            "time",
            "sessionId",
            "ts",
            "created_at",
        ),
        *("line", "index", "isSidechain", "isMeta", "cwd", "version", "gitBranch", "userType"),
    }
)
_ITEMS = ("function_call", "function_call_output", "reasoning", "custom_tool_call", "custom_tool_call_output")
_STOPPED = ("error", "aborted")


def message_in(row: Row) -> Mapping[str, Any] | None:
    """The message of a record; None where it is none: a header, a snapshot, a counter."""
    inside = row.get("message")
    if isinstance(inside, Mapping) and ("role" in inside or row.get("type") in ("user", "assistant")):
        return _wrapped(row, inside)
    kind = row.get("type")
    if kind in ("compaction", "branch_summary") and isinstance(row.get("summary"), str):
        return {"role": "user", "content": f"[Summary of earlier work]\n{row['summary']}"}
    if kind == "custom_message" and row.get("content"):
        return {"role": "user", "content": row["content"]}
    if "role" in row or kind in _ITEMS:
        return {name: value for name, value in row.items() if name not in _BOOKKEEPING and not _tree_id(row, name)}
    if kind in ("user", "assistant") and isinstance(row.get("content"), (str, list)):
        return {"role": kind, "content": row["content"]}
    return None


def _tree_id(row: Row, name: str) -> bool:
    return name == "id" and any(parent in row for parent in ("parentId", "parent_id", "parent"))


def _wrapped(row: Row, inside: Row) -> dict[str, Any]:
    message = {name: value for name, value in inside.items() if name in _TALK}
    message.setdefault("role", row.get("type"))
    message.setdefault("content", None)
    if inside.get("stopReason") in _STOPPED or row.get("isApiErrorMessage"):
        message["stop_reason"] = "error"
    return message


def aside(content: Any) -> list[Any]:
    """Content as a list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def pi_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of Pi's own form, with calls, results and thoughts as blocks; any other as it is."""
    role, content = message.get("role"), message.get("content")
    if role == "toolResult":
        block = {"type": "tool_result", "tool_use_id": message.get("toolCallId"), "content": content}
        return {"role": "user", "content": [block | ({"is_error": True} if message.get("isError") else {})]}
    if role in ("custom", "compactionSummary", "branchSummary", "bashExecution"):
        words = next((message[n] for n in ("content", "summary", "output") if isinstance(message.get(n), str)), "")
        return {"role": "user", "content": words}
    if role != "assistant" or not isinstance(content, list):
        return message
    return {**message, "content": [_pi_block(block) if isinstance(block, Mapping) else block for block in content]}


def _pi_block(block: Row) -> Row:
    if block.get("type") == "toolCall":
        return {
            "type": "tool_use",
            "id": block.get("id"),
            "name": block.get("name"),
            "input": block.get("arguments", {}),
        }
    if block.get("type") == "thinking" and "signature" not in block:
        signature = block.get("thinkingSignature")
        return {"type": "thinking", "thinking": block.get("thinking", ""), "signature": signature or ""}
    if block.get("type") == "text":
        return {"type": "text", "text": block.get("text", "")}
    return block


def opencode_messages(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """OpenCode keeps a call and its result in one part; as messages the result follows its call."""
    out: list[dict[str, Any]] = []
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        info = row.get("info")
        role = info.get("role") if isinstance(info, Mapping) else row.get("role")
        parts = [part for part in row.get("parts") or [] if isinstance(part, Mapping)]
        spoken = [block for part in parts if (block := _opencode_block(part)) is not None]
        out.append({"role": role, "content": spoken})
        results = [block for part in parts if (block := _opencode_result(part)) is not None]
        if results:
            out.append({"role": "user", "content": results})
    return out


def _opencode_block(part: Row) -> dict[str, Any] | None:
    if part.get("type") == "text" and not part.get("ignored"):
        return {"type": "text", "text": part.get("text", "")}
    if part.get("type") == "tool":
        made = part.get("state")
        given = made.get("input") if isinstance(made, Mapping) else None
        return {"type": "tool_use", "id": part.get("callID"), "name": part.get("tool"), "input": given or {}}
    return None


def _opencode_result(part: Row) -> dict[str, Any] | None:
    made = part.get("state")
    if part.get("type") != "tool" or not isinstance(made, Mapping):
        return None
    if made.get("status") == "completed":
        return {"type": "tool_result", "tool_use_id": part.get("callID"), "content": str(made.get("output", ""))}
    if made.get("status") == "error":
        words = str(made.get("error", "the call failed"))
        return {"type": "tool_result", "tool_use_id": part.get("callID"), "content": words, "is_error": True}
    return None
