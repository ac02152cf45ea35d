"""Call facts: what policy may ask of a tool call, what it says of its effect and limits, and which shims mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.defence import shims
from harnessd.domain.effect import EffectClass
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.ports import ToolLimits
from harnessd.engine.protocol import ToolFacts
from harnessd.engine.situation import PendingCall, Situation
from harnessd.policy import tools as tools_policy


def settings_of(s: Situation, call: PendingCall) -> tools_policy.ToolSettings:
    """What policy says of this call: its effect class and its limits."""
    return tools_policy.settings(s.rules.tools, facts_of(s, call, None))


def limits_of(settings: tools_policy.ToolSettings) -> ToolLimits:
    """What policy allows one call."""
    return ToolLimits(
        timeout_s=settings.timeout_s,
        timeout_max_s=settings.timeout_max_s,
        on_timeout=settings.on_timeout,
        life_s=settings.life_s,
        output_max=settings.output_max,
        silence_s=settings.silence_s,
    )


def facts_of(s: Situation, call: PendingCall, effect: EffectClass | None) -> tools_policy.CallFacts:
    """What is known of a call before it is made."""
    tool = tool_of(s, call)
    arguments = call.use.arguments or {}
    path = arguments.get("path")
    return tools_policy.CallFacts(
        agent=s.brief.acting or s.brief.agent,
        workspace=s.brief.workspace,
        labels=s.brief.labels,
        priority=s.brief.priority,
        model=f"model/{s.counters.link or s.brief.model.alias}",
        tool=call.name,
        arguments=arguments,
        path=path if isinstance(path, str) else None,
        effect=effect,
        declared=tool.declared if tool else EffectClass.IRREVERSIBLE,
    )


def tool_of(s: Situation, call: PendingCall) -> ToolFacts | None:
    """The tool that is to do it, or None where the agent has no such tool."""
    return next((tool for tool in s.brief.tools if tool.spec.name == call.tool), None)


def mended(s: Situation, uses: Sequence[ToolUseBlock], alias: str) -> dict[str, Mapping[str, Any]]:
    """Arguments that a shim changes, by place in the reply; they are kept beside the model's own words."""
    changed: dict[str, Mapping[str, Any]] = {}
    for place, use in enumerate(uses):
        call = PendingCall(use, place)
        tool = tool_of(s, call)
        if tool is None:
            continue
        shim = tools_policy.shim(s.rules.tools, facts_of(s, call, None), f"model/{alias}")
        arguments = shims.mend(tool.spec.schema, use.arguments, use.raw, shim)
        if arguments is not None and arguments != use.arguments:
            changed[str(place)] = arguments
    return changed
