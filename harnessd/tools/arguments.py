"""Arguments: does a call fit its tool's JSON Schema, and if not, which value is wrong where.

jsonschema-rs, since a schema may come from a stranger: its patterns run in bounded time, and with a retriever that
always refuses no reference is ever fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema_rs

from harnessd.domain.messages import ToolSpec
from harnessd.tools.answers import clip, well_formed

PROBLEMS_MAX = 10
SHOWN_MAX = 80

_validators: dict[str, jsonschema_rs.Validator] = {}


def validate(spec: ToolSpec, arguments: Any) -> list[str]:
    """What does not fit, as `path: expected string, got number 42`; empty if all fits."""
    return misfits(spec.schema, arguments, "arguments")


def misfits(schema: Mapping[str, Any], value: Any, root: str = "the answer") -> list[str]:
    """What of any JSON value does not fit a schema, in the same words; `root` names the value as a whole."""
    errors = _validator(schema).iter_errors(value)
    return [_sentence(error, root) for error, _ in zip(errors, range(PROBLEMS_MAX), strict=False)]


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why a schema cannot be used, in one line, or None. A remote reference is such a reason."""
    try:
        _compile(schema)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return str(error).strip().splitlines()[0]
    return None


def cleaned(value: Any) -> Any:
    """The same JSON value with lone surrogates (half of a pair, from a cut or careless escape) as U+FFFD."""
    match value:
        case str():
            return value if value.isascii() else "\0".join(map(well_formed, value.split("\0")))
        case dict():
            return {cleaned(key): cleaned(item) for key, item in value.items()}
        case list():
            return [cleaned(item) for item in value]
        case _:
            return value


def without_time(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without `timeout_s`: asked for again with more time, an act is the same act."""
    return {name: value for name, value in arguments.items() if name != "timeout_s"}


def _validator(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    key = json.dumps(schema, sort_keys=True)
    if key not in _validators:
        _validators[key] = _compile(schema)
    return _validators[key]


def _compile(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        dict(schema),
        retriever=_refuse,
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000),
    )


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"the reference {uri} leads outside the schema and is not fetched")


def _sentence(error: jsonschema_rs.ValidationError, root: str) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path).lstrip(".")
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type):
        said = f"expected {_types(kind.types)}, got {_shown(error.instance)}"
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        said, where = "missing", ".".join(filter(None, (where, str(kind.property))))
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        said = f"unknown: {', '.join(map(str, kind.unexpected))}"
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.Enum):
        said = f"expected one of {json.dumps(kind.options, ensure_ascii=False)}, got {_shown(error.instance)}"
    else:
        said = clip(error.message, 400)
    return f"{where or root}: {said}"


def _types(types: Any) -> str:
    """`null` last, as people say it."""
    return " or ".join(sorted(map(str, types), key="null".__eq__))


def _shown(value: Any) -> str:
    """`number 42`, `array [1, 2]`: a value's JSON type and the value, shortened."""
    if value is None:
        return "null"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{_type_of(value)} {text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + '...'}"


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
