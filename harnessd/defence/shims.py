"""Shims of line 1: known, unambiguous repairs of a call's arguments, declared in policy; no meaning is ever guessed.

42 does not become a path. What a shim leaves is checked strictly by the tool itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harnessd.policy.tools import Shim

_DEEPEST = 8  # schemas come from strangers too
_KINDS: Mapping[str, type] = {"array": list, "object": dict}


def mend(
    schema: Mapping[str, Any], arguments: Mapping[str, Any] | None, raw: str | None, shim: Shim
) -> Mapping[str, Any] | None:
    """The arguments as the schema wants them, where a declared shim says how; None where they stay unreadable."""
    if arguments is None:
        arguments = _unwrapped(raw) if "object" in shim.json_string_to else None
        if arguments is None:
            return None
    lifted = _lifted(schema, arguments, shim.unnest)
    parsed = _parsed(schema, lifted, shim.json_string_to, 0)
    return parsed if isinstance(parsed, dict) else lifted


def _unwrapped(raw: str | None) -> dict[str, Any] | None:
    """Arguments that are a JSON object written as a JSON string: encoded once too often."""
    inner = _json(raw or "")
    value = _json(inner) if isinstance(inner, str) else None
    return value if isinstance(value, dict) else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parsed(schema: Any, value: Any, kinds: tuple[str, ...], depth: int) -> Any:
    """The value with each JSON string read where the schema wants an array or object, and nothing else."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return value
    if isinstance(value, str):
        value = _read(schema, value, kinds)
    if isinstance(value, dict):
        known = schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        return {name: _parsed(known.get(name), item, kinds, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_parsed(schema.get("items"), item, kinds, depth + 1) for item in value]
    return value


def _read(schema: Mapping[str, Any], text: str, kinds: tuple[str, ...]) -> Any:
    stated = schema.get("type")
    types = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    if "string" in types:
        return text
    wanted = tuple(_KINDS[kind] for kind in kinds if kind in types)
    value = _json(text) if wanted else None
    return value if wanted and isinstance(value, wanted) else text


def _lifted(schema: Mapping[str, Any], arguments: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Optional fields that the model nests one level too deep, lifted to where the schema has them."""
    result = dict(arguments)
    properties, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(properties, Mapping):
        return result
    for field in fields:
        if field not in properties or field in required:
            continue
        holders = [name for name, item in result.items() if isinstance(item, Mapping) and field in item]
        if len(holders) != 1:
            continue
        (holder,) = holders
        inner = dict(result[holder])
        if holder == field and len(inner) == 1 and field not in _properties(properties[field]):
            result[field] = inner[field]
        elif field not in result and field not in _properties(properties.get(holder)):
            result[field] = inner.pop(field)
            result[holder] = inner
            if not inner and holder not in properties:
                del result[holder]
    return result


def _properties(schema: Any) -> Mapping[str, Any]:
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    return known if isinstance(known, Mapping) else {}
