"""Chaos at work: faults on purpose, innermost, so that limits, breakers, retries and people meet them as real ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from harnessd.domain.failure import ErrorClass, Failure, Source
from harnessd.domain.messages import ModelReply, ToolUseBlock, block_to_json
from harnessd.domain.ports import CallClocks, Clock, ToolOutcome
from harnessd.domain.wait_hints import retry_after_s
from harnessd.policy import PolicySet
from harnessd.policy.chaos import AttemptFacts, Fault, draw
from harnessd.runtime import telemetry
from harnessd.runtime.traffic.caller import Caller

_log = telemetry.log("chaos")
_LIMITING = (429, 503, 529)
_BROKEN = '{"pa'  # what is left of arguments that were cut


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Chaos:
    """Draws and injects; made only where harness.yaml says `chaos: true`."""

    def __init__(self, policies: Callable[[], PolicySet], clock: Clock, crash: Callable[[], None] = _crash) -> None:
        """`crash` ends the daemon as a power cut does."""
        self._policies, self._clock, self._crash = policies, clock, crash

    async def model(
        self, name: str, caller: Caller, clocks: CallClocks, perform: Callable[[], Awaitable[ModelReply | Failure]]
    ) -> ModelReply | Failure:
        """An attempt of a model call, or the fault in its place."""
        fault = self._drawn(name, caller)
        if fault is None:
            return await perform()
        instead = await self._instead(fault, "model", name, clocks.first_event_s)
        if instead is not None:
            return instead
        answer = await perform()
        if isinstance(answer, Failure):
            return answer
        return _spoilt_reply(answer, fault, name)

    async def tool(
        self, name: str, caller: Caller, perform: Callable[[], Awaitable[ToolOutcome | Failure]]
    ) -> ToolOutcome | Failure:
        """A tool call, or the fault in its place."""
        fault = self._drawn(name, caller)
        if fault is None:
            return await perform()
        instead = await self._instead(fault, "tool", name, None)
        if instead is not None:
            return instead
        if fault.inject.malformed == "arguments":
            return _failure("tool", name, "the arguments cannot be read", hint=ErrorClass.INVALID_ARGUMENTS)
        outcome = await perform()
        return outcome if isinstance(outcome, Failure) else _spoilt_outcome(outcome, fault)

    def _drawn(self, name: str, caller: Caller) -> Fault | None:
        policy = self._policies().chaos
        if not policy.shape.rules or not caller.task:
            return None
        number = caller.call.lstrip("e")
        facts = AttemptFacts(
            dependency=name,
            task=caller.task,
            attempt=int(number) if number.isdigit() else 0,
            agent=caller.agent,
            workspace=caller.workspace,
            labels=caller.labels,
            priority=caller.priority,
        )
        fault = draw(policy, facts)
        if fault is not None:
            inject = fault.inject.model_dump(exclude_unset=True)
            _log.info("chaos", task=caller.task, dependency=name, call=caller.call, inject=inject, line=fault.rule.line)
        return fault

    async def _instead(self, fault: Fault, source: Source, name: str, patience_s: float | None) -> Failure | None:
        """What comes in the attempt's place; None where the attempt is made all the same."""
        inject = fault.inject
        if inject.crash:
            self._crash()
        if inject.delay is not None:
            return await self._delayed(inject.delay, source, name, patience_s)
        if inject.status is not None:
            return self._refusal(source, name, inject.status, inject.headers or {}, inject.body)
        if inject.reset:
            words = "the connection was reset"
            return _failure(source, name, words, transport="reset", ended="none", **_unreached(source))
        if inject.fail is not None:
            error_class = ErrorClass(inject.fail)
            begun = error_class is ErrorClass.OUTCOME_UNKNOWN
            return _failure(source, name, f"it fails with {inject.fail}", hint=error_class, effect_begun=begun)
        if inject.malformed == "json" and source == "model":
            return _failure(source, name, "the answer is not JSON", status=200, transport="protocol", ended="none")
        return None

    async def _delayed(self, delay_s: float, source: Source, name: str, patience_s: float | None) -> Failure | None:
        """A service that lets us wait; longer than the clock of the first event it never answers."""
        if patience_s is None or delay_s <= patience_s:
            await asyncio.sleep(delay_s)
            return None
        await asyncio.sleep(patience_s)
        words = f"no event within {patience_s:g} s"
        return _failure(source, name, words, transport="read_timeout", ended="none")

    def _refusal(self, source: Source, name: str, status: int, headers: Mapping[str, Any], body: Any) -> Failure:
        error = body.get("error", body) if isinstance(body, Mapping) else {}
        said = error if isinstance(error, Mapping) else {}
        message = str(said.get("message") or (body if isinstance(body, str) else f"HTTP status {status}"))
        shown = {str(key).lower(): str(value) for key, value in headers.items()}
        wait_s = retry_after_s(shown, body, message, self._clock.now(), limited=status in _LIMITING)
        return _failure(
            source,
            name,
            message,
            status=status,
            code=str(said["code"]) if said.get("code") else None,
            type=str(said["type"]) if said.get("type") else None,
            body=body,
            headers=shown,
            ended="none",
            retry_after_s=wait_s,
            **_unreached(source),
        )


def _failure(source: Source, name: str, words: str, **facts: Any) -> Failure:
    return Failure(source, name, f"{words} (injected by chaos)", **facts)


def _unreached(source: Source) -> dict[str, Any]:
    return {"hint": ErrorClass.UNAVAILABLE} if source == "tool" else {}


def _spoilt_reply(reply: ModelReply, fault: Fault, name: str) -> ModelReply | Failure:
    inject = fault.inject
    if inject.cut_after is not None:
        whole = json.dumps([block_to_json(block) for block in reply.message.blocks], default=str)
        if len(whole.encode()) <= inject.cut_after:
            return reply
        words = f"the answer was cut after {inject.cut_after} bytes"
        return _failure("model", name, words, status=200, ended="cut", usage=reply.usage)
    if inject.malformed == "arguments":
        blocks = tuple(
            replace(block, arguments=None, raw=_BROKEN) if isinstance(block, ToolUseBlock) else block
            for block in reply.message.blocks
        )
        return replace(reply, message=replace(reply.message, blocks=blocks, wire=None))
    return reply


def _spoilt_outcome(outcome: ToolOutcome, fault: Fault) -> ToolOutcome:
    if fault.inject.cut_after is not None:
        return replace(outcome, text=outcome.text.encode()[: fault.inject.cut_after].decode("utf-8", "ignore"))
    return replace(outcome, text='{"resu') if fault.inject.malformed == "json" else outcome
