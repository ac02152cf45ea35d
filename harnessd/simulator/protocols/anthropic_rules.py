"""Anthropic Messages, the request: what the service refuses, in its own words, and the transcript that is left."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.simulator.protocols import anthropic_served as served
from harnessd.simulator.protocols.anthropic_media import check_media
from harnessd.simulator.protocols.anthropic_transcript import shown
from harnessd.simulator.protocols.wire import Limits, fits_pattern, is_text, refuse
from harnessd.simulator.transcript import Transcript

TOP_KEYS = frozenset(
    {
        *(
            "model",
            "messages",
            "max_tokens",
            "system",
            "tools",
            "tool_choice",
            "stream",
            "temperature",
            "top_p",
            "top_k",
        ),
        *("stop_sequences", "metadata", "thinking", "service_tier", "container", "context_management", "mcp_servers"),
        *("output_config", "output_format", "cache_control", "inference_geo", "speed"),
    }
)
BLOCK_KEYS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "document": frozenset({"type", "source", "title", "context", "citations", "cache_control"}),
    **served.BLOCK_KEYS,
}
ROLES_OF: Mapping[str, tuple[str, ...]] = {
    "tool_use": ("assistant",),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
    **dict.fromkeys(served.BLOCK_KEYS, ("assistant",)),
    "tool_result": ("user",),
    "image": ("user",),
    "document": ("user",),
}
# The real signature is opaque; ours is a code over the words, so that any edit shows, also after a restart.
SIGNING_KEY = b"simulator thinking"

Block = Mapping[str, Any]


def sign(thinking: str) -> str:
    """The signature of a thinking block."""
    return base64.b64encode(hmac.new(SIGNING_KEY, thinking.encode(), hashlib.sha384).digest()).decode()


def read(body: Mapping[str, Any], limits: Limits) -> Transcript:
    """The transcript of a valid request; raises Refused for anything else."""
    check_top(body, limits)
    messages = [check_message(n, message) for n, message in enumerate(body["messages"])]
    check_order(messages)
    check_tools(body, messages, limits)
    names = check_pairs(messages)
    check_thinking(messages)
    served.check_served(messages)
    check_media(messages)
    transcript = shown(body, messages, names)
    check_window(transcript, limits)
    return transcript


def check_top(body: Mapping[str, Any], limits: Limits) -> None:
    """Fields of the request itself."""
    for key in ("max_tokens", "messages", "model"):
        if key not in body:
            raise refuse(f"{key}: Field required")
    for key in body:
        if key not in TOP_KEYS:
            raise refuse(f"{key}: Extra inputs are not permitted")
    most = body["max_tokens"]
    if not isinstance(most, int) or isinstance(most, bool):
        raise refuse("max_tokens: Input should be a valid integer")
    if most < 1:
        raise refuse("max_tokens: Input should be greater than or equal to 1")
    if most > limits.max_output:
        raise refuse(
            f"max_tokens: {most} > {limits.max_output}, which is the maximum allowed number of output tokens "
            f"for {body['model']}"
        )
    if not isinstance(body["messages"], list):
        raise refuse("messages: Input should be a valid list")
    if not body["messages"]:
        raise refuse("messages: at least one message is required")
    check_system(body.get("system"))
    check_marks(body)


def check_system(system: Any) -> None:
    """`system` is a text or a list of text blocks with something in them."""
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        raise refuse("system: Input should be a valid list")
    for n, block in enumerate(system):
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise refuse(f"system.{n}.type: Input should be 'text'")
        if not is_text(block.get("text")):
            raise refuse("system: text content blocks must be non-empty")


def check_marks(body: Mapping[str, Any]) -> None:
    """At most four cache marks in a request."""

    def count(value: Any) -> int:
        if isinstance(value, Mapping):
            return ("cache_control" in value) + sum(count(inner) for inner in value.values())
        return sum(count(inner) for inner in value) if isinstance(value, list) else 0

    found = count([body.get("system"), body.get("tools"), body.get("messages")])
    if found > 4:
        raise refuse(f"A maximum of 4 blocks with cache_control may be provided. Found {found}.")


def check_message(n: int, message: Any) -> tuple[str, list[Block]]:
    """Role and blocks of one message."""
    if not isinstance(message, Mapping):
        raise refuse(f"messages.{n}: Input should be a valid dictionary")
    role = message.get("role")
    if role == "system":
        raise refuse(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, '
            'not "system" as an input message role.'
        )
    if role not in ("user", "assistant"):
        raise refuse(f"messages.{n}.role: Input should be 'user' or 'assistant'")
    for key in message:
        if key not in ("role", "content"):
            raise refuse(f"messages.{n}.{key}: Extra inputs are not permitted")
    blocks = blocks_of(n, message.get("content"))
    for k, block in enumerate(blocks):
        check_block(f"messages.{n}.content.{k}", role, block)
    return role, blocks


def blocks_of(n: int, content: Any) -> list[Block]:
    """The blocks of message `n`; a bare text is one block."""
    if content is None:
        raise refuse(f"messages.{n}.content: Field required")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise refuse(f"messages.{n}.content: Input should be a valid list")
    if not content:
        raise refuse(
            f"messages.{n}: all messages must have non-empty content except for the optional final assistant message"
        )
    return content


def check_block(where: str, role: str, block: Any) -> None:
    """One content block: a known type, in its role's message, with its own fields only."""
    if not isinstance(block, Mapping):
        raise refuse(f"{where}: Input should be a valid dictionary")
    kind = str(block.get("type"))
    if kind not in BLOCK_KEYS:
        tags = ", ".join(f"'{name}'" for name in sorted(BLOCK_KEYS))
        raise refuse(f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}")
    for key in block:
        if key not in BLOCK_KEYS[kind]:
            raise refuse(f"{where}.{kind}.{key}: Extra inputs are not permitted")
    if role not in ROLES_OF.get(kind, (role,)):
        raise refuse(f"{where}: `{kind}` blocks can only be in `{ROLES_OF[kind][0]}` messages")
    check_fields(f"{where}.{kind}", kind, block)


