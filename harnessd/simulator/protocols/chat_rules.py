"""OpenAI Chat Completions, the request: what the service refuses, in its own words, and the transcript that is left."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.simulator.protocols.chat_transcript import arguments_of, shown, text_of, wanted_tokens
from harnessd.simulator.protocols.wire import Limits, fits_pattern, refuse
from harnessd.simulator.transcript import Transcript

TOP_KEYS = frozenset(
    {
        *(
            "model",
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "tools",
            "tool_choice",
            "stream",
            "stream_options",
        ),
        *("temperature", "top_p", "n", "stop", "seed", "user", "metadata", "parallel_tool_calls", "response_format"),
        *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "store", "service_tier"),
        *(
            "reasoning_effort",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "verbosity",
            "modalities",
        ),
        *("prediction", "audio", "web_search_options", "functions", "function_call"),
    }
)
MESSAGE_KEYS = frozenset(
    {
        *("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call", "audio", "annotations"),
        *("reasoning_content", "prefix"),
    }
)
ROLES = ("system", "assistant", "user", "function", "tool", "developer")


Message = Mapping[str, Any]


def read(body: Mapping[str, Any], limits: Limits) -> Transcript:
    """The transcript of a valid request; raises Refused for anything else."""
    check_top(body, limits)
    messages: list[Message] = body["messages"]
    for n, message in enumerate(messages):
        check_message(n, message, limits)
    check_tools(body)
    names = check_pairs(messages)
    check_dialect(messages, limits)
    transcript = shown(body, messages, names, limits)
    check_window(transcript, limits, asked=wanted_tokens(body) is not None)
    return transcript


def check_top(body: Mapping[str, Any], limits: Limits) -> None:
    """Fields of the request itself."""
    for key in ("messages", "model"):
        if key not in body:
            raise refuse(f"Missing required parameter: '{key}'.", code="missing_required_parameter", param=key)
    for key in body:
        if key not in TOP_KEYS:
            raise refuse(f"Unknown parameter: '{key}'.", code="unknown_parameter", param=key)
    if not isinstance(body["messages"], list):
        raise wrong_type("messages", "an array of objects", body["messages"])
    if not body["messages"]:
        raise empty_array("messages")
    if not isinstance(body.get("stream_options") or {}, Mapping):
        raise wrong_type("stream_options", "an object", body["stream_options"])
    if body.get("stream_options") is not None and not body.get("stream"):
        raise refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options")
    if "max_tokens" in body and "max_completion_tokens" in body:
        raise refuse(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            code="invalid_parameter_combination",
            param="max_tokens",
        )
    check_max_tokens(body, limits)


def check_max_tokens(body: Mapping[str, Any], limits: Limits) -> None:
    """The wanted output is a positive count within the model's own limit."""
    for key in ("max_tokens", "max_completion_tokens"):
        most = body.get(key)
        if most is None:
            continue
        if not isinstance(most, int) or isinstance(most, bool):
            raise wrong_type(key, "an integer", most)
        if most < 1:
            raise refuse(
                f"Invalid '{key}': integer below minimum value. Expected a value >= 1, but got {most} instead.",
                code="integer_below_min_value",
                param=key,
            )
        if most > limits.max_output:
            raise refuse(
                f"{key} is too large: {most}. This model supports at most {limits.max_output} completion tokens, "
                f"whereas you provided {most}.",
                code="invalid_value",
                param=key,
            )


def wrong_type(where: str, wanted: str, got: Any) -> Exception:
    """The service's words for a value of the wrong type."""
    kinds: list[tuple[type, str]] = [(bool, "a boolean"), (int, "an integer"), (float, "a decimal number")]
    kinds += [(str, "a string"), (list, "an array"), (dict, "an object")]
    name = "null" if got is None else next((word for kind, word in kinds if isinstance(got, kind)), "a value")
    return refuse(
        f"Invalid type for '{where}': expected {wanted}, but got {name} instead.", code="invalid_type", param=where
    )


def empty_array(where: str) -> Exception:
    """The service's words for a list that must not be empty."""
    return refuse(
        f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        code="empty_array",
        param=where,
    )


