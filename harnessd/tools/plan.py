"""Plan: the `task_list` tool: the agent's own plan, durable with the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import ToolContext, ToolOutcome
from harnessd.tools.answers import clip

ITEMS_MAX = 100
TEXT_MAX = 500
MARKS = {"todo": "[ ]", "doing": "[>]", "done": "[x]"}


class TaskList:
    """Tool `task_list`: each call replaces the whole plan, so that a repeat changes nothing."""

    effect = EffectClass.IDEMPOTENT
    spec = ToolSpec(
        "task_list",
        "Write down your plan, whole, each time it changes: all steps in order, each todo, doing or done. It is kept "
        "when the conversation is summarised or the task is resumed, and people see it as your progress.",
        {
            "type": "object",
            "properties": {
                "items": {
                    "type": "array",
                    "maxItems": ITEMS_MAX,
                    "items": {
                        "type": "object",
                        "properties": {
                            "text": {"type": "string", "minLength": 1, "maxLength": TEXT_MAX},
                            "state": {"enum": list(MARKS)},
                        },
                        "required": ["text", "state"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["items"],
            "additionalProperties": False,
        },
    )

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        items = [{"text": item["text"], "state": item["state"]} for item in arguments["items"]]
        done = sum(item["state"] == "done" for item in items)
        lines = [f"{MARKS[item['state']]} {item['text']}" for item in items]
        text = "\n".join([f"{done} of {len(items)} done.", *lines])
        return ToolOutcome(clip(text, context.limits.output_max), note=items, facts={"done": done, "items": len(items)})