def check_fields(where: str, kind: str, block: Block) -> None:
    """The fields of one kind of block."""
    match kind:
        case "text":
            check_text(where, block)
        case "tool_use":
            check_use(where, block)
        case "tool_result":
            check_result(where, block)
        case "thinking":
            for key in ("thinking", "signature"):
                if not isinstance(block.get(key), str):
                    raise refuse(f"{where}.{key}: Field required")
        case _:
            pass  # what a picture or a paper holds is not looked at here


def check_text(where: str, block: Block) -> None:
    """Words that say something."""
    if not isinstance(block.get("text"), str):
        raise refuse(f"{where}.text: Input should be a valid string")
    if not block["text"]:
        raise refuse("messages: text content blocks must be non-empty")
    if not block["text"].strip():
        raise refuse("messages: text content blocks must contain non-whitespace text")


def check_use(where: str, block: Block) -> None:
    """A tool call's own fields."""
    if not fits_pattern(r"[a-zA-Z0-9_-]+", block.get("id", "")):
        raise refuse(f"{where}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not fits_pattern(r"[a-zA-Z0-9_-]{1,200}", block.get("name", "")):
        raise refuse(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,200}}$'")
    if not isinstance(block.get("input"), Mapping):
        raise refuse(f"{where}.input: Input should be a valid dictionary")


def check_result(where: str, block: Block) -> None:
    """A tool result's own fields."""
    if not isinstance(block.get("tool_use_id"), str):
        raise refuse(f"{where}.tool_use_id: Field required")
    if "is_error" in block and not isinstance(block["is_error"], bool):
        raise refuse(f"{where}.is_error: Input should be a valid boolean")
    content = block.get("content", "")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise refuse(f"{where}.content: Input should be a valid list")
    for k, inner in enumerate(content):
        kind = inner.get("type") if isinstance(inner, Mapping) else None
        if kind not in ("text", "image", "document"):
            raise refuse(f"{where}.content.{k}.type: Input should be 'text', 'image' or 'document'")
        if kind == "text" and not is_text(inner.get("text")):
            raise refuse("messages: text content blocks must be non-empty")
        if kind != "text" and block.get("is_error"):
            raise refuse(f'{where}: all content must be type "text" if "is_error" is true')


