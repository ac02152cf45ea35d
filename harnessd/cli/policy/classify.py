"""Classify: what a recorded answer of a model service is by the policies, and which line says so; nothing is sent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Problem
from harnessd.cli.options import connection, json_option
from harnessd.cli.policy.sources import config_of, on_disk, problems_in, tell_problems
from harnessd.config.load import builtin_policies
from harnessd.domain.failure import Failure
from harnessd.domain.messages import FinishReason, ModelReply
from harnessd.net import Redactor
from harnessd.policy import PolicySet
from harnessd.policy.retry import RetryPolicy, classify, for_class
from harnessd.providers.recorded import RecordError, outcome, read_record
from harnessd.providers.recorded.written import record_of

_LARGEST = 16 * 1024 * 1024
_FORM = "Write a map of protocol, status, headers, and body or sse or transport_error."


@click.command(name="classify")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--policies",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Policies to judge by; else the folder that harness.yaml names, else the shipped ones.",
)
@json_option
@connection
def classify_(file: Path, folder: Path | None, as_json: bool) -> int:
    """What an answer of a model service is: its class, and whether the same request may be sent again.

    FILE (YAML or JSON; - reads standard input) is a map of protocol, status, headers, then body, sse or
    transport_error, and now where a date matters. Any name of a protocol will do. No daemon is needed.
    """
    document, text = _document(file)
    policy = _retry_policy(folder)
    try:
        found = verdict(document, policy, time.time())
    except RecordError as wrong:
        raise Problem(USAGE, f"{_place(file, text, wrong.key)}: {wrong}.", _FORM) from None
    if as_json:
        render.out_json(found)
    else:
        render.out_lines(_lines(found))
    return 0


def verdict(document: Any, policy: RetryPolicy, clock_s: float) -> dict[str, Any]:
    """The answer's class with the rule that says so, in the form that `--json` prints. Raises RecordError."""
    record = read_record(document, clock_s)
    found = outcome(record)
    failure = _as_facts(found, record.protocol) if isinstance(found, ModelReply) else found
    classified = classify(policy, failure)
    rule = classified.rule
    owner, retryable = None, False
    if classified.error_class is not None:
        settings = for_class(policy, "model", classified.error_class)
        owner = settings.owner.value
        retryable = classified.known and "retry" in settings.do
    return {
        "class": classified.error_class.value if classified.error_class is not None else "ok",
        "owner": owner,
        "retryable": retryable,
        "retry_after_s": failure.retry_after_s,
        "message": failure.message,
        "rule": {
            "kind": rule.kind,
            "name": rule.name,
            "rule": rule.rule,
            "file": rule.file,
            "line": rule.line,
            "revision": rule.revision,
        },
    }


def written(evidence: Mapping[str, Any], at: float) -> dict[str, Any] | None:
    """The FILE behind a decision's evidence, or None where it is about no answer of a model service.

    What is stored was redacted when the call failed, with its own key; what looks like another key is struck out here.
    """
    record = record_of(evidence, at)
    return None if record is None else {name: _struck(value, Redactor(())) for name, value in record.items()}


def _struck(value: Any, redactor: Redactor) -> Any:
    match value:
        case str():
            return redactor.text(value)
        case Mapping():
            return {name: _struck(inner, redactor) for name, inner in value.items()}
        case list():
            return [_struck(inner, redactor) for inner in value]
        case _:
            return value


def _as_facts(reply: ModelReply, protocol: str) -> Failure:
    """A whole answer under the names that rules look at."""
    said = {
        FinishReason.LENGTH: "The answer is complete, but cut off at its length limit.",
        FinishReason.TOOL_USE: "The answer is complete and asks for tools.",
    }.get(reply.finish, "The answer is complete.")
    if "finish_reason_missing" in reply.marks:
        said = "The answer is complete, but it came without a finish reason."
    broken = [call.name for call in reply.message.tool_uses if call.arguments is None]
    if broken:
        said = f"The answer is complete, but the arguments of its call of {broken[0]!r} are no JSON object."
    return Failure(
        "model",
        "model/recorded",
        said,
        status=200,
        protocol=protocol,
        ended="complete",
        finish=reply.finish.value,
        call_cut=bool(broken),
    )


def _document(file: Path) -> tuple[Any, str]:
    """What the file holds, and its text. Raises Problem with the place."""
    shown = render.one_line(file)
    try:
        data = _bytes(file)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise Problem(USAGE, f"{shown} cannot be read: {error.strerror or error}.", "Name a readable file.") from None
    except UnicodeDecodeError as error:
        raise Problem(USAGE, f"{shown}: byte {error.start + 1} is no UTF-8.", "Write the file in UTF-8.") from None
    if len(data) > _LARGEST:
        raise Problem(USAGE, f"{shown}: more than {_LARGEST} bytes.", "Cut the body short.")
    try:
        return _parsed(text), text
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        what = render.one_line(error.problem or error.context or "no YAML")
        raise Problem(USAGE, f"{place}: {what}.", _FORM) from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Problem(USAGE, f"{shown}:1:1: neither YAML nor JSON ({render.one_line(first)}).", _FORM) from None


def _bytes(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read(_LARGEST + 1)
    with file.open("rb") as stream:
        return stream.read(_LARGEST + 1)


def _parsed(text: str) -> Any:
    """JSON where it is JSON: YAML reads its halves of characters differently. Aliases could grow without bounds."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # a flow map of YAML, or neither; YAML's words name the place
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            mark = event.start_mark
            place = yaml.Mark("", mark.index, mark.line, mark.column, None, 0) if mark else None
            raise yaml.MarkedYAMLError(problem="aliases are not read", problem_mark=place)
    return yaml.CSafeLoader(text).get_single_data()


def _place(file: Path, text: str, key: str) -> str:
    """Where a top-level key stands, as `FILE:LINE:COLUMN`; the file's start for one that is missing."""
    line, column = 1, 1
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        root = None
    if isinstance(root, yaml.MappingNode):
        for name, value in root.value:
            if name.value == key.partition(".")[0]:
                line, column = value.start_mark.line + 1, value.start_mark.column + 1
    return f"{render.one_line(file)}:{line}:{column}"


def _retry_policy(folder: Path | None) -> RetryPolicy:
    policies = _policies(folder)
    policy: RetryPolicy | None = policies.get("retry", "default")
    assert policy is not None  # noqa: S101 - shipped, and what is shipped cannot be removed
    return policy


def _policies(folder: Path | None) -> PolicySet:
    """The set to judge by. Raises Problem where it has problems, which are printed first."""
    if folder is None and config_of(None) is None:
        return builtin_policies()
    disk = on_disk(folder, None, lenient=folder is not None)
    if disk.problems or disk.read.policies is None:
        tell_problems(disk.problems)
        raise Problem(FAILED, f"{disk.shown}: {problems_in(disk.problems)}.", "Correct them, then classify again.")
    return disk.read.policies


def _lines(found: Mapping[str, Any]) -> list[str]:
    rule, wait = found["rule"], found["retry_after_s"]
    retryable = "yes, the same request may be sent again" if found["retryable"] else "no"
    rows = [
        ("class", found["class"]),
        ("owner", found["owner"] or "nobody: it is an answer"),
        ("retryable", retryable),
        ("retry after", "the answer asks for no wait" if wait is None else render.duration(wait)),
        ("rule", f"{rule['kind']}/{rule['name']}: {rule['rule']} ({rule['file']}:{rule['line']})"),
        ("message", render.visible(found["message"])),
    ]
    return render.table(rows)
