"""Freeform: JSON written as YAML (schemas, safe structures, arguments of a probe), read by YAML 1.2's core rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from harnessd.policy.language.source import Collected, ListNode, MapNode, Misread, Scalar, misread, quoted
from harnessd.policy.values import Reader, yaml_11_reads

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Json(Reader):
    """Any JSON value; `maps` asks for a map at the top. Words that readers of YAML 1.1 twist must be quoted."""

    type_name: ClassVar[str] = "map"
    maps: bool = True

    def read(self, node: Any) -> Any:
        if self.maps and not isinstance(node, MapNode):
            raise misread(node, f"{quoted(node)} stands where a map is wanted", "write {KEY: value}")
        return _json(node)


def _json(node: Any) -> Any:
    if isinstance(node, Scalar):
        return _scalar(node)
    collected = Collected()
    pairs = list(node.items()) if isinstance(node, MapNode) else list(enumerate(node))
    values: list[tuple[Any, Any]] = []
    for key, item in pairs:
        try:
            values.append((key, _json(item)))
        except Misread as error:
            collected.add(error)
    collected.raise_if_any()
    if isinstance(node, ListNode):
        return [value for _, value in values]
    return dict(values)


def _scalar(node: Scalar) -> Any:
    if not node.plain:
        return node.text
    if node.text in ("true", "false"):
        return node.text == "true"
    if node.text in ("null", "~", ""):
        return None
    if _INTEGER.fullmatch(node.text):
        return int(node.text)
    if _FLOAT.fullmatch(node.text):
        return float(node.text)
    other = yaml_11_reads(node.text)
    if other:
        raise misread(node, f"{node.text} is {other} to other YAML readers", f'write "{node.text}" in quotes')
    return node.text
