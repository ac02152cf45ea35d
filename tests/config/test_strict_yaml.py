"""Strict YAML: positions, and everything that is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harnessd.config.strict_yaml import LARGEST_BYTES, parse
from harnessd.policy.language.source import ListNode, MapNode, Scalar, plain_data


def only(text: str) -> Any:
    parsed = parse(text.encode(), "f.yaml")
    assert not parsed.problems
    assert len(parsed.documents) == 1
    return parsed.documents[0]


def test_words_stay_as_written_with_their_places() -> None:
    # h09, h11
    tree = only('on: yes\nmode: 0600\nat: 1:30\nlist: [no, "no", {deep: .nan}]\n')
    assert plain_data(tree) == {"on": "yes", "mode": "0600", "at": "1:30", "list": ["no", "no", {"deep": ".nan"}]}
    assert isinstance(tree, MapNode)
    assert (tree.keys_at["at"].line, tree.keys_at["at"].column) == (3, 1)
    entries = tree["list"]
    assert isinstance(entries, ListNode)
    assert [entry.plain for entry in entries if isinstance(entry, Scalar)] == [True, False]
    assert (entries[2]["deep"].place.line, entries[2]["deep"].place.column) == (4, 25)


def test_columns_count_characters_not_bytes() -> None:
    tree = only("ключ: {日本: x}\n")
    assert tree["ключ"].keys_at["日本"].column == 8


def test_blocks_and_several_documents() -> None:
    parsed = parse(b"a: |\n  one\n  two\n---\nb: >-\n  three\n  four\n", "f.yaml")
    assert [plain_data(document) for document in parsed.documents] == [{"a": "one\ntwo\n"}, {"b": "three four"}]
    first = parsed.documents[0]
    assert isinstance(first, MapNode)
    assert not first["a"].plain


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: 1\nb: 2\na: 3\n", 'f.yaml:3:1: the key "a" stands twice, first in line 1: keep one of them'),
        (b"a: &x 1\n", "f.yaml:1:4: an anchor (&x): write it out; `extends` is the way to share"),
        (b"a: *x\n", "f.yaml:1:4: an alias (*x): write it out, or quote a name that starts with *"),
        (b"for: *\n", "f.yaml:1:7: not YAML: did not find expected alphabetic or numeric character while scanning an"),
        (b"a:\n  <<: {b: 1}\n", "f.yaml:2:3: a merge key (<<): `extends` is the way to share"),
        (b"a: !!python/object/apply:os.system [id]\n", "f.yaml:1:4: a tag (tag:yaml.org,2002:python/object/apply"),
        (b"a: !secret x\n", "f.yaml:1:4: a tag (!secret): remove it"),
        (b"%YAML 1.1\n---\na: 1\n", "f.yaml:1:1: a directive: remove the line: the meaning is YAML 1.2"),
        (b"a:\tb\n", "f.yaml:1:3: a tab: write spaces"),
        (b"a: b\n\tc: d\n", "f.yaml:2:1: a tab: write spaces"),
        (b"\xef\xbb\xbfa: 1\n", "f.yaml:1:1: the file begins with a byte order mark: save it as UTF-8 without BOM"),
        ("a: 1\n".encode("utf-16"), "f.yaml:1:1: the file is UTF-16: save it as UTF-8"),
        (b"a: 1\nb: caf\xe9\n", "f.yaml:2:7: byte 0xe9 is not UTF-8: save the file as UTF-8"),
        (b"a: x\x00y\n", "f.yaml:1:5: invisible character U+0000: remove it"),
        (b"a: x\x1by\n", "f.yaml:1:5: invisible character U+001B: remove it"),
        ("a: x\u2028y\n".encode(), "f.yaml:1:5: invisible character U+2028: remove it"),
        (b'a: "x\\e[31m"\n', "f.yaml:1:4: the text holds the invisible character U+001B: remove it"),
        (b"# nothing here\n", "f.yaml:1:1: empty: nothing but comments: write a document, or delete the file"),
        (b"", "f.yaml:1:1: empty: nothing but comments"),
        (b"? {a: b}\n: c\n", "f.yaml:1:3: a map or list stands where a key is wanted: write a word"),
        (b"{a}: b\n", "f.yaml:1:1: a map or list stands where a key is wanted"),
        (b"a: [1, 2\n", "f.yaml:2:1: not YAML: did not find expected ',' or ']'"),
        (b'a: "x\n', "f.yaml:"),
        (b"a: b: c\n", "f.yaml:1:5: not YAML: mapping values are not allowed in this context: quote a text that holds"),
        (b"a: " + b"[" * 40, "f.yaml:1:35: deeper than 32 levels: flatten it"),
        (b"a: x" + b" " * LARGEST_BYTES, "f.yaml:1:1: the file is larger than 1 MiB: split it"),
        (b"a: [" + b"1," * 60_000 + b"]", "f.yaml:1:"),
    ],
)
def test_what_is_refused_says_where_and_what_to_do(data: bytes, message: str) -> None:
    # R7.2, h09, h19, G15; security: yaml-bomb-and-tags
    problems = parse(data, "f.yaml").problems
    assert len(problems) == 1
    assert str(problems[0]).startswith(message)


@pytest.mark.parametrize("data", [b"[" * 5000, b"{a: " * 5000, b"- " * 5000, b" " * 100_000_000])
def test_hostile_files_are_refused_at_once(data: bytes) -> None:
    # security/yaml-bomb-and-tags
    # F29
    begun = time.monotonic()
    assert parse(data, "f.yaml").problems
    assert time.monotonic() - begun < 1.0


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
@example(b"\xff")
@example(b"---\n...\n---\n")
def test_any_bytes_give_documents_or_problems_never_a_traceback(data: bytes) -> None:
    # G14
    parsed = parse(data, "f.yaml")
    assert parsed.documents or parsed.problems
    for problem in parsed.problems:
        assert problem.line >= 1
        assert problem.column >= 1
        assert "\n" not in str(problem)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=" \n:-[]{}#&*!|>'\"%@`,?ab1.~<\\", max_size=60))
def test_any_punctuation_gives_documents_or_problems(text: str) -> None:
    parsed = parse(text.encode(), "f.yaml")
    assert parsed.documents or parsed.problems
