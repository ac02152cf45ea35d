# noqa: INP001 - a script, not a package
"""Writes the generated parts of docs/ from the code, so that they cannot lie: `make docs`; `--check` only compares.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; a page that is generated as a whole says so in its
first line.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
REPO = DOCS.parent
PACKAGE = REPO / "harnessd"
sys.path.insert(0, str(REPO))

PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# --- the tree ---------------------------------------------------------------------------------------------------------


def first_sentence(path: Path) -> str:
    """Return what a module says it is: the first line of its docstring, without the name it may open with."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    line = " ".join(paragraph.split())
    sentence = re.split(r"(?<=[a-z)`])\. (?=[A-Z])", line)[0]
    return sentence.rstrip(".")


def floors() -> list[list[str]]:
    """Return the rooms by floor, top first, as import-linter knows them."""
    settings = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[room.strip() for room in layer.split("|")] for layer in layers]


def room_lines(folder: Path, depth: int) -> Iterator[str]:
    """Yield the lines of one room: its modules, then the rooms inside it."""
    indent = "  " * depth
    for path in sorted(folder.glob("*.py")):
        if path.stem != "__init__":
            yield f"{indent}{path.name:<{28 - len(indent)}} {first_sentence(path)}"
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield f"{indent}{inner.name + '/':<{28 - len(indent)}} {first_sentence(inner / '__init__.py')}"
        yield from room_lines(inner, depth + 1)


def tree() -> str:
    """Return the package as a tree, floor by floor from the bottom, each module with its first sentence."""
    lines = [f"{'harnessd/':<28} {first_sentence(PACKAGE / '__init__.py')}"]
    for number, floor in enumerate(reversed(floors())):
        for room in floor:
            folder, module = PACKAGE / room, PACKAGE / f"{room}.py"
            if module.is_file():
                lines.append(f"  {module.name:<26} floor {number}. {first_sentence(module)}")
            elif (folder / "__init__.py").is_file():
                lines.append(f"  {room + '/':<26} floor {number}. {first_sentence(folder / '__init__.py')}")
                lines += room_lines(folder, 2)
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"


# --- the state machines -----------------------------------------------------------------------------------------------


def diagram(arrows: Iterable[tuple[str, str, str]], start: str) -> str:
    """Return a mermaid state diagram; arrows between the same two states share one line."""
    labels: dict[tuple[str, str], list[str]] = {}
    for source, label, target in arrows:
        labels.setdefault((source, target), []).append(label)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in labels.items()]
    return "\n".join([*lines, "```", ""])


def task_states() -> str:
    """Return the diagram of TASK_TRANSITIONS."""
    from harnessd.domain.task import TASK_TRANSITIONS, TaskState  # noqa: PLC0415 - only this part needs the package

    arrows = [
        (state.value, verb.value, target.value)
        for state, moves in TASK_TRANSITIONS.items()
        for verb, target in moves.items()
    ]
    return diagram(arrows, TaskState.QUEUED.value)


def run_states() -> str:
    """Return the diagram of the engine's TRANSITIONS; events that leave a state as it is are left out."""
    from harnessd.engine.protocol import TRANSITIONS, RunState  # noqa: PLC0415 - as above

    arrows = [
        (state.value, event.__name__, target.value)
        for state, moves in TRANSITIONS.items()
        for event, targets in moves.items()
        for target in sorted(targets)
        if state is not RunState.OVER and targets != frozenset({state})
    ]
    return diagram(arrows, RunState.NEW.value)


# --- requirements and their tests -------------------------------------------------------------------------------------

NUMBER = re.compile(r"\bR\d+\.\d+[a-z]?\b")


