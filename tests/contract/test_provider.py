"""What every provider must do, whatever its protocol: against the simulator, a strict service of its own process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from harnessd.domain.failure import Failure
from harnessd.domain.messages import (
    FinishReason,
    Message,
    ModelReply,
    ModelRequest,
    TextBlock,
    ToolResultBlock,
    ToolSpec,
    Usage,
    message_from_json,
    message_to_json,
)
from harnessd.domain.ports import CallClocks, ModelProvider
from harnessd.net import Clients
from harnessd.providers import PROTOCOLS, Endpoint
from tests.simulated import SimulatedService, running_simulator

CLOCKS = CallClocks(connect_s=5, first_event_s=5, idle_s=5, call_s=10)
KEY = "canary-key-0123456789"
BASH = ToolSpec(
    "bash",
    "Runs a command.",
    {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
LONG = " ".join(f"word{number}" for number in range(60))

# Each fault of the simulator, and the facts that a Failure of it must carry. `None` for a status: none came.
FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rate_limited": ({"rate_limited": True, "retry_after": 2}, {"status": 429, "retry_after_s": 2.0, "ended": "none"}),
    "overloaded": ("overloaded", {"ended": "none"}),
    "server_error": ("server_error", {"status": 500, "ended": "none"}),
    "quota": ("quota", {"ended": "none"}),
    "auth": ({"auth": True, "echo_key": True}, {"status": 401}),
    "invalid_request": ("invalid_request", {"status": 400}),
    "overflow": ("overflow", {"status": 400}),
    "html_502": ("html_502", {"status": 502, "message": "502 Bad Gateway"}),
    "reset": ({"reset": True}, {"status": None, "transport": "reset", "ended": "none"}),
    "reset_later": ({"reset": 4}, {"status": 200, "transport": "reset", "ended": "cut"}),
    "cut_clean": ({"cut_after": 5, "end": "clean"}, {"status": 200, "transport": None, "ended": "cut"}),
    "cut_close": ({"cut_after": 5, "end": "close"}, {"status": 200, "transport": "closed", "ended": "cut"}),
    "cut_bytes": ({"cut_after": "700B"}, {"status": 200, "ended": "cut"}),
    "error_event": ({"error_event": "overloaded", "after": 4}, {"status": 200, "ended": "error"}),
    "garbage_http": ({"garbage": "http"}, {"transport": "protocol"}),
    "garbage_lengths": ({"garbage": "lengths"}, {"transport": "protocol"}),
    "garbage_json": ({"garbage": "json"}, {"transport": "protocol", "status": 200}),
    "garbage_utf8": ({"garbage": "utf8"}, {"transport": "protocol", "status": 200}),
    "garbage_sse": ({"garbage": "sse"}, {"transport": "protocol", "status": 200}),
    "gzip_bomb": ({"gzip_bomb": True, "size": "100MiB"}, {"transport": "too_large", "status": 200}),
    "cut_call": ("cut_call", {"call_cut": True, "finish": "length", "ended": "complete"}),
    "refusal": ("refusal", {"finish": "refusal", "ended": "complete"}),
}
# Odd, and still a whole answer.
ODDITIES: dict[str, Any] = {
    "split": {"split": 3},
    "unknown_events": "unknown_events",
    "slow_drip": {"slow_drip": "1ms", "bytes": 40},
}
CALL = {"tool": "bash", "args": {"command": "ls -l"}}
SCRIPTS: dict[str, Any] = {
    "plain": {"turns": [{"say": "Hello, {last_text}"}]},
    "worker": {
        "history": "append_only",
        "turns": [
            {
                "when": {"first": True},
                "think": "Hm.",
                "say": "Looking.",
                "call": [CALL, {"tool": "bash", "args": {"command": "pwd"}}],
            },
            {"when": {"turn": 1}, "call": CALL},
            {"when": {"turn": 2}, "say": "Done."},
        ],
    },
    "strict": {
        "tools_for_history": True,
        "turns": [{"when": {"first": True}, "call": CALL}, {"when": {"turn": 1}, "say": "In sum."}],
    },
    "summing": {
        "history": "append_only",
        "turns": [
            {"when": {"first": True}, "call": CALL},
            {"when": {"turn": 1, "no_tools": True}, "say": "In sum."},
        ],
    },
    "long": {"turns": [{"say": LONG}]},
    "twins": {"turns": [{"call": [CALL, CALL]}], "faults": {"plan": [{"request": {"min": 1}, "do": "duplicate_ids"}]}},
    "bad": {"turns": [{"call": CALL}], "faults": {"plan": [{"request": {"min": 1}, "do": "malformed_args"}]}},
    "silent": {"turns": [{"say": LONG}], "faults": {"plan": [{"request": {"min": 1}, "do": {"stall": 4}}]}},
    "pings": {
        "turns": [{"say": LONG}],
        "faults": {"plan": [{"request": {"min": 1}, "do": {"pings_only": 3, "every": "20ms"}}]},
    },
    "counted": {"turns": [{"say": "Yes.", "usage": {"input": 100, "output": 7, "cache_read": 40}}]},
} | {
    name: {"turns": [{"say": LONG, "call": CALL}], "faults": {"plan": [{"request": {"min": 1}, "do": do}]}}
    for name, do in [*((name, do) for name, (do, _) in FAULTS.items()), *ODDITIES.items()]
}


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatedService]:
    with running_simulator(SCRIPTS) as running:
        yield running


@pytest.fixture(params=sorted(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Bench:
    """Providers of one protocol, one for each script."""

    def __init__(self, protocol: str, url: str, clients: Clients) -> None:
        self.protocol, self.url, self.clients = protocol, url, clients
        self.progress: list[str] = []

    def provider(self, model: str, url: str | None = None, window: int = 200_000) -> ModelProvider:
        endpoint = Endpoint("primary", url or self.url, model, lambda: KEY, self.clients, window, 0, time.time)
        return PROTOCOLS[self.protocol](endpoint)

    async def call(
        self, model: str, messages: tuple[Message, ...] = (), clocks: CallClocks = CLOCKS, **changes: Any
    ) -> ModelReply | Failure:
        request = ModelRequest("primary", "Be brief.", messages or (user("Hi."),), (BASH,), 4000)
        return await self.provider(model).call(replace(request, **changes), clocks, self.progress.append)


def user(text: str) -> Message:
    return Message("user", (TextBlock(text),))


def results(reply: ModelReply) -> Message:
    return Message("user", tuple(ToolResultBlock(call.id, f"result of {call.id}") for call in reply.message.tool_uses))


@pytest_asyncio.fixture
async def bench(protocol: str, service: SimulatedService) -> AsyncIterator[Bench]:
    clients = Clients()
    yield Bench(protocol, service.url, clients)
    await clients.aclose()


async def test_a_text_answer_is_whole(bench: Bench) -> None:
    reply = await bench.call("plain")
    assert isinstance(reply, ModelReply), reply
    assert reply.message.text == "Hello, Hi."
    assert reply.finish is FinishReason.STOP
    assert reply.served_by
    assert reply.request_id
    assert reply.usage.total > 0
    assert set(bench.progress) == {"text"}


async def test_a_conversation_with_tools_is_legal_to_its_end(bench: Bench, service: SimulatedService) -> None:
    # R4.8: the simulator refuses what services refuse, and reports a history that lost something
    before = len((await service.requests())["violations"])
    messages: tuple[Message, ...] = (user(f"Work, over {bench.protocol}."),)
    finishes = []
    for _ in range(3):
        reply = await bench.call("worker", messages)
        assert isinstance(reply, ModelReply), reply
        finishes.append(reply.finish)
        stored = message_from_json(message_to_json(reply.message))
        messages = (*messages, stored, *((results(reply),) if reply.message.tool_uses else ()))
    assert finishes == [FinishReason.TOOL_USE, FinishReason.TOOL_USE, FinishReason.STOP]
    seen = await service.requests()
    assert seen["violations"][before:] == []


async def test_a_history_of_the_other_protocol_is_legal_too(bench: Bench, service: SimulatedService) -> None:
    # R3.4: a fallback of another protocol goes on with the same history
    others = [name for name in sorted(PROTOCOLS) if name != bench.protocol]
    for other in others:
        there = Bench(other, bench.url, bench.clients)
        messages = (user(f"Work, from {other} to {bench.protocol}."),)
        first = await there.call("worker", messages)
        assert isinstance(first, ModelReply), first
        second = await bench.call("worker", (*messages, first.message, results(first)))
        assert isinstance(second, ModelReply), second
        assert [call.arguments for call in second.message.tool_uses] == [{"command": "ls -l"}]


async def test_a_last_turn_without_tools_is_legal(bench: Bench) -> None:
    # R3.9
    first = await bench.call("strict", (user("Work."),))
    assert isinstance(first, ModelReply), first
    last = await bench.call("strict", (user("Work."), first.message, results(first)), tools=())
    assert isinstance(last, ModelReply), last
    assert last.message.text == "In sum."


async def test_a_last_turn_keeps_its_tools_and_may_use_none(bench: Bench, service: SimulatedService) -> None:
    # R3.9: the definitions stay as they were, so that the prompt cache holds; the simulator reports changed ones
    before = len((await service.requests())["violations"])
    asked = user(f"Work to the end, over {bench.protocol}.")
    first = await bench.call("summing", (asked,))
    assert isinstance(first, ModelReply), first
    last = await bench.call("summing", (asked, first.message, results(first)), tool_choice="none")
    assert isinstance(last, ModelReply), last
    assert last.message.text == "In sum."
    seen = await service.requests(last=2, shown=True)
    assert [entry["shown"]["tools"] for entry in seen["last"]] == [["bash"], []]
    assert seen["violations"][before:] == []


@pytest.mark.parametrize("fault", sorted(FAULTS))
async def test_a_fault_becomes_a_failure_with_its_facts(bench: Bench, fault: str) -> None:
    # R3.2, R3.7, F25, F26, F27
    failure = await bench.call(fault)
    assert isinstance(failure, Failure), failure
    for fact, value in FAULTS[fault][1].items():
        assert getattr(failure, fact) == value, (fact, failure)
    assert failure.message
    assert len(failure.message) <= 2000
    assert (failure.source, failure.dependency, failure.protocol) == ("model", "model/primary", bench.protocol)
    assert not failure.output_passed
    assert "canary" not in repr(failure)


@pytest.mark.parametrize("oddity", sorted(ODDITIES))
async def test_an_odd_but_whole_answer_is_an_answer(bench: Bench, oddity: str) -> None:
    reply = await bench.call(oddity)
    assert isinstance(reply, ModelReply), reply
    assert reply.message.text == LONG
    assert [call.arguments for call in reply.message.tool_uses] == [{"command": "ls -l"}]


async def test_a_length_limit_gives_what_was_said(bench: Bench) -> None:
    reply = await bench.call("long", max_tokens=10)
    assert isinstance(reply, ModelReply), reply
    assert reply.finish is FinishReason.LENGTH
    assert LONG.startswith(reply.message.text)


async def test_equal_ids_are_made_distinct(bench: Bench) -> None:
    reply = await bench.call("twins")
    assert isinstance(reply, ModelReply), reply
    assert len({call.id for call in reply.message.tool_uses}) == 2
    again = await bench.call("plain", (user("Hi."), reply.message, results(reply)))
    assert isinstance(again, ModelReply), again


async def test_arguments_that_are_no_json_are_told_and_legal_to_send_back(bench: Bench) -> None:
    reply = await bench.call("bad")
    assert isinstance(reply, ModelReply), reply
    (call,) = reply.message.tool_uses
    assert call.arguments is None
    assert call.raw
    again = await bench.call("plain", (user("Hi."), reply.message, results(reply)))
    assert isinstance(again, ModelReply), again


@pytest.mark.parametrize("model", ["silent", "pings"])
async def test_silence_and_pings_end_at_the_idle_clock(bench: Bench, model: str) -> None:
    # R3.7, R3.11, d12
    began = time.monotonic()
    failure = await bench.call(model, clocks=CallClocks(5, 1, 0.5, 10))
    assert isinstance(failure, Failure), failure
    assert (failure.transport, failure.ended) == ("read_timeout", "none")
    assert time.monotonic() - began < 4


async def test_usage_leaves_cached_tokens_out_of_the_input(bench: Bench) -> None:
    reply = await bench.call("counted")
    assert isinstance(reply, ModelReply), reply
    assert reply.usage == Usage(100, 7, 40)


async def test_connections_are_kept_and_given_back(bench: Bench) -> None:
    for _ in range(3):
        assert isinstance(await bench.call("plain"), ModelReply)
    assert bench.clients.made == 1
    await bench.provider("plain").aclose()
    assert isinstance(await bench.call("plain"), ModelReply)


async def test_many_calls_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    replies = await asyncio.gather(*(bench.call("plain", (user(f"number {number}"),)) for number in range(20)))
    assert [reply.message.text for reply in replies if isinstance(reply, ModelReply)] == [
        f"Hello, number {number}" for number in range(20)
    ]


async def test_cancelling_hangs_up(bench: Bench, service: SimulatedService) -> None:
    before = (await service.requests())["total"]
    call = asyncio.ensure_future(bench.call("silent"))
    await service.wait_until(lambda seen: seen["total"] > before)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await service.wait_until(lambda seen: seen["open"] == 0)
