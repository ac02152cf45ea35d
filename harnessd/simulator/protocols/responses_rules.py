"""OpenAI Responses, the request: what the service refuses, in its own words, and the transcript that is left."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harnessd.simulator.protocols.chat_rules import empty_array, wrong_type
from harnessd.simulator.protocols.chat_transcript import FAILED, arguments_of
from harnessd.simulator.protocols.wire import Limits, fits_pattern, refuse
from harnessd.simulator.transcript import Call, Result, Shown, Transcript, digest_of, segment_of

TOP_KEYS = frozenset(
    {
        *("model", "input", "instructions", "tools", "tool_choice", "stream", "stream_options", "max_output_tokens"),
        *("store", "include", "reasoning", "text", "temperature", "top_p", "user", "metadata", "parallel_tool_calls"),
        *("previous_response_id", "truncation", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "background", "max_tool_calls", "top_logprobs", "conversation", "prompt"),
    }
)
ROLES = ("assistant", "system", "developer", "user")
PARTS: Mapping[str, tuple[str, ...]] = {
    "assistant": ("output_text", "refusal"),
    "user": ("input_text", "input_image", "input_file"),
    "system": ("input_text", "input_image", "input_file"),
    "developer": ("input_text", "input_image", "input_file"),
}
ITEM_KEYS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
}
SEALING_KEY = b"simulator reasoning"

Item = Mapping[str, Any]


def seal(thought: str) -> str:
    """The encrypted form of a thought; ours only proves where it comes from."""
    return hmac.new(SEALING_KEY, thought.encode(), hashlib.sha256).hexdigest() + thought.encode().hex()


def unsealed(text: Any) -> bool:
    """Whether an encrypted thought is one of ours."""
    try:
        code, thought = str(text)[:64], bytes.fromhex(str(text)[64:])
    except ValueError:
        return False
    return hmac.compare_digest(code.encode(), hmac.new(SEALING_KEY, thought, hashlib.sha256).hexdigest().encode())


def read(body: Mapping[str, Any], limits: Limits) -> Transcript:
    """The transcript of a valid request; raises Refused for anything else."""
    check_top(body, limits)
    items = items_of(body["input"])
    for n, item in enumerate(items):
        check_item(n, item)
    check_tools(body)
    check_reasoning(items, stored=body.get("store") is not False)
    transcript = shown(body, items, check_pairs(items, limits), limits)
    if transcript.tokens > limits.window:
        raise refuse(
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            code="context_length_exceeded",
            param="input",
        )
    return transcript


def check_top(body: Mapping[str, Any], limits: Limits) -> None:
    """Fields of the request itself."""
    for key in ("model", "input"):
        if key not in body:
            raise refuse(f"Missing required parameter: '{key}'.", code="missing_required_parameter", param=key)
    for key in body:
        if key not in TOP_KEYS:
            raise refuse(f"Unknown parameter: '{key}'.", code="unknown_parameter", param=key)
    if body.get("previous_response_id") is not None:
        raise refuse(
            f"Previous response with id '{body['previous_response_id']}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    most = body.get("max_output_tokens")
    if most is None:
        return
    if not isinstance(most, int) or isinstance(most, bool):
        raise wrong_type("max_output_tokens", "an integer", most)
    if most < 16 or most > limits.max_output:
        side, bound = ("below minimum", ">= 16") if most < 16 else ("above maximum", f"<= {limits.max_output}")
        raise refuse(
            f"Invalid 'max_output_tokens': integer {side} value. Expected a value {bound}, but got {most} instead.",
            code=f"integer_{side.split()[0]}_{'min' if most < 16 else 'max'}_value",
            param="max_output_tokens",
        )


def items_of(raw: Any) -> list[Any]:
    """The input as items; a bare text is one message of the user."""
    if isinstance(raw, str):
        return [{"type": "message", "role": "user", "content": raw}]
    if not isinstance(raw, list):
        raise wrong_type("input", "one of a string or array of objects", raw)
    if not raw:
        raise empty_array("input")
    return raw


def kind_of(item: Item) -> str:
    """An item without a type is a message."""
    return str(item.get("type", "message"))


def check_item(n: int, item: Any) -> None:
    """One item: a known type with its own fields."""
    where = f"input[{n}]"
    if not isinstance(item, Mapping):
        raise wrong_type(where, "an object", item)
    kind = kind_of(item)
    if kind not in ITEM_KEYS:
        words = ", ".join(f"'{name}'" for name in ITEM_KEYS)
        raise refuse(f"Invalid value: '{kind}'. Supported values are: {words}.", code="invalid_value", param=where)
    for key in item:
        if key not in ITEM_KEYS[kind]:
            raise refuse(f"Unknown parameter: '{where}.{key}'.", code="unknown_parameter", param=f"{where}.{key}")
    checks: Mapping[str, Callable[[str, Item], None]] = {
        "message": check_message,
        "function_call": check_call,
        "function_call_output": check_output,
    }
    if kind in checks:
        checks[kind](where, item)


def missing(where: str) -> Exception:
    """The service's words for a field that is not there."""
    return refuse(f"Missing required parameter: '{where}'.", code="missing_required_parameter", param=where)


