"""Policy tests: policies/tests/*.yaml -> steps and what they must give, or all problems of all files; and their run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.config.files import Snapshot, SourceFile, builtin_folder, read_folder
from harnessd.config.policy_test_steps import read_expected, read_step
from harnessd.config.strict_yaml import parse
from harnessd.defence.trial import Answer, Chosen, Step, Trial
from harnessd.defence.trial.expected import Expected, Mismatch
from harnessd.policy import PolicySet
from harnessd.policy.assembly.kinds import KINDS, TASK_KINDS
from harnessd.policy.language.source import (
    BUILTIN,
    ListNode,
    MapNode,
    Misread,
    Place,
    Problem,
    Scalar,
    did_you_mean,
    place_of,
    quoted,
)
from harnessd.policy.values import Text

AgentPolicies = Mapping[str, Mapping[str, str]]
MOST_STEPS = 1_000  # of one test, repeats counted: rules are asked so often, and no operator needs more
_KEYS = ("name", "policy", "agent", "labels", "given", "expect")


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """One test. `expect` has one entry for each step, None where anything will do; `places` say where each stands."""

    name: str
    place: Place
    chosen: Chosen
    given: tuple[Step, ...]
    expect: tuple[Expected | None, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class TestFile:
    """One file: the tests that could be read, and all its problems."""

    __test__ = False  # its name is no test of pytest's

    shown: str
    tests: tuple[PolicyTest, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Unexpected:
    """A step that went another way. `number` counts from 1."""

    number: int
    place: Place
    answer: Answer
    mismatches: tuple[Mismatch, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test went; without `unexpected` it passed."""

    test: PolicyTest
    unexpected: tuple[Unexpected, ...] = ()


