"""The documentation: generated parts are fresh, links lead somewhere, places named exist, every promise has a proof."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harnessd import cli

REPO = Path(__file__).resolve().parents[1]
DOCS = REPO / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(REPO.glob("*.md")), *sorted((REPO / "benchmarks").glob("*.md"))]


def test_generated_parts_are_fresh() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPO).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            dead.append(target)
    assert dead == []


def requirement_rows() -> list[list[str]]:
    lines = (DOCS / "requirements.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if re.match(r"\| R\d", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPO).as_posix())
def test_only_commands_that_exist_are_named(page: Path) -> None:
    tables = {"harnessd": cli.DAEMON, "harnessctl": cli.CLIENT}
    text = page.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```.*?^```$|`[^`\n]+`", text, re.MULTILINE | re.DOTALL))
    named = re.findall(r"(?:^|[`$/;&|( ])(harnessd|harnessctl) ([a-z][a-z-]+)\b(?!:)", code, re.MULTILINE)
    assert {(program, word) for program, word in named if word not in tables[program]} == set()


def test_every_promise_that_is_built_has_a_proof() -> None:
    rows = {row[0]: row for row in requirement_rows()}
    unproven = {number for number, row in rows.items() if "none yet" in row[-1]}
    assert unproven == {number for number, row in rows.items() if row[-2] == "not built yet"}


def test_every_promise_lives_somewhere() -> None:
    lost = [
        (row[0], place)
        for row in requirement_rows()
        for place in re.findall(r"`([\w/.]+)`", row[-2])
        if not (REPO / place).exists()
    ]
    assert lost == []


def test_tests_name_only_requirements_that_exist() -> None:
    known = {row[0] for row in requirement_rows()}
    named: set[str] = set()
    for path in (REPO / "tests").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            named |= set(re.findall(r"\bR\d\.\d+[a-z]?\b", line.partition("#")[2]))
    assert named - known - {"R2.5"} == set()


def test_glossary_is_sorted_and_says_each_word_once() -> None:
    words = re.findall(r"^\| ([a-z][a-z ]+) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words.remove("word")
    assert words == sorted(set(words))


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff reads the manual pages")
@pytest.mark.parametrize("program", ["harnessctl", "harnessd"])
def test_manual_pages_are_roff(program: str) -> None:
    page = DOCS / "man" / f"{program}.1"
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", str(page)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "EXIT STATUS" in re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
