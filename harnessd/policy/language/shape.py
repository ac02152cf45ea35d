"""Shape: what every kind's pydantic shape shares, and the policy that joins a shape with where each value stands."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harnessd.domain.decision import RuleRef
from harnessd.policy.conditions import ALWAYS, NEVER, Conditions, Lookup, When
from harnessd.policy.language.names import ANYTHING, Name, Names, any_fits
from harnessd.policy.language.source import (
    ListNode,
    MapNode,
    Misread,
    Place,
    Problem,
    Scalar,
    did_you_mean,
    find,
    place_of,
    quoted,
)
from harnessd.policy.values import Flag, Text

NAME_PATTERN = r"[a-z][a-z0-9_-]{0,62}"


class Shape(BaseModel):
    """A frozen map whose unknown keys are refused. Values without default are given by the shipped file."""

    reserved: ClassVar[tuple[str, ...]] = ()  # keys whose machinery comes later: refused with "not yet"
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=False)


class Entry(Shape):
    """What every entry of an ordered list has. Subclasses narrow `for` and give `when` their facts."""

    name: Annotated[str, Text(pattern=NAME_PATTERN, wanted="a name of an entry")] | None = Field(
        None, description="Names the entry in decisions; an inherited entry of this name is changed in its place."
    )
    for_: Annotated[tuple[Name, ...], Names()] = Field(
        ANYTHING, alias="for", description='What the entry is about: a name or a list; "*" is everything.'
    )
    when: Annotated[When, Conditions(scope="nowhere")] = Field(
        ALWAYS, description="Conditions under which the entry fits."
    )
    unless: Annotated[When, Conditions(scope="nowhere")] = Field(
        NEVER, description="Conditions under which it does not."
    )
    note: Annotated[str, Text(longest=500)] | None = Field(
        None, description="The reason or the ticket; shown by `why`, `policy show` and `policy diff`."
    )
    enabled: Annotated[bool, Flag()] = Field(True, description="`false` takes the entry out.")

    def fits(self, touched: Collection[str], lookup: Lookup) -> bool:
        """Whether the entry is about one of the touched names, and its conditions hold."""
        return self.about(touched) and self.holds(lookup)

    def about(self, touched: Collection[str]) -> bool:
        """Whether the entry is about one of the touched names."""
        return self.enabled and any_fits(self.for_, touched)

    def holds(self, lookup: Lookup) -> bool:
        """Whether its conditions hold."""
        return self.when.holds(lookup) and not (self.unless.clauses and self.unless.holds(lookup))


S_co = TypeVar("S_co", bound=Shape, covariant=True)
S = TypeVar("S", bound=Shape)


@dataclass(frozen=True, slots=True)
class Policy(Generic[S_co]):
    """One effective policy: its shape, and the tree that says which line gave each value."""

    kind: str
    name: str
    shape: S_co
    tree: MapNode
    chain: tuple[str, ...] = ()  # the documents it was merged from, own first
    note: str | None = None
    revision: int = 0
    shipped: bool = False  # one of this name comes with the program
    refs: dict[tuple[str | int, ...], RuleRef] = field(default_factory=dict, init=False, compare=False, repr=False)

    def place(self, *path: str | int) -> Place:
        """Where the value at `path` was written; the nearest written parent where it was not."""
        for length in range(len(path), -1, -1):
            node = find(self.tree, path[:length])
            if node is not None:
                parent = find(self.tree, path[: length - 1]) if length else None
                key = path[length - 1] if length else None
                if isinstance(parent, MapNode) and isinstance(key, str) and not isinstance(node, Scalar):
                    return parent.keys_at[key]
                return place_of(node)
        return self.tree.place

    def blame(self, *paths: tuple[str | int, ...]) -> Place:
        """Of values that do not go together, the first that an operator wrote."""
        places = [self.place(*path) for path in paths if find(self.tree, path) is not None]
        return next((place for place in places if not place.builtin), places[0] if places else self.place(*paths[0]))

    def ref(self, *path: str | int, rule: str | None = None) -> RuleRef:
        """Where the value at `path` comes from, as decisions carry it."""
        if rule is not None:
            return self._ref(path, rule)
        known = self.refs.get(path)  # the same few lines decide again and again
        if known is None:
            known = self.refs[path] = self._ref(path, self._rule(path))
        return known

    def _ref(self, path: tuple[str | int, ...], rule: str) -> RuleRef:
        place = self.place(*path)
        return RuleRef(self.kind, self.name, rule, place.file, place.line, self.revision)

    def _rule(self, path: tuple[str | int, ...]) -> str:
        if len(path) > 1 and isinstance(path[1], int):
            entry = find(self.tree, path[:2])
            name = entry.get("name") if isinstance(entry, MapNode) else None
            return name.text if isinstance(name, Scalar) else f"{path[0]}[{path[1]}]"
        return ".".join(map(str, path))

    def at(self, revision: int) -> Policy[S_co]:
        """The same policy as part of a numbered revision."""
        return replace(self, revision=revision)

    def written(self, *path: str | int) -> str | None:
        """The value at `path` as somebody wrote it, or None."""
        node = find(self.tree, path)
        return None if node is None else str(node)


def read_shape(model: type[S], tree: MapNode) -> tuple[S | None, tuple[Problem, ...]]:
    """The shape that a tree means, or all problems with it."""
    try:
        return model.model_validate(tree), ()
    except ValidationError as error:
        found: list[Problem] = []
        for item in error.errors(include_url=False, include_input=False):
            found.extend(_problems(model, tree, item))
        return None, tuple(dict.fromkeys(found))


def read_rest(model: type[S], tree: MapNode, sound: MapNode) -> S | None:
    """The shape without what is wrong in its tree, so that what else is wrong can be found in the same look.

    What is taken out is replaced by what stands at its place in `sound`, a tree that is known to be good.
    """
    for _ in range(4):
        try:
            return model.model_validate(tree)
        except ValidationError as error:
            tree = _copied(tree)
            faults = error.errors(include_url=False, include_input=False, include_context=False)
            # from the end, so that what is taken out of a list does not move what is still to come
            for path in sorted((tuple(item["loc"]) for item in faults), key=repr, reverse=True):
                _take_out(tree, path, sound)
    return None


def _copied(node: Any) -> Any:
    if isinstance(node, MapNode):
        twin = MapNode(node.place)
        for key, value in node.items():
            twin.put(key, _copied(value), node.keys_at[key])
        return twin
    return ListNode(node.place, map(_copied, node)) if isinstance(node, ListNode) else node


def _take_out(tree: MapNode, path: tuple[str | int, ...], sound: MapNode) -> None:
    """Replace the node at `path`; one that is not there (a missing key) takes its owner with it."""
    instead = None if any(isinstance(step, int) for step in path) else find(sound, path)
    while path and find(tree, path) is None and instead is None:
        path = path[:-1]
    if not path:
        return
    owner, last = find(tree, path[:-1]), path[-1]
    if isinstance(owner, MapNode) and isinstance(last, str):
        if instead is not None:
            owner.put(last, instead, owner.keys_at.get(last, owner.place))
        else:
            owner.pop(last, None)
    elif isinstance(owner, ListNode) and isinstance(last, int) and last < len(owner):
        del owner[last]


def _problems(model: type[BaseModel], tree: MapNode, item: Any) -> Iterator[Problem]:
    """The problems behind one pydantic error."""
    cause = item.get("ctx", {}).get("error")
    path: tuple[str | int, ...] = tuple(item["loc"])
    if isinstance(cause, Misread):
        yield from cause.problems
        return
    parent = find(tree, path[:-1])
    last = path[-1] if path else ""
    match item["type"]:
        case "extra_forbidden" if isinstance(parent, MapNode) and isinstance(last, str):
            owner = model_at(model, path[:-1])
            if owner is not None and issubclass(owner, Shape) and last in owner.reserved:
                yield Problem.at(parent.keys_at[last], f'"{last}" is not yet possible', "remove the key")
                return
            known = [field.alias or name for name, field in owner.model_fields.items()] if owner else []
            yield Problem.at(parent.keys_at[last], f'unknown key "{last}"', did_you_mean(last, known))
        case "missing":
            yield _unheard_of(tree, path[:-1]) or Problem.at(
                place_of(parent), f'the key "{last}" is missing', f"write {last}: ..."
            )
        case "model_type" | "dict_type" | "model_attributes_type" | "dict_attributes_type":
            node = find(tree, path)
            yield Problem.at(place_of(node), f"{quoted(node)} stands where a map is wanted", f"write {last}: {{...}}")
        case "tuple_type" | "list_type":
            node = find(tree, path)
            yield Problem.at(place_of(node), f"{quoted(node)} stands where a list is wanted", f"write {last}: [...]")
        case _:
            node = find(tree, path)
            yield Problem.at(place_of(node if node is not None else parent), str(item["msg"]).lower())


def _unheard_of(tree: MapNode, path: tuple[str | int, ...]) -> Problem | None:
    """An entry that says nothing but that an inherited one is switched off or noted, where no other has its name."""
    entry, entries = find(tree, path), find(tree, path[:-1])
    if not isinstance(entry, MapNode) or not isinstance(entries, ListNode) or "name" not in entry:
        return None
    if "enabled" not in entry or not set(entry) <= {"name", "enabled", "note"}:
        return None
    others = [one["name"] for one in entries if isinstance(one, MapNode) and one is not entry and "name" in one]
    name, names = entry["name"], [other.text for other in others if isinstance(other, Scalar)]
    return Problem.at(place_of(name), f"no entry named {quoted(name)} is inherited", did_you_mean(str(name), names))


def model_at(model: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The shape that stands at `path` below `model`, or None."""
    current: Any = model
    for step in path:
        if isinstance(step, int):
            current = _inner(current)
            continue
        owner = _model_in(current)
        if owner is None:
            current = _inner(current)  # a map of names: its values
            continue
        field = next((f for n, f in owner.model_fields.items() if (f.alias or n) == step), None)
        if field is None:
            return None
        current = field.annotation
    return _model_in(current)


def _args(annotation: Any) -> tuple[Any, ...]:
    return tuple(a for a in getattr(annotation, "__args__", ()) if a not in (type(None), ...))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The shape an annotation is, through `| None` and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = getattr(annotation, "__origin__", None)
    if isinstance(origin, type) and origin is not type and issubclass(origin, dict | tuple | list):
        return None
    for argument in _args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _inner(annotation: Any) -> Any:
    """What a list or map of an annotation holds."""
    origin = getattr(annotation, "__origin__", None)
    if isinstance(origin, type) and issubclass(origin, dict | tuple | list):
        return _args(annotation)[-1]
    for argument in _args(annotation):
        found = _inner(argument)
        if found is not None:
            return found
    return None


def stated(entry: Shape, *path: str) -> Any:
    """The value of a leaf that an entry states, or `UNSTATED`. A stated `none` is None."""
    current: Any = entry
    for step in path:
        if not isinstance(current, Shape) or step not in current.model_fields_set:
            return UNSTATED
        current = getattr(current, step)
    return current


class _Unstated:
    """The entry says nothing about this leaf."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSTATED"


UNSTATED = _Unstated()
