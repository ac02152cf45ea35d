"""Lint and repair: what a model service would refuse in a transcript, and the transcript as it takes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Problem
from harnessd.cli.options import json_option
from harnessd.cli.session import document as documents
from harnessd.cli.session.remarks import NotATranscript, Remark
from harnessd.defence.line3_repair.transcript import PROTOCOLS, TARGETS, Repaired, receiver, repair

_LARGEST = 1024 * 1024 * 1024
_FORM = "Give a JSON array of messages, a request body, or a session file of one JSON value a line."

_protocol = click.option(
    "--protocol",
    type=click.Choice([*PROTOCOLS, "auto"]),
    default="auto",
    show_default=True,
    help="Whose rules hold; auto looks at the transcript.",
)
_target = click.option(
    "--target",
    "targets",
    type=click.Choice(TARGETS),
    multiple=True,
    help="A stricter receiver of this protocol; may be given again.",
)
_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@dataclass(frozen=True, slots=True)
class _Mended:
    """A document with its legal view."""

    document: documents.Document
    protocol: str
    view: Any
    problems: tuple[Remark, ...]


@click.command(name="lint")
@_file
@_protocol
@_target
@json_option
def lint(file: Path, protocol: str, targets: tuple[str, ...], as_json: bool) -> int:
    """Name everything in a transcript that its receiver would refuse, each with its position.

    FILE (- reads standard input) is a JSON array of messages, a request body, or a session file of an agent: Claude
    Code, Codex, Pi, OpenClaw, OpenCode, Aider. Exit status 1 where something was found. No daemon is needed.
    """
    mended = _mend(file, protocol, targets)
    problems = [{"code": one.code, "index": one.index, "message": one.message} for one in mended.problems]
    if as_json:
        render.out_json({"ok": not problems, "problems": problems})
        return FAILED if problems else 0
    rows = [(f"message {one.index}", one.code, one.message) for one in mended.problems]
    render.out_lines(render.table(rows))
    count = len(mended.document.messages)
    what = f"{mended.document.shape}, {count} {_plural('message', count)}, {mended.protocol}"
    render.note(f"{len(problems)} {_plural('problem', len(problems))}: {what}" if problems else f"No problem: {what}")
    return FAILED if problems else 0


@click.command(name="repair")
@_file
@click.option("-o", "--out", "out", type=click.Path(path_type=Path), metavar="OUT", help="Write to OUT, else print.")
@_protocol
@_target
@json_option
def repair_(file: Path, out: Path | None, protocol: str, targets: tuple[str, ...], as_json: bool) -> int:
    """Write a transcript as its receiver takes it; FILE itself is left as it is.

    Prints the messages alone (a request body if it was given one); what was done is told on standard error. Nothing
    that is legal changes; results are moved to their calls, never made up: a call whose result is lost gets one that
    says so.
    """
    if out is not None and _same_file(file, out):
        raise Problem(USAGE, f"{render.one_line(out)} is the file itself, which stays as it is.", "Name another file.")
    mended = _mend(file, protocol, targets)
    text = render.to_json(mended.view, line=False)
    if out is None:
        render.write(sys.stdout, f"{text}\n")
    else:
        _write(out, f"{text}\n")
    _report(mended, out, as_json=as_json)
    return 0


def _mend(file: Path, protocol: str, targets: Sequence[str]) -> _Mended:
    shown = render.one_line(file)
    try:
        document = documents.read(_bytes(file))
    except NotATranscript as wrong:
        raise Problem(USAGE, f"{shown}: {render.one_line(wrong)}.", _FORM) from None
    if protocol == "auto":
        protocol = _of_targets(targets) or documents.detect(document)
    stored = document.body is not None and document.body.get("store") is not False
    before, lifted = _without_system(document, protocol)
    found = repair(before, receiver(protocol, tuple(targets), stored=stored))
    problems = (*document.problems, *lifted, *_shifted(found, len(document.messages) - len(before)))
    return _Mended(document, protocol, _view(document, found, len(lifted)), problems)


def _of_targets(targets: Sequence[str]) -> str:
    """Some receivers speak one protocol alone."""
    if "mistral" in targets or "deepseek-thinking" in targets:
        return "openai-chat"
    return "openai-responses" if "strict-adjacency" in targets else ""


def _without_system(document: documents.Document, protocol: str) -> tuple[list[Any], list[Remark]]:
    """In a request for Anthropic rules at the start belong into `system`: there is a place for them."""
    messages, body = document.messages, document.body
    if protocol != "anthropic" or body is None or not isinstance(body.get("system", ""), (str, list)):
        return messages, []
    count = 0
    while count < len(messages) and isinstance(messages[count], dict) and messages[count].get("role") == "system":
        if not isinstance(messages[count].get("content"), str):
            break
        count += 1
    said = "a message of the system at the start is written into the request's system"
    return messages[count:], [Remark("system_in_messages", number, said) for number in range(count)]


def _view(document: documents.Document, found: Repaired, lifted: int) -> Any:
    body = document.body
    if body is None:
        return found.messages
    changed: dict[str, Any] = {**body}
    if not (isinstance(body[document.key], str) and not found.notes):
        changed[document.key] = found.messages
    if lifted:
        words = [text for message in document.messages[:lifted] if (text := message["content"]).strip()]
        before = body.get("system", "")
        blocks = [{"type": "text", "text": text} for text in words]
        changed["system"] = (
            [*before, *blocks] if isinstance(before, list) else "\n\n".join(filter(None, [before, *words]))
        )
    return changed


def _shifted(found: Repaired, by: int) -> list[Remark]:
    return [Remark(note.code, note.index + by, note.message) for note in found.notes]


def _report(mended: _Mended, out: Path | None, *, as_json: bool) -> None:
    document = mended.document
    if as_json:
        report = {
            "protocol": mended.protocol,
            "shape": document.shape,
            "repairs": [{"code": one.code, "index": one.index, "message": one.message} for one in mended.problems],
            "remarks": [{"code": one.code, "index": one.index, "message": one.message} for one in document.remarks],
        }
        render.write(sys.stderr, f"{render.to_json(report, line=True)}\n")
        return
    for one in document.remarks:
        render.note(render.one_line(one.message))
    for line in render.table([(f"message {one.index}", one.code, one.message) for one in mended.problems]):
        render.note(line)
    count = len(mended.problems)
    where = f", written to {render.one_line(out)}" if out is not None else ""
    what = f"{count} {_plural('repair', count)}" if count else "Nothing to repair"
    render.note(f"{what}: {document.shape}, {mended.protocol}{where}.")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _bytes(file: Path) -> bytes:
    shown = render.one_line(file)
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(_LARGEST + 1)
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except OSError as error:
        raise Problem(USAGE, f"{shown} cannot be read: {error.strerror or error}.", "Name a readable file.") from None
    if len(data) > _LARGEST:
        raise Problem(USAGE, f"{shown} is larger than {_LARGEST} bytes.", "Cut it into parts.")
    return data


def _same_file(file: Path, out: Path) -> bool:
    try:
        return file.samefile(out)
    except OSError:
        return False


def _write(out: Path, text: str) -> None:
    """The whole file or none of it."""
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        reason = error.strerror or error
        raise Problem(FAILED, f"{render.one_line(out)} cannot be written: {reason}.", "Name another file.") from None