def proofs() -> dict[str, set[str]]:
    """Return number -> the test files whose comments or docstrings name it."""
    found: dict[str, set[str]] = {}
    for path in sorted((REPO / "tests").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            comment = line.partition("#")[2] or (line if line.lstrip().startswith('"""') else "")
            for number in NUMBER.findall(comment):
                found.setdefault(number, set()).add(path.relative_to(REPO).as_posix())
    return found


def requirements(page: str) -> str:
    """Return the page with the last column of each requirement's row filled with the tests that prove it."""
    by_number = proofs()

    def row(line: str) -> str:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        tests = sorted(by_number.get(cells[0], ()))
        cells[-1] = ", ".join(f"[{name.removeprefix('tests/')}](../{name})" for name in tests) or "**none yet**"
        return "| " + " | ".join(cells) + " |"

    lines = page.splitlines()
    return "\n".join(row(line) if re.match(r"\| R\d", line) else line for line in lines) + "\n"


# --- commands ---------------------------------------------------------------------------------------------------------


def command_lines(command: Any, context: Any, level: int) -> Iterator[str]:
    """Yield what `--help` says of a command, and then of the commands below it."""
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
    if not hasattr(command, "list_commands"):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            below = type(context)(inner, parent=context, info_name=name, terminal_width=96, max_content_width=96)
            yield from command_lines(inner, below, min(level + 1, 4))


def commands() -> str:
    """Return the help of both programs, command by command."""
    import click  # noqa: PLC0415 - only this part needs it

    from harnessd import cli  # noqa: PLC0415 - as above

    lines: list[str] = []
    for table in (cli.daemon_table(), cli.client_table()):
        context = click.Context(table, info_name=table.name, terminal_width=96, max_content_width=96)
        lines += command_lines(table, context, 3)
    return "\n".join(lines)


# --- keys of the configuration ----------------------------------------------------------------------------------------


def key_table(rows: Iterable[tuple[str, str, str, str, str]]) -> str:
    """Return keys as a table; bars inside a cell are escaped."""
    lines = ["| key | type | default | bounds | meaning |", "|---|---|---|---|---|"]
    for key, *cells in rows:
        shown = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        default = f"`{shown[1]}`" if shown[1] and shown[1] != "required" else shown[1]
        lines.append(f"| `{key}` | {shown[0]} | {default} | {shown[2]} | {shown[3]} |")
    return "\n".join(lines) + "\n"


def policies() -> str:
    """Return every key of every kind, as `harnessctl policy explain` tells it."""
    from harnessd.config.load import builtin_policies  # noqa: PLC0415 - only this part needs it
    from harnessd.policy.assembly.kinds import KINDS  # noqa: PLC0415
    from harnessd.policy.reference.explain import keys  # noqa: PLC0415

    shipped = builtin_policies().policies
    parts = []
    for name, kind in KINDS.items():
        scope = "one for the daemon" if kind.daemon else "chosen for each task"
        about = (kind.shape.__doc__ or "").strip().splitlines()[0]
        rows = [
            (key.path, key.type, key.default, key.bounds, key.meaning) for key in keys(name, shipped[name, "default"])
        ]
        parts.append(f"### {name}\n\n{about} ({scope.capitalize()}.)\n\n{key_table(rows)}")
    return "\n".join(parts)


def setting_rows(shape: Any, prefix: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the keys of a shape of harness.yaml, outermost first."""
    from harnessd.cli.configuration.values import as_written  # noqa: PLC0415 - as above
    from harnessd.policy.reference.explain import below, reader_of, type_name  # noqa: PLC0415 - as above

    for name, field in shape.model_fields.items():
        inner, suffix = below(field.annotation)
        reader = reader_of(field)
        path = f"{prefix}{field.alias or name}"
        if inner is not None and reader is None:
            yield from setting_rows(inner, f"{path}{suffix}.")
            continue
        kind = type_name(reader) if reader else "map"
        bounds = reader.bounds.removeprefix("write ") if reader else ""
        default = "required" if field.is_required() else as_written(field.default, kind)
        yield path, kind, default, bounds, field.description or ""


def settings() -> str:
    """Return every key of harness.yaml."""
    from harnessd.config.settings import Settings  # noqa: PLC0415 - only this part needs it

    return key_table(setting_rows(Settings, ""))


# --- pages ------------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[], str]] = {
    "tree": tree,
    "task-states": task_states,
    "run-states": run_states,
    "commands": commands,
    "policies": policies,
    "settings": settings,
}


def schemas() -> Iterator[tuple[Path, str]]:
    """Yield the JSON Schema of each policy kind, for editors: the first line of each shipped file points to it."""
    from harnessd.policy.assembly.kinds import ALL_KINDS  # noqa: PLC0415 - the package is found by the line above
    from harnessd.policy.reference.schema import schema  # noqa: PLC0415

    for kind in ALL_KINDS:
        yield DOCS / "schemas" / f"{kind}.json", json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def manuals() -> Iterator[tuple[Path, str]]:
    """Yield the manual page of each program; the wheel brings them to share/man/man1."""
    import click  # noqa: PLC0415 - as above
    import manual  # noqa: PLC0415 - beside this script

    from harnessd import __version__, cli  # noqa: PLC0415 - as above

    statuses = (DOCS / "cli.md").read_text(encoding="utf-8").partition("## Exit status")[2].partition("\n## ")[0]
    for table in (cli.daemon_table(), cli.client_table()):
        context = click.Context(table, info_name=table.name, terminal_width=96, max_content_width=96)
        yield DOCS / "man" / f"{table.name}.1", manual.page(table, context, statuses, __version__)


def with_parts(page: str) -> str:
    """Return the page with each of its generated parts written again."""
    return PART.sub(lambda part: part[1] + PARTS[part["name"]]() + part[3], page)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page that is generated in part or as a whole, with what it should hold."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path.name == "requirements.md":
            yield path, requirements(text)
        elif PART.search(text):
            yield path, with_parts(text)
    yield from schemas()
    yield from manuals()


def main() -> int:
    """Write what is stale, or with --check only say so; exit status 1 if something was stale and not written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in pages() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(REPO)}: {'stale: run make docs' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
