"""The grammar of conditions, names and ladders."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.config.strict_yaml import parse
from harnessd.policy.conditions import Conditions, When, explodes
from harnessd.policy.language.names import ANYTHING, Ladder, Names, any_fits, glob
from harnessd.policy.language.source import MapNode, Misread


def node(text: str) -> Any:
    parsed = parse(f"x: {text}\n".encode(), "f.yaml")
    assert not parsed.problems, parsed.problems
    document = parsed.documents[0]
    assert isinstance(document, MapNode)
    return document["x"]


def when(text: str, scope: str = "retry") -> When:
    return Conditions(scope=scope).read(node(text))


def facts(**known: Any) -> Callable[[str], Any]:
    return lambda name: known.get(name.replace(".", "__"))


@pytest.mark.parametrize(
    ("text", "known", "holds"),
    [
        ("{}", {}, True),
        ("{status: 429}", {"status": 429}, True),
        ("{status: 429}", {"status": 430}, False),
        ("{status: 429}", {}, False),
        ("{status: [500, 4xx]}", {"status": 404}, True),
        ("{status: 4xx}", {"status": 500}, False),
        ("{status: {at_least: 500, below: 600}}", {"status": 503}, True),
        ("{status: {at_least: 500, below: 503}}", {"status": 503}, False),
        ("{status: 400, code: x}", {"status": 400}, False),
        ("[{status: 400}, {code: x}]", {"code": "X"}, True),  # letter case does not count in code
        ("{protocol: Anthropic}", {"protocol": "anthropic"}, False),  # but does elsewhere
        ("{message: '*too long*'}", {"message": "prompt is TOO LONG now\nreally"}, True),
        ("{message: 'too long'}", {"message": "prompt is too long"}, False),  # the whole of it
        ("{message: {matches: 'too.long$'}}", {"message": "prompt is too\nlong"}, True),
        ("{message: {matches: END}}", {"message": "x" * 2000 + "end"}, False),  # the first 2,000 characters
        ("{code: 'a?c'}", {"code": "abc"}, True),
        (r"{code: 'a\*c'}", {"code": "abc"}, False),
        (r"{code: 'a\*c'}", {"code": "a*c"}, True),
        ("{code: '402'}", {"code": "402"}, True),
        ("{body.error.code: 0}", {"body__error__code": 0}, True),
        ("{body.ok: true}", {"body__ok": True}, True),
        ("{body.ok: true}", {"body__ok": "true"}, True),
        ("{call_cut: true}", {"call_cut": True}, True),
        ("{call_cut: true}", {}, False),
        ("{ended: [cut, error]}", {"ended": "cut"}, True),
        ("{window_used: {above: 80%}}", {"window_used": 0.81}, True),
        ("{window_used: {above: 80%}}", {"window_used": 0.8}, False),
        ("{window_used: {above: 120%}}", {"window_used": 1.3}, True),
        ("{exit_code: -9}", {"exit_code": -9}, True),
        ("{transport: {present: true}}", {"transport": "reset"}, True),
        ("{transport: {present: false}}", {}, True),  # the only test that a missing fact can pass
        ("{transport: {present: false}}", {"transport": "reset"}, False),
    ],
)
def test_what_holds(text: str, known: dict[str, Any], holds: bool) -> None:
    # R7.1
    assert when(text).holds(facts(**known)) is holds


def test_tallies_and_parts_mean_at_least_and_below() -> None:
    assert when("{consecutive: 3}", "escalation").holds(facts(consecutive=5))
    assert not when("{consecutive: 3}", "escalation").holds(facts(consecutive=2))
    assert when("{lasting: 4h}", "notify").holds(facts(lasting=14_400.0))
    assert not when("{lasting: 4h}", "notify").holds(facts(lasting=14_399.0))
    assert when("{share: 10%}", "assign").holds(facts(share=0.099))
    assert not when("{share: 10%}", "assign").holds(facts(share=0.1))


@pytest.mark.parametrize(
    ("text", "scope", "message"),
    [
        ("{stats: 429}", "retry", 'f.yaml:1:5: unknown fact "stats": did you mean "status"?'),
        ("{comand: x}", "tools", 'unknown fact "comand": did you mean "command"?'),
        ("{message: x}", "assign", 'unknown fact "message"'),
        ("{agent: x}", "nowhere", 'unknown fact "agent": no facts exist here: use `for`'),
        ("{body.: x}", "retry", 'unknown fact "body."'),
        ("{status: many}", "retry", "many is not a status: write one such as 429, or 4xx, 5xx"),
        ('{status: "429"}', "retry", '"429" is a text, not a number: write 429 without quotes'),
        ("{status: 7xx}", "retry", "7xx is not a status"),
        ("{ended: broken}", "retry", "unknown word broken: write one of complete, cut, error, none"),
        ("{code: no}", "retry", 'no is a truth value to other YAML readers: write "no" in quotes'),
        ("{code: 010}", "retry", "010 is a number to other YAML readers"),
        ("{code: []}", "retry", "an empty list never fits code: write one value or more"),
        ("{code: }", "retry", "is not a value of code"),
        ("{code: {above: 3}}", "retry", "code is text, letter case does not count: it has no bounds"),
        ("{status: {matches: x}}", "retry", "matches is for texts"),
        ("{status: {abov: 3}}", "retry", 'unknown test "abov": did you mean "above"?'),
        ("{status: {above: 1, below: 2, at_most: 3}}", "retry", "one or two bounds may stand together"),
        ("{message: {matches: '('}}", "retry", "this is not a regular expression: missing )"),
        ("{message: {matches: '(a+)+b'}}", "retry", "a repeat of a repeat can take for ever on the wrong text"),
        ("{message: {matches: a, present: true}}", "retry", "matches and present stand alone"),
        ("[]", "retry", "an empty list of conditions never holds: write {} for always"),
        ("429", "retry", "429 is not a condition: write {FACT: value}"),
        ("{share: 25}", "assign", "25 is not a ratio: 25% or 0.25?"),
    ],
)
def test_what_is_refused(text: str, scope: str, message: str) -> None:
    # R7.2
    with pytest.raises(Misread) as caught:
        when(text, scope)
    assert message in str(caught.value)


def test_all_problems_of_one_condition_are_told() -> None:
    with pytest.raises(Misread) as caught:
        when("[{stats: 1, code: no}, {ended: x}]")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("(a+)+", True),
        ("(?:a*b?)*c", True),
        ("((x{1,})y)+", True),
        ("(a+)?", False),
        ("(a|b)+", False),
        (r"(\(a\)+)x", False),
        ("[(a+)+]", False),
        ("(a{1,3})+", False),
        ("a+b*c+", False),
    ],
)
def test_repeats_of_repeats_are_known(source: str, bad: bool) -> None:
    assert explodes(source) is bad


def test_stars_take_no_exponential_time() -> None:
    pattern = glob("*a*a*a*a*a*a*a*a*b")
    begun = time.monotonic()
    assert not pattern.fullmatch("a" * 2000)
    assert time.monotonic() - begun < 1


@given(st.text(max_size=20), st.text(max_size=5), st.text(max_size=20))
def test_a_star_is_any_run(start: str, middle: str, end: str) -> None:
    def quoted(text: str) -> str:
        return text.replace("\\", "").replace("*", "").replace("?", "")

    pattern = glob(f"{quoted(start)}*{quoted(end)}")
    assert pattern.fullmatch(quoted(start) + middle + quoted(end))


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_and_patterns() -> None:
    names = Names().read(node('[model/primary, "tool/*", mcp/github/get_*, label/team=web]'))
    assert any_fits(names, ["model/primary"])
    assert any_fits(names, ["tool/bash"])
    assert any_fits(names, ["mcp/github/get_issue"])
    assert any_fits(names, ["label/team=web"])
    assert not any_fits(names, ["model/second", "mcp/github/create", "agent/x"])
    assert any_fits(ANYTHING, [])
    assert [name.exact for name in names] == [True, False, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("primary", "primary is not a name: write its sort too, as model/primary"),
        ("modl/x", 'modl/x is not a name: did you mean "model"?'),
        ("model/", "model/ is not a name"),
        ("label/team", "label/team names no value: write label/KEY=VALUE"),
        ("daemon/x", "daemon/x is not a name"),
        ("'model/a b'", "is not a name"),
        ("{a: b}", "a map is not a name"),
        ("[]", "0 names are out of bounds"),
    ],
)
def test_what_is_no_name(text: str, message: str) -> None:
    with pytest.raises(Misread) as caught:
        Names().read(node(text))
    assert message in str(caught.value)


def test_sorts_without_meaning_and_bare_stars_are_refused_where_they_are() -> None:
    with pytest.raises(Misread, match="agent has no meaning here: write model/ALIAS"):
        Names(sorts=("model",)).read(node("agent/x"))
    with pytest.raises(Misread, match="would cap models, agents and daemon alike: write"):
        Names(star=False).read(node('"*"'))
    with pytest.raises(Misread, match="is a pattern: write one concrete name"):
        Names(patterns=False).read(node("model/*"))


# --- ladders ----------------------------------------------------------------------------------------------------------


def test_ladders() -> None:
    assert Ladder().read(node("stop")) == ("stop",)
    assert Ladder().read(node("[rollback, rollback, needs_human]")) == ("rollback", "rollback", "needs_human")
    for text, message in (
        ("fallbak", 'unknown action "fallbak": did you mean "fallback"?'),
        ("race", "race is not yet possible"),
        ("[]", "0 actions are out of bounds"),
        ("{retry: 3}", "a map is not an action"),
    ):
        with pytest.raises(Misread) as caught:
            Ladder().read(node(text))
        assert message in str(caught.value)
    with pytest.raises(Misread, match="nudge cannot be done here: write one of stop"):
        Ladder(actions=("stop",)).read(node("nudge"))
