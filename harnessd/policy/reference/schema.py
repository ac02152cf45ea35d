"""Schema: JSON Schemas of the policy kinds for editors, made from the readers that check the files."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel

from harnessd.policy import values
from harnessd.policy.assembly.kinds import DAEMON_KINDS, KINDS
from harnessd.policy.conditions import Conditions
from harnessd.policy.language import figures
from harnessd.policy.language.facts import facts_of
from harnessd.policy.language.names import Ladder, Names
from harnessd.policy.reference.explain import HEAD_KEYS, below, reader_inside, reader_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WRITTEN: dict[type, dict[str, Any]] = {
    figures.Count: {"type": ["integer", "string"], "minimum": 0, "pattern": "^(0|[1-9][0-9]*)(k|M)?$"},
    figures.Usd: {"type": "number", "minimum": 0},
    figures.Number: {"type": "number", "minimum": 0},
    figures.Ratio: {"type": ["number", "string"], "minimum": 0, "maximum": 1, "pattern": r"^[0-9]+(\.[0-9]+)?%$"},
    figures.Duration: {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"},
    figures.Size: {"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)$"},
    values.Flag: {"type": "boolean"},
}


def schema(kind: str) -> dict[str, Any]:
    """The schema of one kind's documents."""
    head: dict[str, Any] = {
        name: {"type": "integer" if type_ == "count" else "string", "description": meaning}
        for name, type_, _default, _bounds, meaning in HEAD_KEYS
    }
    head["kind"] = {"const": kind}
    if kind in DAEMON_KINDS:
        head["name"] = {"const": "default"}
    shape = _shape(KINDS[kind].shape, whole=False)
    shape["properties"] = head | shape["properties"]
    shape["required"] = ["kind"]
    return {"$schema": DIALECT, "title": f"harnessd policy: {kind}", **shape}


def any_kind() -> dict[str, Any]:
    """One schema for every policy file: the kind decides."""
    branches = [
        {"if": {"properties": {"kind": {"const": kind}}}, "then": {"$ref": f"#/$defs/{kind}"}} for kind in KINDS
    ]
    definitions = {kind: {key: value for key, value in schema(kind).items() if key != "$schema"} for kind in KINDS}
    return {
        "$schema": DIALECT,
        "title": "harnessd policy",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(KINDS)}},
        "allOf": branches,
        "$defs": definitions,
    }


def _shape(model: type[BaseModel], *, whole: bool) -> dict[str, Any]:
    """A map. Only entries of lists must be whole: anything else may be inherited."""
    properties = {}
    required = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        properties[key] = _annotation(field.annotation, reader_of(field))
        if field.description:
            properties[key]["description"] = field.description
        if whole and field.is_required():
            required.append(key)
    about = (model.__doc__ or "").strip()
    made: dict[str, Any] = {"type": "object", "description": about, "properties": properties}
    made["additionalProperties"] = False
    return made | ({"required": required} if required else {})


def _annotation(annotation: Any, reader: values.Reader | None) -> dict[str, Any]:
    if reader is not None:
        return written(reader)
    inner, suffix = below(annotation)
    if inner is not None:
        made = _shape(inner, whole=suffix == "[]")
        if suffix == "[]":
            return {"type": "array", "items": made}
        return {"type": "object", "additionalProperties": made} if suffix else made
    each = reader_inside(annotation)
    if get_origin(annotation) is dict and each is not None:
        return {"type": "object", "additionalProperties": written(each)}
    for argument in get_args(annotation):
        if get_origin(argument) is dict and each is not None:
            return {"type": "object", "additionalProperties": written(each)}
    return {}


def written(reader: values.Reader) -> dict[str, Any]:
    """The schema of what a reader reads."""
    made = _written(reader)
    return {"anyOf": [made, {"const": "none"}]} if reader.none else made


def _written(reader: values.Reader) -> dict[str, Any]:
    match reader:
        case values.Word():
            return {"enum": list(reader.words)}
        case Ladder():
            step = {"enum": list(reader.actions)}
            return {"anyOf": [step, {"type": "array", "items": step, "minItems": 1}]}
        case Names():
            name: dict[str, Any] = {"type": "string", "description": reader.bounds}
            return name if reader.single else {"anyOf": [name, {"type": "array", "items": name, "minItems": 1}]}
        case Conditions():
            return _conditions(reader)
        case values.ListOf():
            each = written(reader.each)
            return {"anyOf": [each, {"type": "array", "items": each, "maxItems": reader.most}]}
        case values.Secret():
            return _secret(text_too=reader.text_too)
        case values.Text():
            return {"type": "string"} | ({"pattern": f"^{reader.pattern}$"} if reader.pattern else {})
        case _:
            return dict(_WRITTEN.get(type(reader), {"type": "object"}))


def _secret(*, text_too: bool) -> dict[str, Any]:
    sources = [
        {"type": "object", "properties": {key: {"type": "string"}}, "required": [key], "additionalProperties": False}
        for key in ("env", "credential")
    ]
    return {"anyOf": [*sources, *([{"type": "string"}] if text_too else [])]}


def _conditions(reader: Conditions) -> dict[str, Any]:
    """Facts by name; what is tested of each is checked by the daemon."""
    names = facts_of(reader.scope)
    fixed = [name for name in names if "." not in name]
    prefixes = [name.partition(".")[0] for name in names if "." in name]
    clause: dict[str, Any] = {"type": "object", "properties": {name: {} for name in fixed}}
    clause["patternProperties"] = {rf"^{prefix}\..+$": {} for prefix in prefixes}
    clause["additionalProperties"] = False
    return {"anyOf": [clause, {"type": "array", "items": clause, "minItems": 1}]}
