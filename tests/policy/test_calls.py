"""Calls: paths in one spelling, arguments by path."""

from __future__ import annotations

import pytest

from harnessd.policy.calls.seen import argument, plain_path
from harnessd.policy.tools import CallFacts, permission
from tests.policy.written import policy


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("docs/a.md", "docs/a.md"),
        ("./docs//x/../a.md", "docs/a.md"),
        ("/w/ws/docs/a.md", "docs/a.md"),
        ("/w/ws", "."),
        ("/w/wsx/a", "/w/wsx/a"),
        ("../a", "../a"),
        ("a/../../b", "../b"),
        ("/etc/../../x", "/x"),
        ("", "."),
        (".", "."),
    ],
)
def test_paths_have_one_spelling(path: str, plain: str) -> None:
    assert plain_path(path, "/w/ws/") == plain


def test_no_spelling_goes_round_a_deny() -> None:
    own = policy("tools", "kind: tools\npermissions: [{when: {path: 'secrets/*'}, do: deny}]\n")
    for path in ("secrets/x", "./secrets/x", "a/../secrets/x", "secrets//x", "/w/secrets/x"):
        facts = CallFacts("tool/read_file", {"path": path}, workspace="/w", path=path)
        assert permission(own, facts).do == "deny", path
    assert permission(own, CallFacts("tool/read_file", {}, workspace="/w", path="src/x")).do == "allow"


def test_arguments_by_path() -> None:
    arguments = {"a": {"b": [1, {"c": False}]}, "x.y": 3}
    assert argument(arguments, "a.b.1.c") is False
    assert argument(arguments, "a.b.7") is None
    assert argument(arguments, "a.b.c") is None
