"""Conventions: the names of spans and attributes by OpenTelemetry's semantic conventions for generative AI, 1.37.

They are still experimental and move between packages; the few that are used stand here, with ours under `harnessd.`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from harnessd.domain.decision import Decision
from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply, ModelRequest, Usage, message_to_json
from harnessd.domain.task import Task
from harnessd.engine.protocol import CallTool

CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
# Content: only where harness.yaml asks for it.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
# General ones.
ERROR_TYPE = "error.type"
SERVER_ADDRESS, SERVER_PORT = "server.address", "server.port"
HTTP_STATUS = "http.response.status_code"
# Ours.
TASK_END = "harnessd.task.end"
TASK_LABELS = "harnessd.task.label."
EPOCH = "harnessd.task.epoch"
RECOVERIES = "harnessd.task.recoveries"
ATTEMPT = "harnessd.call.attempt"
EFFECT = "harnessd.effect.id"
IDEMPOTENCY_KEY = "harnessd.effect.keyed"
COST = "harnessd.cost_usd"
DECISION_DO, DECISION_CLASS = "harnessd.decision.do", "harnessd.decision.class"
DECISION_RULE, DECISION_REVISION = "harnessd.decision.rule", "harnessd.decision.revision"

Facts = dict[str, str | bool | int | float | tuple[str, ...]]

# gen_ai.provider.name has well-known values; another service that speaks a protocol is told apart by its address.
_PROVIDERS = {"anthropic": "anthropic", "openai-chat": "openai", "openai-responses": "openai"}


def task_attributes(task: Task) -> Facts:
    """Of an attempt's span, from its beginning."""
    facts: Facts = {
        OPERATION: INVOKE_AGENT,
        AGENT_NAME: task.draft.agent,
        CONVERSATION: task.id,
        RECOVERIES: task.recoveries,
    }
    if task.lease is not None:
        facts[EPOCH] = task.lease.epoch
    return facts | {f"{TASK_LABELS}{name}": value for name, value in task.draft.labels.items()}


def request_attributes(request: ModelRequest, protocol: str, name: str) -> Facts:
    """Of a chat span, from its beginning."""
    return {
        OPERATION: CHAT,
        PROVIDER: _PROVIDERS.get(protocol, protocol or "unknown"),
        REQUEST_MODEL: name,
        MAX_TOKENS: request.max_tokens,
        REQUEST_STREAM: True,
        "harnessd.model.alias": request.model,
    }


def answer_attributes(answer: ModelReply | Failure | None, usage: Usage, *, content: bool) -> Facts:
    """Of a chat span, at its end."""
    # The convention counts cached tokens as input, this program beside it.
    facts: Facts = {}
    if usage.total:
        facts |= {
            INPUT_TOKENS: usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
            OUTPUT_TOKENS: usage.output_tokens,
            CACHE_READ_TOKENS: usage.cache_read_tokens,
            CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        }
    if isinstance(answer, ModelReply):
        facts |= {FINISH_REASONS: (answer.finish.value,), COST: answer.cost_usd}
        if content:
            facts[OUTPUT_MESSAGES] = _json([message_to_json(answer.message)])
    named = {
        RESPONSE_MODEL: getattr(answer, "served_by", ""),
        RESPONSE_ID: getattr(answer, "request_id", ""),
        HTTP_STATUS: getattr(answer, "status", None),
    }
    return facts | {name: value for name, value in named.items() if value}


def tool_attributes(command: CallTool) -> Facts:
    """Of a tool's span, from its beginning."""
    return {
        OPERATION: EXECUTE_TOOL,
        TOOL_NAME: command.tool,
        TOOL_CALL_ID: command.call_id,
        TOOL_TYPE: "function",
        EFFECT: command.call,
        IDEMPOTENCY_KEY: command.key is not None,
    }


def decision_attributes(decision: Decision) -> Facts:
    """Of the event `decision` inside an attempt."""
    rule = decision.rule
    return {
        DECISION_DO: _word(type(decision.remedy).__name__),
        DECISION_CLASS: decision.error_class,
        DECISION_RULE: f"{rule.file}:{rule.line}",
        DECISION_REVISION: rule.revision,
    }


def token_types(usage: Usage) -> dict[str, int]:
    """Tokens by type, each counted once."""
    return {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write": usage.cache_write_tokens,
    }


def _word(name: str) -> str:
    """A remedy's word in policies: `NeedsHuman` is `needs_human`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
