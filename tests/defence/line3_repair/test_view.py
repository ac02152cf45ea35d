"""The view of a path: what a model is shown, by the provider's own encoding, whatever the nodes hold (R4.7)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessd.defence.line3_repair.carrying import as_sent
from harnessd.defence.line3_repair.known import EffectOf, no_journal
from harnessd.defence.line3_repair.remembering import Memory
from harnessd.defence.line3_repair.transcript import receiver
from harnessd.defence.line3_repair.view import View, legal_view, view_of
from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import (
    Message,
    ModelRequest,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
)
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload, view
from harnessd.net import Clients
from harnessd.providers import anthropic, openai_chat, openai_responses
from harnessd.providers.endpoint import Endpoint
from harnessd.simulator.protocols.anthropic_rules import sign
from tests.transcripts import PROTOCOLS, calls, refusal, results

MODEL = "m-1"
SHELL = ToolSpec("shell", "Runs a command.", {"type": "object"})


def sent(messages: Sequence[Message], protocol: str, model: str = MODEL) -> list[Any]:
    """The messages of the request body that the provider would send."""
    clients = cast("Clients", None)
    endpoint = Endpoint("a", "http://localhost", model, lambda: None, clients, 0, 0, lambda: 0.0)
    request = ModelRequest("a", "", tuple(messages), (SHELL,), 100)
    match protocol:
        case "anthropic":
            return without_marks(anthropic.encode(request, endpoint)["messages"])
        case "openai-chat":
            return list(openai_chat.encode(request, endpoint)["messages"])
        case _:
            return list(openai_responses.encode(request, endpoint)["input"])


def without_marks(messages: list[Any]) -> list[Any]:
    """Marks for the cache move on with each request and are no part of what is compared."""
    kept = copy.deepcopy(messages)
    for message in kept:
        for block in message["content"]:
            block.pop("cache_control", None)
    return kept


class Path:
    """A path under construction."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, kind: NodeKind, payload: Mapping[str, Any]) -> Path:
        number = len(self.nodes) + 1
        parent = self.nodes[-1].id if self.nodes else None
        self.nodes.append(Node(f"n{number}", parent, kind, payload, float(number)))
        return self

    def user(self, text: str) -> Path:
        return self.add(NodeKind.USER, user_payload(text))

    def says(self, text: str, *asked: str, wire: Mapping[str, Any] | None = None) -> Path:
        words = (TextBlock(text),) if text else ()
        uses = tuple(ToolUseBlock(call, "shell", {"cmd": call}) for call in asked)
        return self.add(NodeKind.ASSISTANT, assistant_payload(Message("assistant", (*words, *uses), wire)))

    def result(self, call: str, text: str, *, is_error: bool = False) -> Path:
        return self.add(NodeKind.TOOL_RESULT, result_payload(call, text, is_error=is_error))

    def view(self, protocol: str = "anthropic", *targets: str, effects: EffectOf = no_journal) -> View:
        return view_of(self.nodes, receiver(protocol, targets), MODEL, effects)


every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@every_protocol
def test_a_valid_path_is_shown_as_it_was(protocol: str) -> None:
    path = Path().user("Go.").says("Both.", "c1", "c2").result("c2", "two").result("c1", "one")
    path.user("Hurry.").says("Done.").user("Thanks.")
    found = path.view(protocol)
    assert found.findings == ()
    assert found.messages == view(path.nodes)
    assert refusal(sent(found.messages, protocol), protocol) == ""


@every_protocol
def test_history_without_a_result_goes_on(protocol: str) -> None:
    # R2.2, R4.7: edited or imported by hand, the history lost a result
    path = Path().user("Go.").says("", "c1", "c2").result("c2", "two").user("So?")
    found = path.view(protocol)
    shown = sent(found.messages, protocol)
    assert refusal(shown, protocol) == ""
    assert {call: text for call, text, _ in results(shown)}["c2"] == "two"
    assert [(finding.code, finding.node) for finding in found.findings] == [("unanswered_call", "n2")]