def check_message(where: str, item: Item) -> None:
    """Role and content of a message."""
    role = item.get("role")
    if role not in ROLES:
        raise refuse(
            f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
            code="invalid_value",
            param=f"{where}.role",
        )
    content = item.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong_type(f"{where}.content", "one of a string or array of objects", content)
    for k, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in PARTS[role]:
            words = " and ".join(f"'{name}'" for name in PARTS[role])
            raise refuse(
                f"Invalid value: '{kind}'. Supported values are: {words}.",
                code="invalid_value",
                param=f"{where}.content[{k}]",
            )


def check_call(where: str, item: Item) -> None:
    """A call: its ids, name, and arguments that are a JSON object in a string."""
    for key in ("call_id", "name", "arguments"):
        if not isinstance(item.get(key), str) or not item[key]:
            raise missing(f"{where}.{key}")
    if "id" in item and not str(item["id"]).startswith("fc"):
        raise refuse(
            f"Invalid '{where}.id': '{item['id']}'. Expected an ID that begins with 'fc'.",
            code="invalid_value",
            param=f"{where}.id",
        )
    if len(item["call_id"]) > 64:
        raise refuse(
            f"Invalid '{where}.call_id': string too long. Expected a string with maximum length 64, "
            f"but got a string with length {len(item['call_id'])} instead.",
            code="string_above_max_length",
            param=f"{where}.call_id",
        )
    if not fits_pattern(r"[a-zA-Z0-9_-]{1,128}", item["name"]):
        raise refuse(
            f"Invalid '{where}.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            code="invalid_value",
            param=f"{where}.name",
        )
    if not isinstance(arguments_of(item["arguments"]), dict):
        raise refuse(
            f"Invalid '{where}.arguments': expected a JSON object in a string.",
            code="invalid_value",
            param=f"{where}.arguments",
        )


def check_output(where: str, item: Item) -> None:
    """The output of a call is a text or parts."""
    if not isinstance(item.get("call_id"), str):
        raise missing(f"{where}.call_id")
    if "output" not in item:
        raise missing(f"{where}.output")
    if not isinstance(item["output"], (str, list)):
        raise wrong_type(f"{where}.output", "one of a string or array of objects", item["output"])


def check_tools(body: Mapping[str, Any]) -> None:
    """Names and schemas of the functions offered; this service takes an empty list."""
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise wrong_type("tools", "an array of objects", tools)
    for n, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise missing(f"tools[{n}].type")
        if not fits_pattern(r"[a-zA-Z0-9_-]{1,128}", tool.get("name", "")):
            raise missing(f"tools[{n}].name")
        schema = tool.get("parameters") or {"type": "object"}
        if not isinstance(schema, Mapping) or schema.get("type") != "object":
            raise refuse(
                f"Invalid schema for function '{tool['name']}': schema must be a JSON Schema of 'type: \"object\"'.",
                code="invalid_function_parameters",
                param=f"tools[{n}].parameters",
            )


