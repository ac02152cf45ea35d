"""Settings check: what must hold between the keys of harness.yaml, and the names inside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

import jsonschema_rs

from harnessd.config.settings import AgentOutput, Settings, ToolSettings
from harnessd.policy.assembly.kinds import TASK_KINDS
from harnessd.policy.assembly.references import BUILTIN_TOOLS
from harnessd.policy.language.source import MapNode, Place, Problem, did_you_mean, find, place_of

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # what every model service accepts as a tool's name

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")  # an argument's place in a command tool's line


def settings_problems(settings: Settings, tree: MapNode) -> Iterator[Problem]:
    """Every relation and every name inside harness.yaml."""
    yield from _names(settings, tree)
    yield from _models(settings, tree)
    yield from _agents(settings, tree)
    yield from _features(settings, tree)
    lease = settings.store.lease
    if lease.heartbeat * 3 > lease.ttl:  # two beats may be late or lost before the lease is
        place = _at(tree, "store", "lease")
        yield Problem.at(place, "heartbeat is more than a third of ttl", "write a ttl of at least three heartbeats")
    if settings.default_agent is not None and settings.default_agent not in settings.agents:
        remedy = did_you_mean(settings.default_agent, settings.agents)
        yield Problem.at(_at(tree, "default_agent"), f'no agent "{settings.default_agent}"', remedy)


def _names(settings: Settings, tree: MapNode) -> Iterator[Problem]:
    for section in ("models", "agents", "features"):
        for name in getattr(settings, section):
            if not _ALIAS.fullmatch(name):
                remedy = "write letters, digits, dots, dashes, underscores; at most 63"
                yield Problem.at(_key(tree, section, name), f'"{name}" is not a name', remedy)
    for name in settings.tools:
        if not _TOOL.fullmatch(name):
            remedy = "write letters, digits, dashes, underscores; at most 64"
            yield Problem.at(_key(tree, "tools", name), f'"{name}" is not a name of a tool', remedy)
        if name in BUILTIN_TOOLS:
            yield Problem.at(_key(tree, "tools", name), f'"{name}" is a built-in tool', "choose another name")
        yield from _command(settings.tools[name], tree, name)
    for section in ("models", "agents"):
        if not getattr(settings, section):
            yield Problem.at(_key(tree, "", section), f"no {section} are declared", f"declare one under {section}:")


def _command(tool: ToolSettings, tree: MapNode, name: str) -> Iterator[Problem]:
    """A command's places must be arguments of its schema, and the schema must be one."""
    try:
        jsonschema_rs.validator_for(tool.schema_, retriever=_no_reference)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        place = _at(tree, "tools", name, "schema")
        yield Problem.at(place, f"not a JSON Schema: {str(error).splitlines()[0]}", "write a schema of type object")
        return
    if tool.schema_.get("type") != "object":
        remedy = "write type: object, with the arguments as properties"
        yield Problem.at(_at(tree, "tools", name, "schema"), "the schema of a tool is of an object", remedy)
    if _PLACE.search(tool.command[0].replace("{{", "").replace("}}", "")):
        remedy = "write the program out; a call fills its arguments"
        yield Problem.at(_at(tree, "tools", name, "command", 0), "the program is chosen by the call", remedy)
    properties = tuple(tool.schema_.get("properties", {}))
    for index, part in enumerate(tool.command):
        for wanted in _PLACE.findall(part.replace("{{", "").replace("}}", "")):
            if wanted not in properties:
                place = _at(tree, "tools", name, "command", index)
                yield Problem.at(place, f'no argument "{wanted}" in the schema', did_you_mean(wanted, properties))


def _no_reference(uri: str) -> NoReturn:
    raise ValueError(f"the reference {uri} leads outside the schema and is not fetched")


def _models(settings: Settings, tree: MapNode) -> Iterator[Problem]:
    for name, model in settings.models.items():
        if model.max_output >= model.window:
            place = _at(tree, "models", name, "max_output")
            message = f"max_output {model.max_output} leaves nothing of the window {model.window}"
            yield Problem.at(place, message, "write less than the window")


