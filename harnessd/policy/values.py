"""Values: Flag, Text, Template, Word, lists and secrets: how each is written and read (numbers: see `figures`).

Meaning is YAML 1.2. What a YAML 1.1 reader would turn into something else is refused where a number or `true`/`false`
is wanted, and must be quoted where a text is wanted. Each reader is metadata of a pydantic field and carries its
bounds, so that the reference and the JSON Schemas are made from the same line that checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic_core import CoreSchema, core_schema

from harnessd.policy.language.source import Collected, ListNode, MapNode, Misread, Scalar, did_you_mean, misread, quoted

_ADDRESS = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?")

# What the resolvers of YAML 1.1 take for something other than text.
_YAML_11 = (
    ("a truth value", re.compile(r"(?:yes|no|on|off|y|n|true|false)\Z", re.IGNORECASE)),
    ("nothing", re.compile(r"(?:~|null|)\Z", re.IGNORECASE)),
    ("a number", re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-f_]+|0o?[0-7_]+|[0-9][0-9_]*)\Z", re.IGNORECASE)),
    ("a number", re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+)(?:e[-+]?[0-9]+)?\Z", re.IGNORECASE)),
    ("a number", re.compile(r"[-+]?[0-9]+e[-+]?[0-9]+\Z", re.IGNORECASE)),
    ("a number", re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z")),
    ("a number", re.compile(r"(?:[-+]?\.inf|\.nan)\Z", re.IGNORECASE)),
    ("a date", re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?\Z")),
)


def yaml_11_reads(text: str) -> str | None:
    """What a YAML 1.1 reader makes of an unquoted word, or None where it stays text."""
    for what, pattern in _YAML_11:
        if pattern.match(text):
            return what
    return None


def require_scalar(node: Any, wanted: str) -> Scalar:
    """The scalar, or the misread "a map stands where ... is wanted"."""
    if not isinstance(node, Scalar):
        raise misread(node, f"{quoted(node)} stands where {wanted} is wanted")
    if node.plain and node.text == "":
        raise misread(node, f"an empty value is not {wanted}", "write the value, or remove the key")
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How a field is written: pydantic asks `read`; the reference asks `type_name` and `bounds`."""

    type_name: ClassVar[str] = "value"
    none: bool = False

    def read(self, node: Any) -> Any:
        """The value, or None for the word `none` where it is allowed. Raises Misread."""
        if isinstance(node, Scalar) and node.plain and node.text == "none":
            if self.none:
                return None
            raise misread(node, f"none is not possible here: {self.article} is wanted")
        if self.none and isinstance(node, Scalar) and node.plain and node.text.lower() in ("null", "~"):
            raise misread(node, f"{node.text} is not {self.article}", "write none, or remove the key")
        return self.value(require_scalar(node, self.article))

    def value(self, scalar: Scalar) -> Any:
        """The value of one word."""
        raise NotImplementedError

    @property
    def article(self) -> str:
        """The type with its article, for sentences."""
        name = self.type_name
        return f"an {name}" if name[0] in "aeio" else f"a {name}"

    @property
    def bounds(self) -> str:
        """The bounds as a person reads them, or nothing."""
        return ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Reader):
    """`true` `false`."""

    type_name: ClassVar[str] = "true or false"

    @property
    def article(self) -> str:
        return self.type_name

    def value(self, scalar: Scalar) -> bool:
        if scalar.plain and scalar.text in ("true", "false"):
            return scalar.text == "true"
        meant = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
        word = scalar.text.lower()
        remedy = f"write {meant[word]}" if word in meant else "write true or false"
        if word in ("true", "false"):
            remedy = f"write {word}" + ("" if scalar.plain else " without quotes")
        raise misread(scalar, f"{quoted(scalar)} is not true or false", remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Reader):
    """A text. Unquoted words that a YAML 1.1 reader would turn into something else are refused."""

    type_name: ClassVar[str] = "text"
    pattern: str | None = None
    wanted: str = ""
    longest: int = 1_000_000

    def value(self, scalar: Scalar) -> str:
        if scalar.plain:
            other = yaml_11_reads(scalar.text)
            if other:
                shown = scalar.text
                raise misread(scalar, f"{shown} is {other} to other YAML readers", f'write "{shown}" in quotes')
        if len(scalar.text) > self.longest:
            raise misread(scalar, f"{len(scalar.text)} characters are too many", f"write at most {self.longest}")
        if self.pattern is not None and not re.fullmatch(self.pattern, scalar.text):
            raise misread(scalar, f"{quoted(scalar)} is not {self.wanted or self.article}", self.bounds)
        return scalar.text

    @property
    def bounds(self) -> str:
        return f"write {self.pattern}" if self.pattern else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseUrl(Text):
    """An address of a service, without user, password, query or fragment."""

    type_name: ClassVar[str] = "address"
    of: ClassVar[str] = "a service"
    remedy: ClassVar[str] = "write https://HOST/PATH, without user, query or fragment"

    def value(self, scalar: Scalar) -> str:
        text = Text.value(self, scalar)
        if not _ADDRESS.fullmatch(text):
            shown = "this" if "@" in text or "?" in text else quoted(scalar)  # a key may stand in it
            raise misread(scalar, f"{shown} is not an address of {self.of}", self.bounds)
        return text

    @property
    def bounds(self) -> str:
        return self.remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Template(Text):
    """A text whose `{used}` is filled in; `{{` is a brace; an unknown `{name}` is refused."""

    type_name: ClassVar[str] = "template"
    names: tuple[str, ...] = ()

    def value(self, scalar: Scalar) -> str:
        text = Text.value(self, scalar)
        for match in re.finditer(r"\{\{|\}\}|\{([^{}]*)\}|[{}]", text):
            if match[0] in ("{{", "}}"):
                continue
            if match[1] is None:
                raise misread(scalar, "a brace stands alone", "write {{ or }} for a brace")
            if match[1] not in self.names:
                known = ", ".join("{" + name + "}" for name in self.names)
                raise misread(scalar, f"unknown placeholder {match[0]}", f"write one of {known}, or {{{{ for a brace")
        return text

    @property
    def bounds(self) -> str:
        return " ".join("{" + name + "}" for name in self.names)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template's text with its placeholders filled in."""

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        return str(values.get(match[1], match[0]))

    return re.sub(r"\{\{|\}\}|\{([^{}]*)\}", put, template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word(Reader):
    """One word of a closed list."""

    type_name: ClassVar[str] = "word"
    words: tuple[str, ...] = ()

    def value(self, scalar: Scalar) -> str:
        if scalar.text in self.words:
            return scalar.text
        raise misread(scalar, f"unknown word {quoted(scalar)}", did_you_mean(scalar.text, self.words))

    @property
    def bounds(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf(Reader):
    """A list (or one value) of what `each` reads; `rising`: each above the one before it."""

    type_name: ClassVar[str] = "list"
    each: Reader = field(default_factory=Text)
    least: int = 0
    most: int = 1000
    rising: bool = False
    always: tuple[str, ...] = ()

    def read(self, node: Any) -> Any:
        if isinstance(node, MapNode) or (isinstance(node, Scalar) and node.plain and node.text in ("none", "")):
            raise misread(node, f"{quoted(node)} stands where a list is wanted", "write [] for an empty list")
        items = node if isinstance(node, ListNode) else [node]
        values, collected = [], Collected()
        for item in items:
            try:
                values.append(self.each.read(item))
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        if not self.least <= len(values) <= self.most:
            raise misread(node, f"{len(values)} values are out of bounds", f"write {self.least} to {self.most}")
        self._rise(items, values)
        missing = [word for word in self.always if word not in values]
        if missing:
            raise misread(node, f"{', '.join(missing)} must be in the list", f"add {', '.join(missing)}")
        return tuple(values)

    def _rise(self, items: Any, values: list[Any]) -> None:
        if not self.rising:
            return
        for earlier, later in zip(range(len(values)), range(1, len(values)), strict=False):
            if values[later] <= values[earlier]:
                right = ", ".join(item.text for _, item in sorted(zip(values, items, strict=True), key=lambda p: p[0]))
                message = f"the values must rise: {items[later].text} stands after {items[earlier].text}"
                raise misread(items[later], message, f"write [{right}]")

    @property
    def bounds(self) -> str:
        inner = self.each.bounds
        return (
            f"{self.least}..{self.most} values"
            + (f" of {inner}" if inner else "")
            + (", rising" if self.rising else "")
        )


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret is read, again at each use: `env` names a variable, `credential` a file in its folder."""

    source: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret(Reader):
    """`{env: OPS_URL}` or `{credential: ops_url}`; a literal is refused and never repeated in the message."""

    type_name: ClassVar[str] = "secret"
    text_too: bool = False

    def read(self, node: Any) -> Any:
        if self.text_too and isinstance(node, Scalar):
            return Text().read(node)
        if isinstance(node, MapNode) and len(node) == 1:
            ((source, name),) = node.items()
            if source in ("env", "credential") and isinstance(name, Scalar) and _SECRET_NAME.fullmatch(name.text):
                return SecretRef(source, name.text)
        raise misread(node, "a secret is never written here", "write {env: NAME} or {credential: NAME}")


_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