STATES = [
    (None, EffectClass.REVERSIBLE, None, "was not started"),
    (EffectState.INTENT, EffectClass.REVERSIBLE, None, "outcome unknown"),
    (EffectState.STARTED, EffectClass.IRREVERSIBLE, None, "outcome unknown"),
    (EffectState.UNKNOWN, EffectClass.REVERSIBLE, {"message": "x"}, "outcome unknown"),
    (EffectState.STARTED, EffectClass.READ_ONLY, None, "changes nothing"),
    (EffectState.FAILED, EffectClass.REVERSIBLE, {"message": "no space left"}, "failed: no space left"),
    (EffectState.DONE, EffectClass.REVERSIBLE, {"exit_code": 0}, "was done"),
    (EffectState.DONE, EffectClass.REVERSIBLE, {"exit_code": 0}, '"exit_code":0'),
]


@pytest.mark.parametrize(("state", "effect_class", "result", "words"), STATES)
def test_the_journal_says_what_is_known_of_a_lost_result(
    state: EffectState | None, effect_class: EffectClass, result: Mapping[str, Any] | None, words: str
) -> None:
    # R4.7: not started, started with an unknown outcome, or done; never success by guess
    def journal(node: str, call: str) -> Effect | None:
        assert (node, call) == ("n2", "c1")
        if state is None:
            return None
        return Effect("e1", "tool", node, call, "tool/shell", effect_class, state, result=result)

    found = Path().user("Go.").says("", "c1").user("So?").view(effects=journal)
    block = found.messages[2].blocks[0]
    assert isinstance(block, ToolResultBlock)
    assert words in block.text
    assert block.is_error == (state is not EffectState.DONE)


def test_a_call_that_could_not_be_read_was_not_run() -> None:
    path = Path().user("Write.")
    path.add(
        NodeKind.ASSISTANT, assistant_payload(Message("assistant", (ToolUseBlock("c1", "write", None, '{"p": "'),)))
    )
    found = path.user("So?").view("openai-chat")
    shown = sent(found.messages, "openai-chat")
    assert refusal(shown, "openai-chat") == ""
    assert "was not run" in next(text for _, text, _ in results(shown))


def test_a_node_that_cannot_be_read_is_left_out() -> None:
    # R4.7: fragments beyond trust are left out of the view with a diagnostic record
    path = Path().user("Go.").add(NodeKind.ASSISTANT, {"blocks": [{"type": "hologram"}]}).add(NodeKind.USER, {})
    found = path.says("Fine.").user("Next.").view()
    assert [message.text for message in found.messages] == ["Go.", "Fine.", "Next."]
    assert [finding.node for finding in found.findings] == ["n2", "n3"]
    assert {finding.code for finding in found.findings} == {"unreadable_node"}


def thinking_wire(model: str) -> dict[str, Any]:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")},
        {"type": "tool_use", "id": "c1", "name": "shell", "input": {"cmd": "c1"}},
    ]
    return {"protocol": "anthropic", "model": model, "content": content}


def test_its_own_thoughts_go_back_untouched_and_others_do_not() -> None:
    own = Path().user("Go.").says("", "c1", wire=thinking_wire(MODEL)).result("c1", "real").view()
    assert own.findings == ()
    assert own.messages[1].wire == thinking_wire(MODEL)
    other = Path().user("Go.").says("", "c1", wire=thinking_wire("m-2")).result("c1", "real").view()
    assert [finding.code for finding in other.findings] == ["thinking_dropped"]
    shown = sent(other.messages, "anthropic")
    assert "thinking" not in str(shown)
    assert refusal(shown, "anthropic") == ""


def test_a_broken_wire_form_is_repaired_in_its_own_form() -> None:
    wire = {
        "protocol": "anthropic",
        "model": MODEL,
        "content": [
            {"type": "text", "text": " "},
            {"type": "tool_use", "id": "bad id!", "name": "shell", "input": '{"cmd": "c1"}'},
        ],
    }
    path = Path().user("Go.").says("", wire=wire)
    path.nodes[-1] = replace(
        path.nodes[-1],
        payload=assistant_payload(Message("assistant", (ToolUseBlock("bad id!", "shell", {"cmd": "c1"}),), wire)),
    )
    path.result("bad id!", "real")
    before = copy.deepcopy(path.nodes[1].payload)
    shown = sent(path.view().messages, "anthropic")
    assert refusal(shown, "anthropic") == ""
    assert [text for _, text, _ in results(shown)] == ["real"]
    assert path.nodes[1].payload == before


