"""Values: each setting as one would write it, with its origin; what is named or shaped like a key is masked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from harnessd.config.environment import PREFIX
from harnessd.net.redaction import MASK, Redactor
from harnessd.policy.language.source import ListNode, MapNode, Scalar, find, place_of
from harnessd.policy.reference.explain import below, reader_of, type_name
from harnessd.policy.values import Secret

_KEY_LIKE = re.compile(
    r"(^|[^a-z])(api)?(key|token|secret|passw(or)?d|passphrase|credential|auth|authorization)s?$", re.IGNORECASE
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_shapes = Redactor(())


@dataclass(frozen=True, slots=True)
class Setting:
    """One value. `source` says who gives it; `file` and `line` where, for a file, and `file` the variable's name."""

    path: str
    value: str
    source: Literal["file", "environment", "default"]
    file: str = ""
    line: int = 0

    @property
    def origin(self) -> str:
        """For people: `harness.yaml:7`, the variable, or `default`."""
        return f"{self.file}:{self.line}" if self.source == "file" else self.file or "default"

    def json(self) -> dict[str, Any]:
        """With stable keys."""
        place = {"file": self.file, "line": self.line} if self.source == "file" else {"file": None, "line": None}
        variable = self.file if self.source == "environment" else None
        return {"path": self.path, "value": self.value, "from": self.source, **place, "variable": variable}


def settings(shape: type[BaseModel], tree: MapNode) -> Iterator[Setting]:
    """Every setting that has a value: what is written, and the defaults of all else."""
    yield from _of_shape(shape, tree, "")


def _of_shape(shape: type[BaseModel], node: Any, prefix: str) -> Iterator[Setting]:
    for name, field in shape.model_fields.items():
        key = field.alias or name
        path = f"{prefix}{key}"
        inner, suffix = below(field.annotation)
        reader = reader_of(field)
        there = find(node, [key])
        if inner is not None and reader is None and suffix == ".NAME":
            for declared in there if isinstance(there, MapNode) else ():
                yield from _of_shape(inner, there.get(declared), f"{path}.{declared}.")
        elif inner is not None and reader is None and (there is not None or field.default is not None):
            yield from _of_shape(inner, there, f"{path}.")
        elif there is not None:
            secret = isinstance(reader, Secret) or (isinstance(there, MapNode) and _is_reference(there))
            yield _given(path, there, secret=secret)
        elif not field.is_required():
            default = as_written(field.default, type_name(reader) if reader else "map")
            if default:
                yield Setting(path, default, "default")


def _given(path: str, node: Any, *, secret: bool) -> Setting:
    place = place_of(node)
    from_file = bool(place.line) and not place.file.startswith(PREFIX)  # what a variable holds has lines of its own
    text = _flow(node, path.rpartition(".")[2]) if not secret or _is_reference(node) else MASK
    if from_file:
        return Setting(path, text, "file", place.file, place.line)
    return Setting(path, text, "environment", place.file)


def _is_reference(node: Any) -> bool:
    """`{env: NAME}` or `{credential: NAME}`: where a secret is read, which is no secret."""
    return isinstance(node, MapNode) and len(node) == 1 and next(iter(node)) in ("env", "credential")


def _flow(node: Any, key: str) -> str:
    if isinstance(node, MapNode):
        if _is_reference(node):
            return "{" + ", ".join(f"{name}: {value}" for name, value in node.items()) + "}"
        return "{" + ", ".join(f"{name}: {_flow(value, name)}" for name, value in node.items()) + "}"
    if isinstance(node, ListNode):
        return "[" + ", ".join(_flow(item, key) for item in node) + "]"
    if _KEY_LIKE.search(key):
        return MASK
    return _USER_IN_ADDRESS.sub(MASK, _shapes.text(node.text if isinstance(node, Scalar) else str(node)))


def as_written(value: Any, kind: str) -> str:
    """A default as one would write it; `kind` is its type's name."""
    if value is None:
        return "null" if kind == "path" else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and "duration" in kind:
        return f"{value:g}s" if value >= 1 or not value else f"{value * 1000:g}ms"
    if isinstance(value, float) and "ratio" in kind:
        return f"{value:.0%}"
    if isinstance(value, int) and "size" in kind:
        return f"{value >> 20}MiB"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return json.dumps(value) if isinstance(value, dict) else str(value)