def _agents(settings: Settings, tree: MapNode) -> Iterator[Problem]:
    for name, agent in settings.agents.items():
        if agent.model not in settings.models:
            remedy = did_you_mean(agent.model, settings.models)
            yield Problem.at(_at(tree, "agents", name, "model"), f'no model "{agent.model}"', remedy)
        elif agent.tools and not settings.models[agent.model].tools:
            message = f"model {agent.model} cannot call tools, and the agent has some"
            yield Problem.at(_at(tree, "agents", name, "model"), message, "write tools: [], or choose another model")
        yield from _own_feature(settings, tree, name)
        yield from _output(settings.agents[name].output, tree, name)
        yield from _tools(settings, tree, ("agents", name), agent.tools)
        for kind in agent.policies:
            place = _key(tree, "agents", name, "policies", kind)
            if kind not in TASK_KINDS:
                yield Problem.at(place, f'"{kind}" is no kind of a task', did_you_mean(kind, TASK_KINDS))
        for key in agent.env.set:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                place = _key(tree, "agents", name, "env", "set", key)
                yield Problem.at(place, f'"{key}" is not a name of a variable', "write letters, digits, underscores")


def _own_feature(settings: Settings, tree: MapNode, name: str) -> Iterator[Problem]:
    """The feature that an agent's tasks begin with is there, and is its own."""
    wanted = settings.agents[name].feature
    if wanted is None:
        return
    place = _at(tree, "agents", name, "feature")
    feature = settings.features.get(wanted)
    if feature is None:
        yield Problem.at(place, f'no feature "{wanted}"', did_you_mean(wanted, settings.features))
    elif feature.agent != name:
        yield Problem.at(place, f"feature {wanted} belongs to agent {feature.agent}", "choose one of this agent")


def _output(output: AgentOutput | None, tree: MapNode, name: str) -> Iterator[Problem]:
    """The wanted form is a JSON Schema, and the safe answer has that form."""
    if output is None:
        return
    try:
        form = jsonschema_rs.validator_for(output.schema_, retriever=_no_reference)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        place = _at(tree, "agents", name, "output", "schema")
        yield Problem.at(place, f"not a JSON Schema: {str(error).splitlines()[0]}", "write the schema of the answer")
        return
    wrong = None if output.safe is None else next(form.iter_errors(output.safe), None)
    if wrong is not None:
        at = ".".join(str(part) for part in wrong.instance_path)
        message = f"the safe answer does not fit the schema: {f'{at}: ' if at else ''}{wrong.message}"
        yield Problem.at(_at(tree, "agents", name, "output", "safe"), message, "write one that fits")


def _features(settings: Settings, tree: MapNode) -> Iterator[Problem]:
    for name, feature in settings.features.items():
        if feature.agent not in settings.agents:
            remedy = did_you_mean(feature.agent, settings.agents)
            yield Problem.at(_at(tree, "features", name, "agent"), f'no agent "{feature.agent}"', remedy)
        yield from _tools(settings, tree, ("features", name), feature.tools)


def _tools(settings: Settings, tree: MapNode, path: tuple[str, str], tools: tuple[str, ...]) -> Iterator[Problem]:
    known = (*BUILTIN_TOOLS, *settings.tools)
    for index, tool in enumerate(tools):
        if tool not in known:
            place = _at(tree, *path, "tools", index)
            yield Problem.at(place, f'no tool "{tool}"', did_you_mean(tool, known))


def _at(tree: MapNode, *path: str | int) -> Place:
    for length in range(len(path), -1, -1):
        node = find(tree, path[:length])
        if node is not None:
            return place_of(node)
    return tree.place


def _key(tree: MapNode, *path: str) -> Place:
    steps = [step for step in path if step]
    parent = find(tree, steps[:-1])
    return parent.keys_at.get(steps[-1], parent.place) if isinstance(parent, MapNode) else tree.place
