"""policy edit: copy, edit, check, compare, replace in one step; nothing that was written is ever lost."""

from __future__ import annotations

import os
import pty
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.policy.conftest import LONG, Ctl, Place

GOOD = "kind: budget\nname: long\nlimits: {tool_calls: 170}\n"
BAD = "kind: budget\nname: long\nlimits: {tool_cals: 170}\n"


@pytest.fixture
def editor(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An editor that writes the next of the texts beside it each time it is called."""
    texts = place.folder / "texts"
    texts.mkdir()
    script = place.folder / "editor"
    script.write_text(
        '#!/bin/sh\nd=$(dirname "$0")/texts\nn=$(ls "$d" | sort | head -n 1)\n[ -n "$n" ] || exit 0\n'
        'cp "$1" "$(dirname "$0")/opened"\n[ "$n" = 9 ] && exit 3\nmv "$d/$n" "$1"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", f"'{script}'")
    return texts


def drafts(place: Place) -> list[Path]:
    return sorted(place.policies.glob(".*draft*"))


def test_the_file_is_replaced_in_one_step(place: Place, ctl: Ctl, editor: Path) -> None:
    (editor / "1").write_text(GOOD)
    file = place.policies / "long.yaml"
    file.chmod(0o640)
    before = file.stat().st_ino
    done = ctl("edit", "budget/long", "--yes")
    assert done.code == 0, done
    assert (place.folder / "opened").read_text() == LONG
    assert "limits.tool_calls  150 -> 170" in done.out
    assert "policies/long.yaml was replaced." in done.out
    assert "from its next start" in done.err  # no daemon answers
    assert file.read_text() == GOOD
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_ino != before) == (0o640, True)
    assert drafts(place) == []


def test_nothing_changed_is_said(place: Place, ctl: Ctl, editor: Path) -> None:
    del editor
    done = ctl("edit", "budget/long")
    assert (done.code, done.out) == (0, "Nothing was changed in policies/long.yaml.\n")
    assert drafts(place) == []


def test_a_new_file_is_made_where_none_holds_the_policy(place: Place, ctl: Ctl, editor: Path) -> None:
    (editor / "1").write_text("kind: retry\nmodel: {retries: 3}\n")
    done = ctl("edit", "retry", "--yes")
    assert done.code == 0, done
    assert "kind: retry" in (place.folder / "opened").read_text()
    assert (place.policies / "retry.yaml").read_text().endswith("{retries: 3}\n")
    (editor / "1").write_text("kind: budget\nname: short\nlimits: {tool_calls: 3}\n")
    assert ctl("edit", "budget/short", "--yes").code == 0
    assert "name: short" in (place.folder / "opened").read_text()
    assert (place.policies / "budget-short.yaml").exists()
    assert (place.policies / "long.yaml").read_text() == LONG


def test_an_untouched_new_file_is_not_made(place: Place, ctl: Ctl, editor: Path) -> None:
    del editor
    assert ctl("edit", "retry").code == 0
    assert sorted(path.name for path in place.policies.iterdir()) == ["long.yaml"]


def test_what_is_not_valid_is_kept_and_taken_up_again(place: Place, ctl: Ctl, editor: Path) -> None:
    (editor / "1").write_text(BAD)
    done = ctl("edit", "budget/long", "--yes")
    assert done.code == 1
    assert done.out.startswith('policies/long.yaml:3:10: unknown key "tool_cals"')
    (draft,) = drafts(place)
    assert draft.read_text() == BAD
    assert (place.policies / "long.yaml").read_text() == LONG
    assert f"harnessctl policy edit budget/long --from {draft}" in done.err
    assert ctl("check").code == 0  # the daemon does not read a draft
    (editor / "1").write_text(GOOD)
    done = ctl("edit", "budget/long", "--from", str(draft), "--yes")
    assert done.code == 0, done
    assert (place.folder / "opened").read_text() == BAD
    assert (place.policies / "long.yaml").read_text() == GOOD
    assert drafts(place) == []


def test_without_yes_and_without_a_person_the_draft_is_kept(place: Place, ctl: Ctl, editor: Path) -> None:
    (editor / "1").write_text(GOOD)
    done = ctl("edit", "budget/long")
    assert done.code == 5
    assert "--yes" in done.err
    assert (place.policies / "long.yaml").read_text() == LONG
    assert drafts(place)[0].read_text() == GOOD


def test_somebody_elses_change_is_not_overwritten(
    place: Place, ctl: Ctl, editor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del editor
    other = place.folder / "both"
    other.write_text(
        "#!/bin/sh\nprintf 'kind: budget\\nname: long\\nlimits: {tool_calls: 170}\\n' > \"$1\"\n"
        "echo '# theirs' >> policies/long.yaml\n"
    )
    other.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(other))
    done = ctl("edit", "budget/long", "--yes")
    assert done.code == 5
    assert "somebody else" in done.err
    assert (place.policies / "long.yaml").read_text() == f"{LONG}# theirs\n"
    assert drafts(place)[0].read_text() == GOOD


def test_one_of_two_broken_files_can_be_mended(place: Place, ctl: Ctl, editor: Path) -> None:
    # A8
    place.write("long.yaml", BAD)
    place.write("retry.yaml", "kind: retry\nmodel: {retrys: 3}\n")
    (editor / "1").write_text(GOOD)
    done = ctl("edit", "budget/long", "--yes")
    assert done.code == 0, done
    assert "stays invalid after this: 1 problem in 1 file, none of them in policies/long.yaml" in done.err
    assert (place.policies / "long.yaml").read_text() == GOOD


def test_an_editor_that_fails_changes_nothing(
    place: Place, ctl: Ctl, editor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (editor / "9").touch()
    done = ctl("edit", "budget/long", "--yes")
    assert (done.code, done.out) == (1, "")
    assert "ended with 3" in done.err
    for words in ("/no/such/editor", "", "'"):
        monkeypatch.setenv("EDITOR", words)
        monkeypatch.setenv("PATH", str(place.folder))  # so that vi is not found either
        assert ctl("edit", "budget/long", "--yes").code == 2
    assert (place.policies / "long.yaml").read_text() == LONG
    assert drafts(place) == []


def test_what_cannot_be_edited(place: Place, ctl: Ctl, editor: Path) -> None:
    del editor
    assert ctl("edit", "bugdet").code == 2
    assert ctl("edit", "limits/mine").code == 2
    for name in ("Not A Name", "../../outside", "\x1b[2J"):
        done = ctl("edit", f"budget/{name}")
        assert (done.code, "\x1b" in done.err) == (2, False)
    assert ctl("edit", "budget/long", "--from", "no-such-draft").code == 4
    (place.policies / "long.yaml").unlink()
    place.policies.rmdir()
    place.policies.write_text("no folder")
    assert ctl("edit", "budget").code == 5


def test_a_linked_file_stays_a_link(place: Place, ctl: Ctl, editor: Path) -> None:
    release = place.folder / "release"
    release.mkdir()
    (place.policies / "long.yaml").rename(release / "long.yaml")
    (place.policies / "long.yaml").symlink_to("../release/long.yaml")
    (editor / "1").write_text(GOOD)
    assert ctl("edit", "budget/long", "--yes").code == 0
    assert (place.policies / "long.yaml").is_symlink()
    assert (release / "long.yaml").read_text() == GOOD


def test_a_person_is_asked(place: Place, editor: Path) -> None:
    """On a terminal: not valid, edited again, shown, confirmed."""
    (editor / "1").write_text(BAD)
    (editor / "2").write_text(GOOD)
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})\n"
    program += "from harnessd.cli import harnessctl; harnessctl()"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "policy", "edit", "budget/long"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=place.folder, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    try:
        seen = expect(ours, "[e] edit again")
        assert "tool_cals" in seen
        os.write(ours, b"x\n")
        expect(ours, "[e] edit again")
        os.write(ours, b"e\n")
        seen = expect(ours, "[y] yes")
        assert "150 -> 170" in seen
        os.write(ours, b"y\n")
        assert "was replaced" in expect(ours, "next start")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert (place.policies / "long.yaml").read_text() == GOOD
    assert drafts(place) == []


def expect(terminal: int, words: str) -> str:
    """Read from a terminal until words are seen."""
    seen, until = "", time.monotonic() + 40
    while words not in seen:
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode()
    return seen