def check_message(n: int, message: Any, limits: Limits) -> None:
    """One message: role, fields, content."""
    where = f"messages[{n}]"
    if not isinstance(message, Mapping):
        raise wrong_type(where, "an object", message)
    role = message.get("role")
    if role not in ROLES:
        words = ", ".join(f"'{name}'" for name in ROLES[:-1]) + f", and '{ROLES[-1]}'"
        raise refuse(
            f"Invalid value: '{role}'. Supported values are: {words}.", code="invalid_value", param=f"{where}.role"
        )
    for key in message:
        if key not in MESSAGE_KEYS:
            raise refuse(f"Unknown parameter: '{where}.{key}'.", code="unknown_parameter", param=f"{where}.{key}")
    calls = message.get("tool_calls")
    if calls is not None:
        check_calls(f"{where}.tool_calls", role, calls, limits)
    check_content(n, role, message)


def check_content(n: int, role: str, message: Message) -> None:
    """Content is a text or parts; only an assistant that calls tools may go without."""
    content = message.get("content")
    where = f"messages.[{n}].content"
    if content is None:
        if role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
            return
        raise refuse("Invalid value for 'content': expected a string, got null.", param=where)
    if not isinstance(content, (str, list)):
        raise wrong_type(f"messages[{n}].content", "one of a string or array of objects", content)
    if content == []:
        raise empty_array(f"messages[{n}].content")
    if role == "assistant" and not content and not message.get("tool_calls"):
        raise refuse("Invalid value for 'content': expected a non-empty string.", param=where)
    if isinstance(content, list):
        for k, part in enumerate(content):
            check_part(f"messages[{n}].content[{k}]", role, part)
    if role == "tool" and "\x00" in text_of(content):
        raise refuse(f"Invalid value for '{where}': the string contains a null character.", param=where)


def check_part(where: str, role: str, part: Any) -> None:
    """One part of a message's content."""
    kinds = ("text", "image_url", "input_audio", "file") if role == "user" else ("text", "refusal")
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in kinds:
        words = ", ".join(f"'{name}'" for name in kinds)
        raise refuse(
            f"Invalid value: '{kind}'. Supported values are: {words}.", code="invalid_value", param=f"{where}.type"
        )
    if kind == "text" and not isinstance(part.get("text"), str):
        raise refuse(f"Missing required parameter: '{where}.text'.", code="missing_required_parameter", param=where)


def check_calls(where: str, role: str, calls: Any, limits: Limits) -> None:
    """The calls of an assistant message."""
    if role != "assistant":
        raise refuse(f"Unknown parameter: '{where}'.", code="unknown_parameter", param=where)
    if not isinstance(calls, list):
        raise wrong_type(where, "an array of objects", calls)
    if not calls:
        raise empty_array(where)
    for k, call in enumerate(calls):
        check_call(f"{where}[{k}]", call, limits)


def check_call(where: str, call: Any, limits: Limits) -> None:
    """One call: id, kind, name, and arguments that are a JSON object in a string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type") != "function":
        raise refuse(f"Missing required parameter: '{where}.function'.", code="missing_required_parameter", param=where)
    identity = call.get("id")
    if not isinstance(identity, str) or not identity:
        raise refuse(f"Missing required parameter: '{where}.id'.", code="missing_required_parameter", param=where)
    if len(identity) > 40:
        raise refuse(
            f"Invalid '{where}.id': string too long. Expected a string with maximum length 40, "
            f"but got a string with length {len(identity)} instead.",
            code="string_above_max_length",
            param=f"{where}.id",
        )
    if limits.dialect == "mistral" and not fits_pattern(r"[A-Za-z0-9]{9}", identity):
        raise refuse(
            f"Tool call id was {identity} but must be a-z, A-Z, 0-9, with a length of 9.",
            code="invalid_request_invalid_tool_call_id",
        )
    if not fits_pattern(r"[a-zA-Z0-9_-]{1,64}", function.get("name", "")):
        raise refuse(
            f"Invalid '{where}.function.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            code="invalid_value",
            param=f"{where}.function.name",
        )
    if not isinstance(arguments_of(function.get("arguments")), dict):
        raise refuse(
            f"Invalid '{where}.function.arguments': expected a JSON object in a string.",
            code="invalid_value",
            param=f"{where}.function.arguments",
        )


def check_tools(body: Mapping[str, Any]) -> None:
    """Names and schemas of the tools offered."""
    tools = body.get("tools")
    if tools is None:
        if body.get("tool_choice") is not None:
            raise refuse("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        return
    if not isinstance(tools, list):
        raise wrong_type("tools", "an array of objects", tools)
    if not tools:
        raise empty_array("tools")
    for n, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise refuse(
                f"Missing required parameter: 'tools[{n}].function'.",
                code="missing_required_parameter",
                param=f"tools[{n}].function",
            )
        check_function(n, function)


def check_function(n: int, function: Mapping[str, Any]) -> None:
    """One tool's definition."""
    name = function.get("name")
    if not fits_pattern(r"[a-zA-Z0-9_-]{1,64}", name):
        raise refuse(
            f"Invalid 'tools[{n}].function.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            code="invalid_value",
            param=f"tools[{n}].function.name",
        )
    schema = function.get("parameters", {"type": "object"})
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind != "object" or not isinstance(schema.get("properties", {}), Mapping):
        got = json.dumps(kind) if kind else "None"
        raise refuse(
            f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', "
            f"got 'type: {got}'.",
            code="invalid_function_parameters",
            param=f"tools[{n}].function.parameters",
        )