def check_order(messages: Sequence[tuple[str, list[Block]]]) -> None:
    """The first and the last message are the user's."""
    if messages[0][0] != "user":
        raise refuse('messages: first message must use the "user" role')
    if messages[-1][0] == "assistant":
        raise refuse(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def check_tools(body: Mapping[str, Any], messages: Sequence[tuple[str, list[Block]]], limits: Limits) -> None:
    """Names and schemas of the tools offered; a history with calls needs its tools defined."""
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise refuse("tools: Input should be a valid list")
    used = any(block["type"] in ("tool_use", "tool_result") for _, blocks in messages for block in blocks)
    if used and not tools and limits.tools_for_history:
        raise refuse("Requests which include `tool_use` or `tool_result` blocks must define tools")
    if body.get("tool_choice") is not None and not isinstance(body["tool_choice"], Mapping):
        raise refuse("tool_choice: Input should be a valid dictionary or object to extract fields from")
    if body.get("tool_choice") and not tools:
        raise refuse("tool_choice may only be specified while providing tools")
    seen: set[str] = set()
    for n, tool in enumerate(tools or []):
        check_tool(f"tools.{n}", tool)
        if tool["name"] in seen:
            raise refuse("tools: Tool names must be unique.")
        seen.add(tool["name"])


def check_tool(where: str, tool: Any) -> None:
    """One tool's definition."""
    if not isinstance(tool, Mapping):
        raise refuse(f"{where}: Input should be a valid dictionary")
    if not fits_pattern(r"[a-zA-Z0-9_-]{1,128}", tool.get("name", "")):
        raise refuse(f"{where}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    for key in tool:
        if key not in ("name", "description", "input_schema", "cache_control", "type", "strict"):
            raise refuse(f"{where}.custom.{key}: Extra inputs are not permitted")
    schema = tool.get("input_schema")
    if not isinstance(schema, Mapping):
        raise refuse(f"{where}.custom.input_schema: Field required")
    if "type" not in schema:
        raise refuse(f"{where}.custom.input_schema.type: Field required")
    if schema["type"] != "object":
        raise refuse(f"{where}.custom.input_schema.type: Input should be 'object'")
    if not isinstance(schema.get("properties", {}), Mapping) or not isinstance(schema.get("required", []), list):
        raise refuse(
            f"{where}.custom.input_schema: JSON schema is invalid. "
            "It must match JSON Schema draft 2020-12 (https://json-schema.org/draft/2020-12)"
        )


def check_pairs(messages: Sequence[tuple[str, list[Block]]]) -> dict[str, str]:
    """Every call has its one result right after, every result its call right before. Returns id -> tool."""
    names: dict[str, str] = {}
    open_calls: list[str] = []
    for n, (role, blocks) in enumerate(messages):
        results = [block for block in blocks if block["type"] == "tool_result"]
        # Results come first in their message: words before them hide them.
        leading = [b["tool_use_id"] for b in blocks[: len(results)] if b["type"] == "tool_result"]
        unanswered = [call for call in open_calls if call not in leading]
        if unanswered:
            raise refuse(
                f"messages.{n - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(unanswered)}. Each `tool_use` block must have a corresponding `tool_result` block "
                "in the next message."
            )
        check_results(n, blocks, open_calls)
        open_calls = []
        for block in blocks if role == "assistant" else []:
            if block["type"] == "tool_use":
                if block["id"] in names:
                    raise refuse("messages: `tool_use` ids must be unique")
                names[block["id"]] = block["name"]
                open_calls.append(block["id"])
    return names


def check_results(n: int, blocks: Sequence[Block], open_calls: Sequence[str]) -> None:
    """Each result of message `n` answers a call of the message before, once."""
    seen: set[str] = set()
    for k, block in enumerate(blocks):
        if block["type"] != "tool_result":
            continue
        answered = block["tool_use_id"]
        if answered not in open_calls:
            raise refuse(
                f"messages.{n}.content.{k}: unexpected `tool_use_id` found in `tool_result` blocks: {answered}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if answered in seen:
            raise refuse(
                f"messages.{n}.content.{k}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {answered}"
            )
        seen.add(answered)


def check_thinking(messages: Sequence[tuple[str, list[Block]]]) -> None:
    """Thinking may be left out, never edited: the signature tells."""
    for n, (_, blocks) in enumerate(messages):
        for k, block in enumerate(blocks):
            if block["type"] == "thinking" and not hmac.compare_digest(
                block["signature"].encode(), sign(block["thinking"]).encode()
            ):
                raise refuse(f"messages.{n}.content.{k}: Invalid `signature` in `thinking` block")


def check_window(transcript: Transcript, limits: Limits) -> None:
    """The prompt, and the prompt with the wanted output, fit the window."""
    tokens = transcript.tokens
    if tokens > limits.window:
        raise refuse(f"prompt is too long: {tokens} tokens > {limits.window} maximum")
    if tokens + transcript.max_tokens > limits.window:
        raise refuse(
            f"input length and `max_tokens` exceed context limit: {tokens} + {transcript.max_tokens} > "
            f"{limits.window}, decrease input length or `max_tokens` and try again"
        )
