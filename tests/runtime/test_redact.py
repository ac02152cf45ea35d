"""Redaction by value: a known secret is struck out in each form in which it may leave, and nothing else is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from harnessd.runtime.redact import Redactor

KEY = "sk-test-4711+CANARY/abcdef=="


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz", "Authorization: Bearer "])
@pytest.mark.parametrize("after", ["", "!", "\n", " and more"])
def test_every_form_is_struck_out(before: str, after: str) -> None:
    # Security: a base64 of a whole file holds the key in one of three shapes, by where it begins.
    redactor = Redactor([KEY])
    whole = f"{before}{KEY}{after}".encode()
    for text in (
        whole.decode(),
        quote(whole),
        base64.b64encode(whole).decode(),
        base64.urlsafe_b64encode(whole).decode(),
    ):
        struck = redactor.text(f"a {text} b")
        assert "[secret]" in struck
        assert len(struck) < len("a [secret] b") + 2 * len(before + after) + 8, struck


@pytest.mark.parametrize("word", ["ollama", "lm-studio", "EMPTY", "none", "", "no-key"])
def test_a_word_that_stands_for_a_key_is_no_secret(word: str) -> None:
    redactor = Redactor([word])
    assert redactor.text(f"Start {word} first.") == f"Start {word} first."


def test_a_secret_that_holds_another_leaves_no_tail() -> None:
    redactor = Redactor(["abcd1234", "abcd1234efgh5678"])
    assert redactor.text("abcd1234efgh5678 abcd1234") == "[secret] [secret]"


def test_values_keep_their_shape() -> None:
    redactor = Redactor([KEY])
    assert redactor.value({"a": [KEY, 1, None], "b": (f"x{KEY}",)}) == {"a": ["[secret]", 1, None], "b": ["x[secret]"]}
    assert json.dumps(redactor.value({"k": KEY}))


def test_what_was_learnt_is_given_back() -> None:
    assert Redactor().learn(KEY) == KEY
    assert Redactor().learn(None) is None


def test_a_file_loses_its_secrets_in_place_and_keeps_its_length(tmp_path: Path) -> None:
    """What stands behind a secret keeps its offset, and one that comes in two pieces is found as well."""
    redactor = Redactor([KEY])
    output = tmp_path / "e7.out"
    long = b"x" * (2**20 - 10)  # the secret lies across the border of two reads
    whole = b"a " + KEY.encode() + b" b\n" + long + KEY.encode() + b"\nend " + base64.b64encode(KEY.encode() * 3)
    output.write_bytes(whole[:-40])
    redactor.file(output)
    with output.open("ab") as more:
        more.write(whole[-40:])
    redactor.file(output)
    struck = output.read_bytes()
    assert len(struck) == len(whole)
    assert KEY.encode() not in struck
    assert struck.startswith(b"a [secret]*")
    assert struck[2 + len(KEY) : 2 + len(KEY) + 3] == b" b\n"
    assert struck.index(b"\nend ") == whole.index(b"\nend ")
    assert base64.b64encode(KEY.encode() * 3)[:28] not in struck


def test_a_secret_that_was_learned_later_is_struck_out_of_what_was_looked_at(tmp_path: Path) -> None:
    redactor = Redactor(["another-secret-4711"])
    output = tmp_path / "e7.out"
    output.write_text(f"{KEY} " * 1000)
    redactor.file(output)
    redactor.learn(KEY)
    redactor.file(output)
    assert KEY not in output.read_text()


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_a_file_that_cannot_be_read_is_left(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    Redactor([KEY]).file(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
