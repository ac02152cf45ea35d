"""References: names that policies use and harness.yaml must know, found anywhere in a shape and resolved once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from harnessd.policy.conditions import AnyOf, When
from harnessd.policy.language.names import Name
from harnessd.policy.language.source import ListNode, MapNode, Place, Problem, did_you_mean

BUILTIN_TOOLS = (
    "bash",
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "job_output",
    "job_stop",
    "task_list",
    "http_request",
)


@dataclass(frozen=True, slots=True)
class Known:
    """What harness.yaml declares.

    `prices`: model -> USD per million tokens of output that it is charged by; None: unknown, and no price is there that
    could stand in. `feature_agents`: feature -> the agent it belongs to. `there` is False where no
    harness.yaml was read at all.
    """

    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tools: tuple[str, ...] = BUILTIN_TOOLS
    features: tuple[str, ...] = ()
    feature_agents: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    prices: Mapping[str, float | None] = field(default_factory=dict)
    agent_policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    there: bool = True


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of a full name."""

    text: str
    place: Place


def references(value: Any) -> Iterator[Reference]:
    """Every concrete name below a shape: in `for`, in chains, in conditions on agent, model and tool."""
    if isinstance(value, Name):
        if value.exact and value.place.line:
            yield Reference(value.text, value.place)
    elif isinstance(value, When):
        yield from _in_conditions(value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from references(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from references(item)


def keyed_references(tree: MapNode) -> Iterator[Reference]:
    """Full names that stand as keys: the homes of chains, the tools of a shim."""
    maps = [tree.get("chains")]
    shims = tree.get("shims")
    if isinstance(shims, ListNode):
        maps += [entry.get("unnest") for entry in shims if isinstance(entry, MapNode)]
    for node in maps:
        if not isinstance(node, MapNode):
            continue
        for name in node:
            if "/" in name and "*" not in name:
                yield Reference(name, node.keys_at[name])


def _in_conditions(when: When) -> Iterator[Reference]:
    for clause in when.clauses:
        for asked in clause:
            if asked.name not in ("agent", "model", "tool", "dependency") or not isinstance(asked.test, AnyOf):
                continue
            for wanted in asked.test.values:
                if not set(wanted.text) & set("*?"):
                    text = f"agent/{wanted.text}" if asked.name == "agent" else wanted.text
                    yield Reference(text, wanted.place)


def unresolved(reference: Reference, known: Known) -> Problem | None:
    """The problem of a name that harness.yaml does not know, or None."""
    sort, _, rest = reference.text.partition("/")
    if sort == "tool" and rest in known.tools:
        return None  # the built-in ones are there whatever harness.yaml says
    if not known.there and sort not in ("label", "daemon"):
        message = f"{reference.text} cannot be looked up without a harness.yaml"
        return Problem.at(reference.place, message, "name it: --config FILE")
    groups = {"model": known.models, "agent": known.agents, "tool": known.tools, "feature": known.features}
    if sort in ("label", "daemon"):
        return None
    if sort == "mcp":
        server = rest.partition("/")[0]
        if server in known.servers:
            return None
        near = did_you_mean(server, known.servers) or "MCP servers are not yet possible; a name with * is allowed"
        return Problem.at(reference.place, f'no MCP server "{server}" in harness.yaml', near)
    names = groups.get(sort)
    if names is None:
        return Problem.at(
            reference.place, f"{reference.text} is not a full name", "write it as model/ALIAS or tool/NAME"
        )
    if rest in names:
        return None
    remedy = did_you_mean(rest, names).replace('did you mean "', f"did you mean {sort}/").replace('"?', "?")
    remedy = remedy or f"declare it under {sort}s: in harness.yaml"
    return Problem.at(reference.place, f'no {sort} "{rest}" in harness.yaml', remedy)
