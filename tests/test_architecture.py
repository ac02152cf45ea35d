"""The house rules a machine can check. docs/architecture.md says why they are there."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.config.load import builtin_policies
from harnessd.domain.failure import ErrorClass, Source
from harnessd.policy.language.facts import MODEL_CLASSES, TOOL_CLASSES
from harnessd.policy.retry import for_class

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "harnessd"
FILE_LINES = 400
FUNCTION_LINES = 50
MODULES_A_ROOM = 13
VAGUE_WORDS = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base", "misc"}
# The field's own terms that hold such a word: a service's base URL, and what systemd calls itself.
TERMS_OF_THE_FIELD = {"BaseUrl", "ServiceManager"}
KINDS = (
    *("assign", "retry", "fallback", "breaker", "limits", "budget", "loop", "tools", "compaction", "escalation"),
    *("notify", "retention", "chaos"),
)
# What the kinds share: the types of their values and the grammar of their conditions.
SHARED_BY_KINDS = {"values", "conditions"}
ADAPTERS = {"providers", "tools", "stores", "workspace", "notify", "simulator"}


def repository_files() -> list[Path]:
    """Return every file that is, or would be, committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPO, check=True, capture_output=True).stdout.decode().split("\0")
    return [REPO / name for name in listed if name and (REPO / name).is_file()]


def python_files(*under: str) -> list[Path]:
    """Return the repository's Python files, below the named folders if any are named."""
    roots = tuple(REPO / name for name in under)
    files = [path for path in repository_files() if path.suffix == ".py"]
    return [path for path in files if not roots or any(path.is_relative_to(root) for root in roots)]


def named(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), named(path))


def rooms() -> list[Path]:
    return sorted({path.parent for path in python_files("harnessd")})


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: Function) -> int:
    """Return the lines from `def` to the last one, without the docstring's."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


# --- size and names ---------------------------------------------------------------------------------------------------


def test_no_file_is_longer_than_a_reader_holds() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    too_long = {
        f"{named(path)}:{function.lineno} {function.name}": body_lines(function)
        for path in python_files()
        for function in functions(parse(path))
        if body_lines(function) > FUNCTION_LINES
    }
    assert too_long == {}


def test_no_room_holds_too_many_modules() -> None:
    crowded = {}
    for room in rooms():
        modules = {path.stem for path in room.glob("*.py")} - {"__init__"}
        if room == PACKAGE / "policy":
            modules -= SHARED_BY_KINDS
        if len(modules) > MODULES_A_ROOM:
            crowded[named(room)] = sorted(modules)
    assert crowded == {}


def test_names_say_what_is_inside() -> None:
    vague = [
        named(path)
        for path in python_files()
        if VAGUE_WORDS & set(re.split(r"[_/.]", named(path).lower().removesuffix(".py")))
    ]
    vague += [
        f"{named(path)}: class {node.name}"
        for path in python_files()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        and node.name not in TERMS_OF_THE_FIELD
        and VAGUE_WORDS & {word.lower() for word in re.findall(r"[A-Z][a-z0-9]*", node.name)}
    ]
    assert vague == []


def test_every_module_opens_with_a_sentence() -> None:
    wrong = []
    for path in python_files("harnessd", "benchmarks", "docs"):
        docstring = ast.get_docstring(parse(path)) or ""
        paragraph = docstring.split("\n\n")[0]
        if len(paragraph) < 15 or paragraph[-1] not in ".?":
            wrong.append(f"{named(path)}: {paragraph!r}")
    assert wrong == []


# --- floors -----------------------------------------------------------------------------------------------------------


def test_nobody_imports_upstairs() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_has_a_floor_and_every_floor_a_room() -> None:
    settings = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    floors = {room.strip() for layer in layers for room in layer.split("|")}
    built = {path.stem for path in PACKAGE.glob("*.py")} | {room.name for room in rooms() if room.parent == PACKAGE}
    assert built - {"__init__"} == floors


def imported(path: Path) -> set[str]:
    """Return the dotted names that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_only_the_composition_root_names_adapters() -> None:
    # Two groups of commands work offline on transcripts and raw answers, without a daemon to ask.
    allowed = re.compile(r"app|cli/(sessions?|polic(y|ies))(_\w+|/\w+)?")
    naming = []
    for path in python_files("harnessd"):
        inside = path.relative_to(PACKAGE).with_suffix("").as_posix()
        room = inside.split("/")[0]
        if allowed.fullmatch(inside):
            continue
        adapters = {name.split(".")[1] for name in imported(path) if re.match(r"harnessd\.\w+", name)} & ADAPTERS
        naming += [f"{named(path)} names {adapter}" for adapter in sorted(adapters - {room})]
    assert naming == []