def check_pairs(items: Sequence[Item], limits: Limits) -> dict[str, str]:
    """Every call has its one output, every output its call before it. Returns call id -> tool."""
    names: dict[str, str] = {}
    answered: set[str] = set()
    for n, item in enumerate(items):
        kind, call_id = kind_of(item), str(item.get("call_id", ""))
        if kind == "function_call":
            if call_id in names:
                raise refuse(f"Duplicate function call with call_id {call_id}.", param="input")
            names[call_id] = item["name"]
        elif kind == "function_call_output":
            if call_id not in names:
                raise refuse(f"No tool call found for function call output with call_id {call_id}.", param="input")
            if call_id in answered:
                raise refuse(f"Duplicate function call output with call_id {call_id}.", param="input")
            neighbour = kind_of(items[n - 1])
            if limits.dialect == "strict-adjacency" and neighbour not in ("function_call", "function_call_output"):
                raise refuse(f"No tool output found for function call {call_id}.", param="input")
            answered.add(call_id)
    for call_id in names:
        if call_id not in answered:
            raise refuse(f"No tool output found for function call {call_id}.", param="input")
    return names


def check_reasoning(items: Sequence[Item], *, stored: bool) -> None:
    """A thought is followed by what was thought of, and carries its own content where nothing is stored."""
    for n, item in enumerate(items):
        if kind_of(item) != "reasoning":
            continue
        name = item.get("id", "rs")
        following = items[n + 1] if n + 1 < len(items) else {}
        said = kind_of(following) == "message" and following.get("role") == "assistant"
        if not said and kind_of(following) not in ("function_call", "reasoning"):
            raise refuse(
                f"Item '{name}' of type 'reasoning' was provided without its required following item.", param="input"
            )
        if not item.get("encrypted_content"):
            words = "" if stored else " Items are not persisted when `store` is set to false."
            raise refuse(f"Item with id '{name}' not found.{words}", status=404, param="input")
        if not unsealed(item["encrypted_content"]):
            raise refuse(
                f"The encrypted content for item {name} could not be verified.", code="invalid_encrypted_content"
            )


def shown(body: Mapping[str, Any], items: Sequence[Item], names: Mapping[str, str], limits: Limits) -> Transcript:
    """The transcript behind the items."""
    tools = body.get("tools") or []
    offered = () if body.get("tool_choice") == "none" else tuple(tool["name"] for tool in tools)
    system = str(body.get("instructions") or "")
    heads = [text_of(item.get("content")) for item in items if item.get("role") in ("system", "developer")]
    pieces = [*tools, *([system] if system else []), *items]
    return Transcript(
        protocol="openai-responses",
        model=str(body["model"]),
        system="\n".join(part for part in (system, *heads) if part),
        tools=offered,
        messages=turns_of(items, names),
        max_tokens=body.get("max_output_tokens") or limits.max_output,
        stream=bool(body.get("stream")),
        tools_digest=digest_of(tools),
        segments=tuple(segment_of(piece) for piece in pieces),
    )


def text_of(content: Any) -> str:
    """The words of a message or an output."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", part.get("refusal", ""))) for part in content)
    return str(content or "")


def turns_of(items: Sequence[Item], names: Mapping[str, str]) -> tuple[Shown, ...]:
    """Neighbouring items of one side are one message."""
    out: list[Shown] = []
    for item in items:
        found = shown_item(item, names)
        if found is None:
            continue
        if out and out[-1].role == found.role:
            last = out.pop()
            text = "\n".join(part for part in (last.text, found.text) if part)
            out.append(Shown(found.role, text, last.calls + found.calls, last.results + found.results))
        else:
            out.append(found)
    return tuple(out)


def shown_item(item: Item, names: Mapping[str, str]) -> Shown | None:
    """One item free of the protocol; thoughts and rules are no part of the conversation."""
    match kind_of(item):
        case "function_call":
            call = Call(item["call_id"], item["name"], arguments_of(item["arguments"]))
            return Shown("assistant", "", (call,))
        case "function_call_output":
            text = text_of(item["output"])
            result = Result(item["call_id"], names[item["call_id"]], text, bool(FAILED.search(text)))
            return Shown("user", "", (), (result,))
        case "message" if item["role"] in ("user", "assistant"):
            return Shown("user" if item["role"] == "user" else "assistant", text_of(item["content"]))
        case _:
            return None
