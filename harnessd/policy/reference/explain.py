"""Explain: every key of every kind with type, default, bounds and meaning, read from the shapes that check it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harnessd.policy.assembly.kinds import KINDS
from harnessd.policy.language.names import Ladder
from harnessd.policy.language.shape import Entry, Policy
from harnessd.policy.language.source import ListNode, MapNode, Scalar, did_you_mean, find
from harnessd.policy.values import Reader

_AS_NEAR = 3  # keys that a wrong path may mean as well as each other
HEAD_KEYS = (
    ("kind", "word", "required", " ".join(KINDS), "Which kind of policy this document is."),
    ("name", "text", "default", "[a-z][a-z0-9_-]{0,62}", "Unique in its kind; daemon kinds only have `default`."),
    ("extends", "text", "builtin for `default`, else `default`", "builtin or a name", "What the document lies over."),
    ("version", "count", "1", "at least 1", "Of the language; a higher one needs a newer harnessd."),
    ("note", "text", "none", "to 500 characters", "The reason or the ticket; shown by why, show and diff."),
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `path` is dotted, a list's entries by `[]`, a map's names by `NAME`; `default` is as written."""

    kind: str
    path: str
    type: str
    default: str
    bounds: str
    meaning: str

    @property
    def asked(self) -> str:
        """The path as people ask for it: `tools.rules.timeout.life`."""
        return f"{self.kind}.{self.path.replace('[]', '')}"


def keys(kind: str, shipped: Policy[Any]) -> tuple[Key, ...]:
    """Every key of a kind, in order; defaults are what the shipped policy says."""
    return tuple(_keys(kind, KINDS[kind].shape, "", shipped))


def explain(path: str, shipped: Mapping[tuple[str, str], Policy[Any]]) -> tuple[Key, ...] | str:
    """The keys at or below a path such as `retry.model`, or a sentence where there are none. Empty: every kind."""
    if not path:
        return tuple(key for kind in KINDS for key in keys(kind, shipped[kind, "default"]))
    kind, _, rest = path.replace("[]", "").partition(".")
    if kind not in KINDS:
        return f'no kind "{kind}": {did_you_mean(kind, KINDS)}'
    every = keys(kind, shipped[kind, "default"])
    found = tuple(key for key in every if _below(key.asked, path.replace("[]", "")))
    if found:
        return found
    known = {".".join(key.asked.split(".")[:length]) for key in every for length in range(2, 9)} - {kind}
    meant = _meant(path.replace("[]", ""), known)
    return f'no key "{rest}" in {kind}' + (f": {meant}" if meant else "")


def _meant(path: str, known: Collection[str]) -> str:
    """What a wrong path may mean, as a remedy. Where several keys are as near, all are named, or none."""
    every, last = sorted(known), path.rpartition(".")[2]
    lasts = {one.rpartition(".")[2] for one in every}
    near = difflib.get_close_matches(last, lasts, n=3, cutoff=0.75)
    looks: tuple[list[str], ...] = (
        [one for one in every if one.startswith(path) and "." not in one[len(path) :]],  # only begun
        difflib.get_close_matches(path, every, n=1, cutoff=0.85),
        [one for one in every if one.rpartition(".")[2] == last],  # the right key, in the wrong place
        [one for one in every if one.rpartition(".")[2] in near],
    )
    found = next((look for look in looks if 0 < len(look) <= _AS_NEAR), [])
    if not found:
        return ""
    *others, final = (f'"{one}"' for one in found)
    return f"did you mean {', '.join(others)} or {final}?" if others else f"did you mean {final}?"


def _below(asked: str, wanted: str) -> bool:
    parts, steps = asked.split("."), wanted.split(".")
    fits = all(part in (step, "NAME") for part, step in zip(parts, steps, strict=False))
    return fits and len(parts) >= len(steps)


