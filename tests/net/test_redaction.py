"""Secrets leave no trace in words, headers or JSON."""

from __future__ import annotations

import pytest

from harnessd.net import Redactor, origin_of, secrets_of_url

KEY = "canary/key+with=odd&signs"


def test_a_secret_is_masked_plain_and_quoted() -> None:
    redactor = Redactor([KEY])
    said = redactor.text(f"GET /?key=canary%2Fkey%2Bwith%3Dodd%26signs and {KEY}.")
    assert "canary" not in said
    assert said.count("[redacted]") == 2


def test_a_secret_inside_another_leaves_no_tail() -> None:
    assert Redactor(["abcdefgh", "abcdefghijkl"]).text("abcdefghijkl abcdefgh") == "[redacted] [redacted]"


def test_short_dummies_of_local_servers_do_not_spoil_sentences() -> None:
    assert Redactor(["none", "", "EMPTY"]).text("none of the models is EMPTY") == "none of the models is EMPTY"


@pytest.mark.parametrize(
    "words",
    [
        "Authorization: Bearer abcdefgh12345678",
        "Incorrect API key provided: sk-proj-abcdefghijkl0123",
        "gsk-0123456789abcdef",
    ],
)
def test_what_is_shaped_like_a_key_is_masked_even_if_unknown(words: str) -> None:
    assert "[redacted]" in Redactor([]).text(words)


def test_secrets_of_an_address() -> None:
    url = "https://user%40x:pass%2Fword@host.example/v1?api-version=2024-06-01&key=AIzaXXXX&sig=s%2Bg"
    assert secrets_of_url(url) == ("user@x", "pass/word", "AIzaXXXX", "s+g")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://API.example.com/v1", "https://api.example.com:443"),
        ("http://[::1]:8080/v1?key=x", "http://[::1]:8080"),
        ("http://user:pw@host/", "http://host:80"),
    ],
)
def test_the_origin_of_an_address(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["", "host/v1", "ftp://host", "http://", "http://host:port/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        origin_of(url)