def test_status_loads_nothing_heavy() -> None:
    program = (
        "import sys, harnessd.cli, harnessd.cli.client, harnessd.cli.render\n"
        "print(*sorted({'httpx', 'pydantic', 'yaml', 'asyncio', 'aiosqlite', 'watchdog', 'rich'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


# --- dangerous calls --------------------------------------------------------------------------------------------------


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(parse(path)) if isinstance(node, ast.Call))


BANNED_CALLS = re.compile(
    r"^(yaml\.(load|load_all|full_load|unsafe_load)|eval|exec|os\.system|os\.popen|tempfile\.mktemp)$|\.extractall$"
)
BANNED_MODULES = {"pickle", "marshal", "shelve", "dill", "cPickle"}


def test_nothing_reads_code_from_data() -> None:
    found = []
    for path in python_files("harnessd"):
        found += [f"{named(path)} imports {name}" for name in imported(path) if name.split(".")[0] in BANNED_MODULES]
        for call in calls(path):
            # Loaders that make plain values only are what everybody should use.
            safe = any(
                keyword.arg == "Loader" and "SafeLoader" in ast.unparse(keyword.value) for keyword in call.keywords
            )
            if BANNED_CALLS.search(ast.unparse(call.func)) and not safe:
                found.append(f"{named(path)}:{call.lineno} {ast.unparse(call.func)}")
            for keyword in call.keywords:
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                    found.append(f"{named(path)}:{call.lineno} shell={ast.unparse(keyword.value)}")
    assert found == []


OPENERS = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "copy", "copyfile", "copy2", "fdopen"}
DATABASE_PATH = re.compile(r"\b(db|database|wal|shm)(_path|_file)?\b|-wal|-shm|\.db\b")


def test_nobody_opens_the_database_but_sqlite() -> None:
    # Closing any descriptor of the file drops all of this process's POSIX locks on it: SQLite would write unlocked.
    found = []
    for path in python_files("harnessd"):
        for call in calls(path):
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if function in OPENERS and DATABASE_PATH.search(ast.unparse(call)):
                found.append(f"{named(path)}:{call.lineno} {ast.unparse(call)}")
    assert found == []


# --- what belongs together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_kind_is_whole_or_not_there(kind: str) -> None:
    wanted = {f"harnessd/policy/{kind}.py", f"policies/{kind}.yaml", f"tests/policy/test_{kind}.py"}
    built = {name for name in wanted if (REPO / name).is_file()}
    assert built in (set(), wanted), f"missing: {sorted(wanted - built)}"


def test_there_is_no_fourteenth_kind() -> None:
    assert {path.stem for path in (REPO / "policies").glob("*.yaml")} <= set(KINDS)


def test_every_error_class_has_an_owner_and_a_rule() -> None:
    policy = builtin_policies().policies["retry", "default"]
    sources: dict[Source, tuple[str, ...]] = {"model": MODEL_CLASSES, "tool": TOOL_CLASSES}
    known = {name for names in sources.values() for name in names}
    for source, names in sources.items():
        for name in names:
            settings = for_class(policy, source, ErrorClass(name))
            assert settings.do, f"{source} {name} has no ladder"
            assert getattr(getattr(policy.shape, source).classes, name) is not None, f"{source} {name} is not stated"
    # What is the agent's own fault, or ours, ends the task whatever the files say.
    for error_class in ErrorClass:
        if error_class.value not in known:
            assert for_class(policy, "agent", error_class).do == ("stop",), error_class


# --- what must not stand in the repository ----------------------------------------------------------------------------

# Put together here so that this file does not find itself.
PLACES = re.compile(
    "|".join([
        r"(?<![\w~.$}])/" + r"work/", r"(?<![\w~.$}])/" + r"root/", r"pypi\." + "org", r"files\." + "pythonhosted",
        r"deb\." + "debian", r"registry\." + "npmjs",
    ])
)  # fmt: skip


def test_the_repository_names_no_machine_and_no_registry() -> None:
    found = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{named(path)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if PLACES.search(line)
        ]
    assert found == []


def test_constraints_name_no_host() -> None:
    for path in (REPO / "constraints").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text, path.name
        assert "index-url" not in text, path.name


def test_constraints_pin_every_file_by_hash() -> None:
    for path in (REPO / "constraints").glob("*.txt"):
        requirements = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").replace("\\\n", " "))
        unpinned = [line.split()[0] for line in requirements if line.strip() and not re.search(r"==\S+.*sha256:", line)]
        assert unpinned == [], path.name


def test_the_development_set_contains_the_running_set() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==\S+", (REPO / "constraints" / name).read_text(encoding="utf-8"), re.MULTILINE))

    assert pins("run.txt") - pins("dev.txt") == set()
    assert pins("run.txt") - pins("bench.txt") == set()