@dataclass(frozen=True, slots=True)
class FileReport:
    """How the tests of one file went."""

    shown: str
    outcomes: tuple[Outcome, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The tests that did not pass."""
        return tuple(outcome for outcome in self.outcomes if outcome.unexpected)


@dataclass(frozen=True, slots=True)
class Report:
    """How all tests went. `there` is False where there is no folder of tests."""

    files: tuple[FileReport, ...]
    problems: tuple[Problem, ...] = ()
    there: bool = True

    @property
    def passed(self) -> bool:
        """Every test passed, and nothing could not be read."""
        return not self.problems and not any(file.problems or file.failed for file in self.files)

    @property
    def tests(self) -> int:
        """How many tests ran."""
        return sum(len(file.outcomes) for file in self.files)


# --- running ----------------------------------------------------------------------------------------------------------


def run_tests(policies: PolicySet, snapshot: Snapshot, agent_policies: AgentPolicies) -> Report:
    """Run the tests of a folder against a policy set. Without daemon, network, clock or environment."""
    files = [_run_file(file, policies, agent_policies) for file in snapshot.files]
    return Report(tuple(files), snapshot.problems, snapshot.there)


def read_tests_folder(folder: Path, shown: str) -> Snapshot:
    """The test files of a policy folder's `tests/`, as bytes."""
    return read_folder(folder / "tests", f"{shown}/tests" if shown else "tests")


def builtin_tests() -> Snapshot:
    """The shipped tests of the shipped policies."""
    snapshot = read_folder(builtin_folder() / "tests", "tests")
    files = tuple(SourceFile(f"{BUILTIN}{file.shown}", file.data) for file in snapshot.files)
    return Snapshot(files, snapshot.problems, snapshot.there)


def _run_file(file: SourceFile, policies: PolicySet, agent_policies: AgentPolicies) -> FileReport:
    read = read_tests(file, policies, agent_policies)
    return FileReport(read.shown, tuple(run_test(test, policies) for test in read.tests), read.problems)


def run_test(test: PolicyTest, policies: PolicySet) -> Outcome:
    """Feed the steps through the rules, each after what the ones before it did."""
    trial = Trial(policies, test.chosen)
    unexpected = []
    for number, (step, wanted, place) in enumerate(zip(test.given, test.expect, test.places, strict=True), start=1):
        answer = trial.take(step)
        mismatches = () if wanted is None else wanted.mismatches(answer)
        if mismatches:
            unexpected.append(Unexpected(number, place, answer, mismatches))
    return Outcome(test, tuple(unexpected))


# --- reading ----------------------------------------------------------------------------------------------------------


def read_tests(file: SourceFile, policies: PolicySet, agent_policies: AgentPolicies) -> TestFile:
    """The tests of one file's bytes, whatever they are."""
    parsed = parse(file.data, file.shown)
    reader = _Reader(policies, agent_policies, list(parsed.problems))
    tests = [test for document in parsed.documents for test in reader.document(document)]
    return TestFile(file.shown, tuple(tests), tuple(sorted(set(reader.problems))))


@dataclass(slots=True)
class _Reader:
    """Collects tests and problems."""

    policies: PolicySet
    agent_policies: AgentPolicies
    problems: list[Problem] = field(default_factory=list)

    def bad(self, place: Place, message: str, remedy: str = "") -> None:
        """Note a problem."""
        self.problems.append(Problem.at(place, message, remedy))

    def document(self, node: Any) -> list[PolicyTest]:
        """The tests of one document."""
        if not isinstance(node, MapNode):
            self.bad(place_of(node), f"{quoted(node)} stands where a map is wanted", "write tests: [...]")
            return []
        self.known_keys(node, ("tests",))
        listed = node.get("tests")
        if listed is None and node:
            return []  # a key that is not known was named: the one that is meant
        if not isinstance(listed, ListNode):
            place = node.place if listed is None else place_of(listed)
            self.bad(place, "the key tests must be there and hold a list", "write tests: [{name: ..., given: ...}]")
            return []
        if not listed:
            self.bad(listed.place, "there is no test in the list", "write one, or delete the file")
        found = [self.test(item) for item in listed]
        return [test for test in found if test is not None]

    def known_keys(self, node: MapNode, known: Sequence[str]) -> None:
        """Note every key that is not known."""
        for key in node:
            if key not in known:
                self.bad(node.keys_at[key], f'unknown key "{key}"', did_you_mean(key, known))

    def test(self, node: Any) -> PolicyTest | None:
        """One test, or None where it has problems."""
        before = len(self.problems)
        if not isinstance(node, MapNode):
            self.bad(place_of(node), f"{quoted(node)} is not a test", "write {name: ..., given: [...], expect: [...]}")
            return None
        self.known_keys(node, _KEYS)
        name = self.text(node, "name")
        chosen = self.chosen(node)
        given = self.entries(node, "given", read_step)
        wanted = self.entries(node, "expect", read_expected)
        if len(self.problems) > before or name is None:
            return None
        expect = self.aligned(node, given, wanted)
        if expect is None or not self.bounded(node, given):
            return None
        places = tuple(place_of(item) for item in node["given"])
        return PolicyTest(name, node.place, chosen, tuple(given), expect, places)

    def text(self, node: MapNode, key: str) -> str | None:
        """A text that must be there."""
        if key not in node:
            self.bad(node.place, f'the key "{key}" is missing', f"write {key}: ...")
            return None
        try:
            text: str = Text(longest=300).read(node[key])
        except Misread as error:
            self.problems.extend(error.problems)
            return None
        return text

    def entries(self, node: MapNode, key: str, read: Any) -> list[Any]:
        """A list that must be there, each entry read; all problems kept."""
        listed = node.get(key)
        if not isinstance(listed, ListNode) or not listed:
            place = node.place if listed is None else place_of(listed)
            self.bad(place, f"{key} must be a list with one entry or more", f"write {key}: [{{...}}]")
            return []
        found = []
        for item in listed:
            try:
                found.append(read(item))
            except Misread as error:
                self.problems.extend(error.problems)
        return found

    def aligned(self, node: MapNode, given: list[Step], wanted: list[Expected]) -> tuple[Expected | None, ...] | None:
        """What is expected of each step: one entry each, or one for the last."""
        place = place_of(node["expect"])
        if len(wanted) not in (1, len(given)):
            message = f"{len(wanted)} entries in expect for {len(given)} steps in given"
            self.bad(place, message, f"write {len(given)} of them, {{}} for any, or one for the last step")
            return None
        if all(entry.anything for entry in wanted):
            self.bad(place, "nothing is expected: this test cannot fail", "write what must come out, as {do: park}")
            return None
        before: list[Expected | None] = [None] * (len(given) - len(wanted))
        return (*before, *(None if entry.anything else entry for entry in wanted))

    def bounded(self, node: MapNode, given: list[Step]) -> bool:
        """Not more steps than a test may have."""
        steps = sum(step.times for step in given)
        if steps > MOST_STEPS:
            self.bad(place_of(node["given"]), f"{steps} steps with all repeats", f"write at most {MOST_STEPS}")
        return steps <= MOST_STEPS

    def chosen(self, node: MapNode) -> Chosen:
        """Whose policies the test is under."""
        named: dict[str, str] = {}
        policy = node.get("policy", MapNode(node.place))
        if not isinstance(policy, MapNode):
            self.bad(
                place_of(policy), f"{quoted(policy)} stands where a map is wanted", "write policy: {retry: strict}"
            )
            policy = MapNode(node.place)
        for kind, value in policy.items():
            if kind in ("agent", "labels"):
                continue
            name = self.policy_name(kind, value, policy.keys_at[kind])
            if name is not None and kind in TASK_KINDS:
                named[kind] = name
        agent = self.one_of(node, policy, "agent")
        labels = self.one_of(node, policy, "labels")
        return Chosen(named, self.agent_name(agent), self.labels(labels), self.agent_policies)

    def one_of(self, node: MapNode, policy: MapNode, key: str) -> Any:
        """`agent` and `labels` may stand beside `policy` or in it."""
        if key in node and key in policy:
            self.bad(policy.keys_at[key], f"{key} stands twice", "keep one of them")
        return node.get(key, policy.get(key))

    def policy_name(self, kind: str, value: Any, at: Place) -> str | None:
        """The name of a policy that exists."""
        if kind not in KINDS:
            self.bad(at, f'no kind "{kind}"', did_you_mean(kind, (*KINDS, "agent", "labels")))
            return None
        names = self.policies.names(kind)
        if isinstance(value, Scalar) and value.text in names:
            return value.text
        text = value.text if isinstance(value, Scalar) else ""
        self.bad(place_of(value), f'no {kind} policy "{text}"', did_you_mean(text, names))
        return None

    def agent_name(self, node: Any) -> str:
        """The task's agent; empty where none is named."""
        if node is None:
            return ""
        try:
            text: str = Text(pattern=r"[A-Za-z0-9][\w.-]*", wanted="a name of an agent").read(node)
        except Misread as error:
            self.problems.extend(error.problems)
            return ""
        return text

    def labels(self, node: Any) -> dict[str, str]:
        """The task's labels."""
        if node is None:
            return {}
        if not isinstance(node, MapNode):
            self.bad(place_of(node), f"{quoted(node)} stands where a map is wanted", "write labels: {team: web}")
            return {}
        found = {}
        for key, value in node.items():
            try:
                found[key] = Text().read(value)
            except Misread as error:
                self.problems.extend(error.problems)
        return found