def _keys(kind: str, model: type[BaseModel], prefix: str, shipped: Policy[Any]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner, suffix = below(field.annotation)
        reader = reader_of(field)
        if inner is not None and reader is None:
            yield from _keys(kind, inner, f"{path}{suffix}.", shipped)
            continue
        if reader is not None:
            suffix = ""  # it reads the whole map
        else:
            reader = reader_inside(field.annotation)
        type_ = type_name(reader) if reader is not None else "map"
        bounds = reader.bounds.removeprefix("write ") if reader is not None else ""
        shown = f"{path}{suffix}" if suffix else path
        default = _default(path, field, model, shipped)
        if suffix == ".NAME" and default == "{}":
            default = "none"  # of the map; a name that is not there has no value
        yield Key(kind, shown, type_, default, bounds, field.description or "")


def below(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The shape inside an annotation, and how its path goes on: `[]` for a list, `.NAME` for a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin = get_origin(annotation)
    suffix = ""
    if origin in (tuple, list):
        suffix = "[]"
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        suffix = ".NAME"
    for argument in reversed(get_args(annotation)):
        if argument is not Ellipsis and not isinstance(argument, Reader):
            inner, rest = below(argument)
            if inner is not None:
                return inner, suffix + rest
    return None, suffix if suffix == ".NAME" else ""


def reader_of(field: FieldInfo) -> Reader | None:
    """The reader that a field itself is annotated with."""
    for item in field.metadata:
        if isinstance(item, Reader):
            return item
    origin = get_origin(field.annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping | tuple | list):
        return None  # what its items are read by is not what it is read by
    for argument in get_args(field.annotation):
        for item in getattr(argument, "__metadata__", ()):
            if isinstance(item, Reader):
                return item
    return None


def reader_inside(annotation: Any) -> Reader | None:
    """The reader of a map's values."""
    for argument in get_args(annotation):
        for item in getattr(argument, "__metadata__", ()):
            if isinstance(item, Reader):
                return item
        found = reader_inside(argument)
        if found is not None:
            return found
    return None


def type_name(reader: Reader) -> str:
    """The type as policies.md names it: `count or none`, `list of ratio`, `do`."""
    name = reader.type_name
    each = getattr(reader, "each", None)
    if isinstance(each, Reader):
        name = f"list of {each.type_name}"
    if reader.none and not isinstance(reader, Ladder):
        name += " or none"
    return name


def _default(path: str, field: FieldInfo, model: type[BaseModel], shipped: Policy[Any]) -> str:
    """What the shipped policy gives when nobody else speaks."""
    if "[]" in path:
        return _entry_default(path, field, model, shipped)
    node = find(shipped.tree, path.split("."))
    if node is None and ".classes." in path:
        group, _, rest = path.partition(".classes.")
        node = find(shipped.tree, [group, rest.split(".")[-1]])
        return f"{_written(node)} (the group's)" if node is not None else "none"
    if node is None:
        return "required" if field.is_required() else "none"
    return _written(node)


def _entry_default(path: str, field: FieldInfo, model: type[BaseModel], shipped: Policy[Any]) -> str:
    head, _, rest = path.partition("[].")
    entries = find(shipped.tree, head.split("."))
    common = {"for": '"*"', "when": "{}", "unless": "nothing", "enabled": "true", "name": "none", "note": "none"}
    if rest in common and not field.is_required() and issubclass(model, Entry):
        return common[rest]
    if field.is_required():
        return "required"
    for entry in reversed(entries) if isinstance(entries, ListNode) else ():
        node = find(entry, rest.split("."))
        if node is not None:
            subject = find(entry, ["for"])
            only = "" if subject is None else f" for {_written(subject)}"
            return _written(node) + only
    return "none"


def _written(node: Any) -> str:
    if isinstance(node, MapNode):
        return "{" + ", ".join(f"{key}: {_written(value)}" for key, value in node.items()) + "}"
    if isinstance(node, ListNode):
        return "[" + ", ".join(_written(item) for item in node) + "]"
    return str(node) if isinstance(node, Scalar) else ""
