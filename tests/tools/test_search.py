"""Search: globs, listings and lines, always bounded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harnessd.domain.failure import ErrorClass
from harnessd.tools.search import glob_matches, matcher

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


@pytest.fixture
def tree(bench: Bench) -> Path:
    for name in ("README.md", "src/app.py", "src/deep/er/test_app.py", "src/deep/app.js", ".git/config", ".hidden"):
        path = bench.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"name = {name}\nTODO: nothing\n")
    (bench.workspace / "link").symlink_to("src")
    return bench.workspace


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "src/deep/app.py", True),
        ("app.?s", "app.js", True),
        ("[ab]*.py", "src/app.py", True),
        ("src/*.py", "src/app.py", True),
        ("src/*.py", "src/deep/app.py", False),
        ("src/**/*.py", "src/app.py", True),
        ("src/**/*.py", "src/a/b/c/app.py", True),
        ("**/app.py", "app.py", True),
        ("src/**", "src/a/b", True),
        ("src/**", "other/a", False),
        ("**/er/**/x", "a/er/x", True),
        ("./src/app.py", "src/app.py", True),
    ],
)
def test_globs(pattern: str, path: str, fits: bool) -> None:
    assert glob_matches(pattern, path) is fits


def test_a_hostile_glob_is_no_trap() -> None:
    started = time.monotonic()
    assert not glob_matches("**/a*" * 30 + "/z", "a/" * 200 + "y")
    assert not glob_matches("*a" * 30 + "b", "a" * 200)
    assert time.monotonic() - started < 1


async def test_a_tree_is_listed_top_folders_first(bench: Bench, tree: Path) -> None:
    text = (await bench.done("list_files")).text
    assert text.splitlines()[:6] == [".git/", ".hidden", "README.md", "link -> src", "src/", "src/app.py"]
    assert ".git/config" not in text
    assert "src/deep/er/test_app.py" in text
    assert "link/app.py" not in text
    assert (await bench.done("list_files", path="src/deep")).text.splitlines()[0] == "src/deep/app.js"
    assert (await bench.done("list_files", path="README.md")).text == "README.md"
    assert (await bench.done("list_files", path="")).text == text


async def test_a_pattern_is_of_the_path_below_the_folder(bench: Bench, tree: Path) -> None:
    assert (await bench.done("list_files", pattern="*.py")).text == "src/app.py\nsrc/deep/er/test_app.py"
    assert (await bench.done("list_files", path="src", pattern="deep/*")).text == "src/deep/app.js\nsrc/deep/er/"
    assert (await bench.done("list_files", pattern="*.rs")).text == "(nothing)"


async def test_a_large_tree_is_cut_and_says_so(bench: Bench) -> None:
    for number in range(1100):
        (bench.workspace / f"file_{number:04d}").touch()
    text = (await bench.done("list_files")).text
    assert "file_0999\n[cut after 1000 entries" in text
    small = (await bench.done("list_files", bench.context(output_max=2048))).text
    assert len(small.encode()) <= 2048


async def test_lines_are_found_with_their_place(bench: Bench, tree: Path) -> None:
    text = (await bench.done("search_files", pattern=r"name = .*app\.py$")).text
    assert text.splitlines() == [
        "src/app.py:1: name = src/app.py",
        "src/deep/er/test_app.py:1: name = src/deep/er/test_app.py",
    ]
    assert (
        await bench.done("search_files", pattern="(?i)todo", path="src/app.py")
    ).text == "src/app.py:2: TODO: nothing"
    assert "No line matches (2 files searched)" in (await bench.done("search_files", pattern="X", path="src/deep")).text


async def test_matches_are_bounded(bench: Bench) -> None:
    (bench.workspace / "many").write_text("match " + "x" * 1000 + "\n" + "match\n" * 1000)
    text = (await bench.done("search_files", pattern="match")).text
    assert "[cut after 200 matches" in text
    assert max(map(len, text.splitlines())) < 400
    small = (await bench.done("search_files", bench.context(output_max=2048), pattern="match")).text
    assert len(small.encode()) <= 2048


async def test_binary_and_large_files_are_left_out_and_large_ones_named(bench: Bench) -> None:
    (bench.workspace / "binary").write_bytes(b"needle\0needle")
    with (bench.workspace / "large").open("wb") as file:
        file.write(b"needle")
        file.truncate(11 * 2**20)
    text = (await bench.done("search_files", pattern="needle")).text
    assert "No line matches" in text
    assert "1 files over 10 MiB" in text


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*a){20}", r"^(?=.*b)(a+)+$", r"(a*)*\1b"])
def test_no_pattern_is_catastrophic(pattern: str) -> None:
    fits = matcher(pattern)
    started = time.monotonic()
    if fits is not None:
        for _ in range(20):
            fits.line("a" * 5000 + "!")
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("pattern", ["(", "a{3", "[z-a]", "*x", "a{1000}{1000}{1000}"])
async def test_a_pattern_that_cannot_be_used_is_refused_or_taken_by_its_letters(bench: Bench, pattern: str) -> None:
    (bench.workspace / "x").write_text("nothing\n")
    outcome = await bench.call("search_files", pattern=pattern)
    hint = getattr(outcome, "hint", None)
    assert hint is ErrorClass.INVALID_ARGUMENTS or "No line matches" in getattr(outcome, "text", "")


def test_look_around_and_classes_work() -> None:
    for pattern, line in (
        (r"^int\s", "int x"),
        (r"x$", "int x"),
        (r"foo(?!bar)", "foobaz"),
        (r"\bint\s+main\b", "int  main()"),
        (r"(\w)\1", "aab"),
        (r"\$\{x\}", "${x}"),
    ):
        fits = matcher(pattern)
        assert fits is not None
        assert fits.line(line)
        assert fits.block(f"before\n{line}\nafter")


async def test_what_a_line_alone_would_fit_is_found_in_any_place_of_a_large_file(bench: Bench) -> None:
    lines = [f"line {number}" for number in range(60_000)]
    lines[0], lines[30_000], lines[-1] = "first needle", "a needle in the middle", "needle last"
    (bench.workspace / "unix").write_text("\n".join(lines))
    (bench.workspace / "dos").write_bytes("\r\n".join(lines).encode() + b"\r\n")
    for pattern, numbers in (
        ("needle", [1, 30001, 60000]),
        ("^needle", [60000]),
        ("needle$", [1]),
        (r"\Aneedle last\z", [60000]),
        (r"needle(?! )", [1]),
        (r"(?<=a )needle", [30001]),
        ("^needle|in the", [30001, 60000]),
    ):
        found = (await bench.done("search_files", pattern=pattern)).text.splitlines()
        expected = [f"{name}:{number}" for name in ("dos", "unix") for number in numbers]
        assert [line.rpartition(":")[0] for line in found] == expected, pattern
