"""Policies as an operator would write them, read by the real loader."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from harnessd.config.files import Snapshot, SourceFile
from harnessd.config.load import judge_snapshot
from harnessd.config.settings import Settings
from harnessd.config.strict_yaml import parse
from harnessd.policy import PolicySet
from harnessd.policy.language.shape import Policy, read_shape
from harnessd.policy.language.source import MapNode

HARNESS = """
models:
  primary: {protocol: anthropic, base_url: "http://127.0.0.1:1", model: m, window: 200k, max_output: 8k}
  second: {protocol: openai-chat, base_url: "http://127.0.0.1:1", model: m, window: 100k, prices: free}
  local: {protocol: openai-chat, base_url: "http://127.0.0.1:1", model: m, window: 32k, prices: {input: 1, output: 2}}
agents:
  builder: {model: primary}
  crawler: {model: second}
  nightly: {model: primary}
tools:
  web_search: {command: ["/bin/true"], about: Searches.}
  local_kb: {command: ["/bin/true"], about: Knows.}
features:
  full: {agent: builder, tools: [bash]}
  basic: {agent: builder, tools: [read_file]}
"""


@lru_cache
def harness(text: str = HARNESS) -> Settings:
    """The settings of a harness.yaml that is known to be good."""
    parsed = parse(text.encode(), "harness.yaml")
    assert not parsed.problems
    settings, problems = read_shape(Settings, cast("MapNode", parsed.documents[0]))
    assert settings is not None, problems
    return settings


def read(*files: str, settings: Settings | None = None) -> tuple[PolicySet | None, list[str], list[str]]:
    """The set, the problems and the warnings of policy files a.yaml, b.yaml, ..."""
    sources = tuple(SourceFile(f"{chr(97 + n)}.yaml", text.encode()) for n, text in enumerate(files))
    judged = judge_snapshot(Snapshot(sources), settings or harness())
    return judged.policies, [str(p) for p in judged.problems], [str(w) for w in judged.warnings]


def policies(*files: str) -> PolicySet:
    """A set that must be valid, as revision 7."""
    made, problems, _ = read(*files)
    assert made is not None, problems
    return made.at(7)


def problems(*files: str) -> list[str]:
    """What is wrong with files that must not be valid."""
    made, found, _ = read(*files)
    assert made is None
    return found


def policy(kind: str, *files: str, name: str = "default") -> Policy[Any]:
    """One policy of a valid set."""
    found = policies(*files).get(kind, name)
    assert found is not None
    return found


def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parents[2]