def test_sorts_of_blocks_that_we_do_not_know_go_back_to_the_model_that_made_them() -> None:
    content: list[dict[str, Any]] = [{"type": "brand_new", "data": 1}, {"type": "text", "text": "Fine."}]
    wire = {"protocol": "anthropic", "model": MODEL, "content": content}
    path = Path().user("Go.")
    blocks = (OpaqueBlock("anthropic", content[0]), TextBlock("Fine."))
    path.add(NodeKind.ASSISTANT, assistant_payload(Message("assistant", blocks, wire)))
    found = path.user("Next.").view()
    assert found.findings == ()
    assert sent(found.messages, "anthropic")[1]["content"] == content


def test_a_strict_template_gets_turns() -> None:
    path = Path().user("Do A.").says("", "c1").result("c1", "real").user("Do B.")
    shown = sent(path.view("openai-chat", "strict-alternation").messages, "openai-chat")
    assert refusal(shown, "openai-chat", "strict-alternation") == ""
    assert "Do B." in str(shown)


def test_nine_letters_hold_from_request_to_request() -> None:
    path = Path().user("Go.").says("", "call-0123456789").result("call-0123456789", "real")
    one = sent(path.view("openai-chat", "mistral").messages, "openai-chat")
    two = sent(path.says("Fine.").user("Next.").view("openai-chat", "mistral").messages, "openai-chat")
    assert two[: len(one)] == one
    assert refusal(two, "openai-chat", "mistral") == ""


def test_thoughts_that_a_receiver_refuses_are_all_left_out() -> None:
    path = Path().user("Go.").says("", "c1", wire=thinking_wire(MODEL)).result("c1", "real")
    shown = sent(path.view("anthropic", "no-thoughts").messages, "anthropic")
    assert "thinking" not in str(shown)
    plain = path.view("anthropic", "plain")
    assert [message.wire for message in plain.messages] == [None, None, None]


@every_protocol
def test_the_same_bytes_in_another_wrapping_are_the_same(protocol: str) -> None:
    # policies.md: a repaired view is sent only if its bytes differ
    path = Path().user("Go.").says("Working.", "c1", wire=dict(own_wire(protocol, ["c1"]))).result("c1", "real")
    to = receiver(protocol)
    one = path.view(protocol).messages
    other = path.view(protocol, "plain").messages
    assert one != other
    different = protocol in ("openai-chat", "openai-responses")  # blanks in the arguments
    assert (as_sent(one, to, MODEL) != as_sent(other, to, MODEL)) == different
    assert as_sent(one, to, MODEL) == as_sent(copy.deepcopy(one), to, MODEL)


def test_messages_of_any_making_are_made_legal() -> None:
    # the summary's own request too
    messages = (Message("assistant", (ToolUseBlock("c1", "shell", {}),)), Message("assistant", (TextBlock("So."),)))
    found = legal_view(messages, receiver("anthropic"), nodes=("n7", "n8"))
    assert refusal(sent(found.messages, "anthropic"), "anthropic") == ""
    assert {finding.node for finding in found.findings} == {"n7", "n8"}


DANGEROUS = "Shall I delete the old backups? This cannot be undone."


@pytest.mark.parametrize(
    ("asked", "answered", "now", "shown"),
    [
        (DANGEROUS, "Yes, go ahead.", 63.5, False),  # the confirmation is of second 3
        (DANGEROUS, "Yes, go ahead.", 62.5, True),
        (DANGEROUS, "Yes, but only those of May, and keep the newest one of each week.", 900.0, True),
        ("Shall I read the logs?", "Yes.", 900.0, True),
        ("I will delete nothing.", "ok", 900.0, True),
    ],
)
def test_a_yes_that_waited_too_long_is_no_yes(asked: str, answered: str, now: float, shown: bool) -> None:
    # R4.7: a stale confirmation of something destructive, met again on resume
    path = Path().user("Clean up.").says(asked).user(answered)
    found = view_of(path.nodes, receiver("anthropic"), now=now)
    assert (answered in found.messages[-1].text) == shown
    assert bool(found.findings) != shown
    if shown:
        return
    path.says("I ask again.")
    path.nodes[-1] = replace(path.nodes[-1], at=now)
    later = view_of(path.user("Yes.").nodes, receiver("anthropic"), now=now + 1)
    assert later.messages[:3] == found.messages, "what was shown once stays as it was"