def check_pairs(messages: Sequence[Message]) -> dict[str, str]:
    """Every call is answered before anybody speaks again, once. Returns id -> tool."""
    names: dict[str, str] = {}
    open_calls: list[str] = []
    for n, message in enumerate(messages):
        if message["role"] == "tool":
            close_call(n, message, open_calls, names)
            continue
        if open_calls:
            raise unanswered(n, open_calls)
        for call in message.get("tool_calls") or []:
            if call["id"] in names:
                raise refuse(
                    f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call['id']}' in message[{n}].",
                    param=f"messages.[{n}].tool_calls",
                )
            names[call["id"]] = call["function"]["name"]
            open_calls.append(call["id"])
    if open_calls:
        raise unanswered(len(messages), open_calls)
    return names


def unanswered(n: int, open_calls: Sequence[str]) -> Exception:
    """The service's words for calls without their tool messages."""
    return refuse(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(open_calls)}",
        param=f"messages.[{n}].role",
    )


def close_call(n: int, message: Message, open_calls: list[str], names: Mapping[str, str]) -> None:
    """A tool message answers a call that is still open."""
    answered = message.get("tool_call_id")
    if not isinstance(answered, str):
        raise refuse(
            f"Missing required parameter: 'messages[{n}].tool_call_id'.",
            code="missing_required_parameter",
            param=f"messages[{n}].tool_call_id",
        )
    if answered in open_calls:
        open_calls.remove(answered)
    elif answered in names:
        raise refuse(
            f"Invalid parameter: Duplicate value for 'tool_call_id' of '{answered}' in message[{n}].",
            param=f"messages.[{n}].tool_call_id",
        )
    else:
        raise refuse(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
            "with 'tool_calls'.",
            param=f"messages.[{n}].role",
        )


def check_dialect(messages: Sequence[Message], limits: Limits) -> None:
    """What some services of this protocol refuse beyond the first one's rules."""
    last = messages[-1]["role"]
    if last == "assistant" and not messages[-1].get("prefix"):
        raise refuse(
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
            param="messages",
        )
    if limits.dialect == "deepseek-thinking":
        for n, message in enumerate(messages):
            if message.get("tool_calls") and not isinstance(message.get("reasoning_content"), str):
                raise refuse(f"Missing `reasoning_content` field in the assistant message at message index {n}.")
    if limits.dialect == "strict-alternation":
        check_alternation(messages)


def check_alternation(messages: Sequence[Message]) -> None:
    """Chat templates of local servers: one system message at the start, then user and assistant in turn."""
    if any(message["role"] == "system" for message in messages[1:]):
        raise refuse("System message must be at the beginning.")
    roles = [m["role"] for m in messages if m["role"] in ("user", "assistant") and not m.get("tool_calls")]
    if roles[:1] != ["user"] or any(one == other for one, other in itertools.pairwise(roles)):
        raise refuse("After the optional system message, conversation roles must alternate user/assistant/user/...")


def check_window(transcript: Transcript, limits: Limits, *, asked: bool) -> None:
    """The prompt, and the prompt with the wanted output, fit the window."""
    tokens, head = transcript.tokens, f"This model's maximum context length is {limits.window} tokens. However, "
    if tokens > limits.window:
        words = f"your messages resulted in {tokens} tokens. Please reduce the length of the messages."
    elif asked and tokens + transcript.max_tokens > limits.window:
        words = (
            f"you requested {tokens + transcript.max_tokens} tokens ({tokens} in the messages, "
            f"{transcript.max_tokens} in the completion). Please reduce the length of the messages or completion."
        )
    else:
        return
    raise refuse(head + words, code="context_length_exceeded", param="messages")
