"""What a model is charged by: its own price, a listed one, the dearest; never nothing for what nobody knows (R3.9)."""

from __future__ import annotations

from typing import Any

import pytest

from harnessd.config.pricing.charge import Charge, charges
from harnessd.config.pricing.listed import listed
from harnessd.config.settings import ModelSettings, Prices
from harnessd.domain.messages import Usage
from harnessd.runtime.gateway import Prices as Charged
from tests.config.conftest import HARNESS, Site

OWN = "http://127.0.0.1:1"


def model(name: str = "vendor/new-model", url: str = OWN, window: int = 200_000, **prices: float) -> ModelSettings:
    given: dict[str, Any] = {"cache_read": None, "cache_write": None, **prices}
    price = Prices.model_construct(None, **given) if prices else None
    return ModelSettings.model_construct(
        protocol="openai-chat", base_url=url, model=name, window=window, max_output=1_000, prices=price
    )


def charged(charge: Charge, **usage: int) -> float:
    return Charged(charge.input, charge.output, charge.cache_read, charge.cache_write).cost_usd(Usage(**usage))


def test_an_unknown_price_counts_as_the_dearest_declared_one() -> None:  # i14, R3.9
    found = charges({"a": model(input=3, output=15), "b": model(input=5, output=10), "new": model()})
    assert (found["new"].source, found["new"].input, found["new"].output) == ("dearest", 5, 15)
    # The provider's own `cost: 0` is nobody's word: 100,000 tokens in and 5,000 out are charged.
    assert charged(found["new"], input_tokens=100_000, output_tokens=5_000) == pytest.approx(0.575)


@pytest.mark.parametrize("declared", [{}, {"local": model(input=0, output=0)}])
def test_where_no_price_could_stand_in_nothing_is_made_up(declared: dict[str, Any]) -> None:  # i14
    found = charges({**declared, "new": model()})
    assert found["new"] == Charge("unknown")
    assert not found["new"].known


def test_free_is_free_and_needs_no_stand_in() -> None:  # i14
    found = charges({"local": model(input=0, output=0), "dear": model(input=15, output=75)})
    assert found["local"].known
    assert charged(found["local"], input_tokens=10_000, output_tokens=10_000) == 0


def test_cached_tokens_of_an_unknown_price_are_not_cheap() -> None:  # R3.9
    found = charges({"a": model(input=3, output=15, cache_read=0.3, cache_write=3.75), "new": model()})
    assert charged(found["new"], cache_read_tokens=1_000_000) == 3
    assert charged(found["new"], cache_write_tokens=1_000_000) == 3.75


def test_the_cache_left_out_of_the_input_is_charged_beside_it() -> None:  # i04
    found = charges({"a": model(input=3, output=15, cache_read=0.3, cache_write=3.75)})["a"]
    usage = {"input_tokens": 100, "cache_read_tokens": 20_000, "cache_write_tokens": 700, "output_tokens": 50}
    assert charged(found, **usage) == pytest.approx(0.009675)
    assert Usage(**usage).total - usage["output_tokens"] == 20_800, "what the context's size is measured by"


# --- the extra `prices` -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "url", "by"),
    [
        ("claude-opus-4-5", "https://api.anthropic.com", "anthropic/claude-opus-4-5"),
        ("claude-opus-4-5-20251101", "https://api.anthropic.com/v1", "anthropic/claude-opus-4-5"),
        ("gpt-5", "https://api.openai.com/v1", "openai/gpt-5"),
        ("gpt-5", "https://proxy.example/v1", "openai/gpt-5"),
    ],
)
def test_a_model_on_the_list_has_its_listed_price(name: str, url: str, by: str) -> None:  # R3.9
    found = charges({"a": model(name, url), "dear": model(input=500, output=500)})["a"]
    assert (found.source, found.known) == ("listed", True)
    assert found.by.endswith(by)
    assert 0 < (found.input or 0) < (found.output or 0) < 500


def test_what_harness_yaml_says_goes_before_the_list() -> None:  # R3.9
    found = charges({"a": model("gpt-5", "https://api.openai.com/v1", input=1, output=2)})["a"]
    assert (found.source, found.output) == ("own", 2)


@pytest.mark.parametrize("name", ["vendor/new-model", "", "gpt-5-of-mine-that-is-not-there" * 20, "m"])
def test_what_is_on_no_list_is_not_guessed(name: str) -> None:  # i14
    assert listed(name, OWN, 200_000) is None


def test_a_price_that_rises_with_the_request_counts_as_far_as_the_window_goes() -> None:  # R3.9
    short = listed("claude-sonnet-4-5", "https://api.anthropic.com", 200_000)
    long = listed("claude-sonnet-4-5", "https://api.anthropic.com", 1_000_000)
    assert short is not None
    assert long is not None
    assert long.input > short.input
    assert long.output > short.output


def test_a_listed_price_needs_no_word_in_harness_yaml(site: Site) -> None:  # R3.9
    listed_one = HARNESS.replace(", prices: free", "").replace("model: m,", "model: claude-opus-4-5,")
    site.config.write_text(listed_one)
    loaded = site.load()
    assert loaded.warnings == ()
    assert loaded.settings.known.prices["primary"] == listed("claude-opus-4-5", OWN, 200_000).output  # type: ignore[union-attr]
