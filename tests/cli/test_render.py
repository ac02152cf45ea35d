"""Safe text and alignment: nothing that is stored can drive a terminal, whatever its letters."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessd.cli import render

# j07: clipboard, screen, title, C1 introducer, bidi override, carriage return, cursor up
HOSTILE = "\x1b]52;c;ZWNobyBoaQ==\x07\x1b[2J\x1b]0;pwned\x07\x9b31m \u202edesrever\r\x1b[1Ahidden\u2066\u2028\x7f"
anything = st.text(st.characters(codec=None, exclude_categories=()))


def drives_a_terminal(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(letter) in (
        *("LRE", "RLE", "LRO", "RLO", "PDF"),
        *("LRI", "RLI", "FSI", "PDI"),
    )


@settings(deadline=None)
@given(anything | st.just(HOSTILE))
def test_no_control_character_gets_through(text: str) -> None:
    # S9
    assert not [letter for letter in render.visible(text) if drives_a_terminal(letter) and letter not in "\t\n"]
    assert not [letter for letter in render.one_line(text) if drives_a_terminal(letter)]


def test_escapes_are_visible() -> None:
    assert render.visible("\x1b[2J") == "\\x1b[2J"
    assert render.visible("\x9b31m") == "\\x9b31m"
    assert render.visible("\u202edesrever") == "\\u202edesrever"
    assert render.one_line("a\r\nb\tc") == "a\\r\\nb\\tc"
    assert render.visible("plain, Ünïcödé, 日本語, 👍") == "plain, Ünïcödé, 日本語, 👍"


@settings(deadline=None)
@given(anything | st.just(HOSTILE))
def test_json_is_true_and_safe(text: str) -> None:
    # j07: the true letters, escaped by JSON; j11: lone surrogates too
    for line in (True, False):
        shown = render.to_json({"text": text, text: [text]}, line=line)
        assert json.loads(shown) == {"text": text, text: [text]}
        assert not [letter for letter in shown if drives_a_terminal(letter) and letter != "\n"]
        shown.encode("utf-8")


@settings(deadline=None)
@given(st.lists(st.lists(anything, min_size=3, max_size=3), min_size=1, max_size=4))
def test_columns_line_up(rows: list[list[str]]) -> None:
    lines = render.table(rows, ["FIRST", "SECOND", "THIRD"])
    assert len(lines) == len(rows) + 1
    first = max(render.width(render.one_line(row[0])) for row in [*rows, ["FIRST"]])
    for row, line in zip(rows, lines[1:], strict=True):
        head = render.pad(render.one_line(row[0]), first)
        assert line.startswith(head.rstrip())


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("👍", 2), ("ａ", 2), ("", 0), ("Ü", 1)]
)
def test_width_is_the_terminals(text: str, columns: int) -> None:
    assert render.width(text) == columns
    assert render.width(render.pad(text, 10)) == 10


def test_a_cut_never_splits_a_wide_letter() -> None:
    assert render.cut("日本語", 6) == "日本語"
    assert render.cut("日本語", 5) == "日本…"
    assert render.cut("日本語", 4) == "日…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.44, "0.4s"), (12, "12s"), (1717, "28m37s"), (7200, "2h"), (6060, "1h41m"), (525_600, "6d 2h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(66, "66"), (690_000, "690k"), (1_310_000, "1.31M"), (2e6, "2M")])
def test_counts(number: float, text: str) -> None:
    assert render.count(number) == text


def test_a_poor_terminal_gets_question_marks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    render.write(stream, "日本 Ü\n")
    assert raw.getvalue() == "?? Ü\n".encode("latin-1")


def test_commands_can_be_pasted() -> None:
    assert render.command(["harnessctl", "resume", "8k2q9x"]) == "harnessctl resume 8k2q9x"
    assert render.command(["harnessctl", "send", "8k", "it's; rm -rf"]) == "harnessctl send 8k 'it'\"'\"'s; rm -rf'"


def test_a_place_has_a_line_only_where_there_is_one() -> None:
    rule = {"file": "policies/budget.yaml", "line": 3, "revision": 6}
    assert render.place(rule) == "policies/budget.yaml:3  r6"
    assert render.place({**rule, "file": "--budget tool_calls", "line": 0}) == "--budget tool_calls  r6"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0B"), (412, "412B"), (1536, "1.5KiB"), (300 * 1024, "300KiB"), (1.2 * 2**30, "1.2GiB"), (2**41, "2.0TiB")],
)
def test_sizes(number: float, text: str) -> None:
    assert render.size(number) == text