NODES = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.sampled_from(["Go.", "", "Nul\x00", "\ud83d"])),
        st.tuples(st.just("says"), st.lists(st.sampled_from(["c1", "c2", "c3", "odd id!"]), max_size=3)),
        st.tuples(st.just("result"), st.sampled_from(["c1", "c2", "c3", "odd id!"])),
        st.tuples(st.just("broken"), st.sampled_from([{}, {"blocks": 7}, {"blocks": [None]}, {"blocks": [{}]}])),
    ),
    max_size=14,
)


@every_protocol
@given(rows=NODES, wired=st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_path_gives_a_view_that_the_service_takes(protocol: str, rows: list[tuple[str, Any]], wired: bool) -> None:
    # R4.7
    path = Path()
    for sort, value in rows:
        match sort:
            case "user":
                path.user(value)
            case "result":
                path.result(value, f"real {value}")
            case "broken":
                path.add(NodeKind.ASSISTANT, value)
            case _:
                path.says("Working.", *value, wire=own_wire(protocol, value) if wired else None)
    before = copy.deepcopy(path.nodes)
    found = path.view(protocol)
    assert path.nodes == before
    shown = sent(found.messages, protocol)
    assert refusal(shown, protocol) == ""
    names = {id_: arguments["cmd"] for id_, _, arguments in calls(shown)}
    for call, text, _ in results(shown):
        if text.startswith("real "):
            assert text == f"real {names[call]}"
    again = legal_view(found.messages, receiver(protocol), MODEL)
    assert again.messages == found.messages
    assert again.findings == ()


@every_protocol
@given(rows=NODES, wired=st.booleans(), stale=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_remembered_changes_nothing(
    protocol: str, rows: list[tuple[str, Any]], wired: bool, stale: bool
) -> None:
    memory, path = Memory(), Path()
    for sort, value in [("user", "Go."), ("says", ["c9"]), ("result", "c9"), ("says", []), ("user", "More."), *rows]:
        match sort:
            case "user":
                path.user(value)
            case "result":
                path.result(value, f"real {value}")
            case "broken":
                path.add(NodeKind.ASSISTANT, value)
            case _:
                path.says("Working." if value else "", *value, wire=own_wire(protocol, value) if wired else None)
        nodes = list(map(replace, path.nodes)) if stale else path.nodes  # equal nodes, or the same ones
        found = memory.view(nodes, receiver(protocol), MODEL)
        assert found == view_of(path.nodes, receiver(protocol), MODEL)


def test_a_late_call_looks_at_what_is_new() -> None:
    memory, path = Memory(), Path().user("Go.")
    for number in range(30):
        path.says("", f"c{number}").result(f"c{number}", "real")
        found = memory.view(path.nodes, receiver("anthropic"), MODEL)
        assert len(memory.nodes) == 2 * number + 1
    assert found == view_of(path.nodes, receiver("anthropic"), MODEL)
    assert memory.ids == {f"c{number}" for number in range(29)}


def own_wire(protocol: str, asked: list[str]) -> Mapping[str, Any]:
    content: Any
    if protocol == "anthropic":
        content = [{"type": "text", "text": "Working."}]
        content += [{"type": "tool_use", "id": c, "name": "shell", "input": {"cmd": c}} for c in asked]
    elif protocol == "openai-chat":
        content = {"role": "assistant", "content": "Working."}
        if asked:
            content["tool_calls"] = [
                {"id": c, "type": "function", "function": {"name": "shell", "arguments": f'{{"cmd": "{c}"}}'}}
                for c in asked
            ]
    else:
        content = [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Working."}]},
            *(
                {"type": "function_call", "call_id": c, "name": "shell", "arguments": f'{{"cmd": "{c}"}}'}
                for c in asked
            ),
        ]
    return MappingProxyType({"protocol": protocol, "model": MODEL, "content": content})
