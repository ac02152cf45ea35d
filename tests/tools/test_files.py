"""Files: what a model reads, writes and edits, and the words it gets when that cannot be."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from typing import TYPE_CHECKING

import pytest

from harnessd.domain.failure import ErrorClass

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


async def test_a_text_is_read_as_it_is(bench: Bench) -> None:
    (bench.workspace / "a.txt").write_bytes("one\r\ntwo ü\n\tthree".encode())
    assert (await bench.done("read_file", path="a.txt")).text == "one\r\ntwo ü\n\tthree"
    assert (await bench.done("read_file", path=str(bench.workspace / "a.txt"))).text.startswith("one")
    (bench.workspace / "empty").touch()
    assert (await bench.done("read_file", path="empty")).text == "[the file is empty]"


async def test_lines_are_counted_from_one_and_reading_goes_on_where_it_was_cut(bench: Bench) -> None:
    (bench.workspace / "long").write_text("".join(f"line {number}\n" for number in range(1, 2001)))
    part = await bench.done("read_file", path="long", offset=3, limit=2)
    assert part.text.startswith("line 3\nline 4\n\n[cut: ")
    collected, offset = "", 1
    for _ in range(20):
        piece = await bench.done("read_file", bench.context(output_max=4096), path="long", offset=offset)
        assert len(piece.text.encode()) <= 4096
        text, cut, note = piece.text.partition("\n[cut: ")
        collected += text
        if not cut:
            break
        offset = int(note.rpartition(" ")[2].rstrip("]"))
    assert collected == (bench.workspace / "long").read_text()
    failure = await bench.failed("read_file", path="long", offset=5000)
    assert "only 2000 lines" in failure.message


async def test_one_endless_line_is_cut_within_the_bound(bench: Bench) -> None:
    (bench.workspace / "line").write_text("ä" * 200_000)
    outcome = await bench.done("read_file", bench.context(output_max=4096), path="line")
    assert len(outcome.text.encode()) <= 4096
    assert outcome.text.startswith("äää")
    assert "[cut within line 1," in outcome.text
    assert "not UTF-8" not in outcome.text


async def test_bytes_that_are_no_text_are_told(bench: Bench) -> None:
    (bench.workspace / "latin").write_bytes(b"caf\xe9\n")
    assert "caf\ufffd\n\n[not UTF-8" in (await bench.done("read_file", path="latin")).text
    (bench.workspace / "binary").write_bytes(b"\x7fELF\0\0")
    failure = await bench.failed("read_file", path="binary")
    assert (failure.hint, "binary file (6 bytes)" in failure.message) == (ErrorClass.EXECUTION_FAILED, True)


async def test_a_missing_file_comes_with_names_that_may_be_meant(bench: Bench) -> None:
    # R2.1
    (bench.workspace / "src").mkdir()
    (bench.workspace / "src" / "app.py").touch()
    failure = await bench.failed("read_file", path="app.py")
    assert failure.message == "app.py: there is no such file"
    assert failure.hint is ErrorClass.EXECUTION_FAILED
    assert failure.advice == "Did you mean src/app.py?"
    assert (await bench.failed("read_file", path="src/apq.py")).advice == "Did you mean src/app.py?"
    assert "list_files" in (await bench.failed("read_file", path="something/else.c")).advice


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "out/secret", "magic", "src/../../secret"])
async def test_no_tool_reaches_out_of_the_workspace(bench: Bench, path: str) -> None:
    # security/path-symlink-write-escape
    outside = bench.workspace.parent
    (outside / "secret").write_text("CANARY")
    (bench.workspace / "out").symlink_to(outside)
    (bench.workspace / "magic").symlink_to("/proc/self/cwd")
    (bench.workspace / "src").mkdir()
    calls = (
        ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": "x"}),
        ("edit_file", {"path": path, "old": "CANARY", "new": "x"}),
        ("list_files", {"path": path}),
        ("search_files", {"path": path, "pattern": "CANARY"}),
    )
    for tool, arguments in calls:
        failure = await bench.failed(tool, None, **arguments)
        assert failure.hint is ErrorClass.PERMISSION_DENIED
        assert failure.message == f"{path}: the path leaves the workspace"
        assert str(outside) not in failure.message + failure.advice
    assert (outside / "secret").read_text() == "CANARY"
    found = await bench.done("search_files", pattern="CANARY")
    assert found.text.startswith("No line matches")
    assert str(outside) not in (await bench.done("list_files")).text


async def test_a_pipe_is_refused_at_once(bench: Bench) -> None:
    os.mkfifo(bench.workspace / "pipe")
    async with asyncio.timeout(2):
        for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("search_files", {"pattern": "x"})):
            failure = await bench.failed(tool, None, path="pipe", **more)
            assert "pipe, socket or device" in failure.message


async def test_a_folder_is_no_file(bench: Bench) -> None:
    (bench.workspace / "src").mkdir()
    failure = await bench.failed("read_file", path="src")
    assert "it is a folder" in failure.message
    assert "list_files" in failure.advice


async def test_writing_creates_replaces_and_says_which(bench: Bench) -> None:
    outcome = await bench.done("write_file", path="a/b/c.sh", content="one\n")
    assert outcome.text == "Created a/b/c.sh (4 bytes)."
    (bench.workspace / "a/b/c.sh").chmod(0o755)
    outcome = await bench.done("write_file", path="./a//b/c.sh", content="zwei ü")
    assert outcome.text == "Replaced a/b/c.sh (7 bytes)."
    assert (bench.workspace / "a/b/c.sh").read_text() == "zwei ü"
    assert stat.S_IMODE((bench.workspace / "a/b/c.sh").stat().st_mode) == 0o755


async def test_a_lone_surrogate_is_written_as_a_replacement_character(bench: Bench) -> None:  # j11
    await bench.done("write_file", path="x", content="ok \ud83c done \U0001f378")
    assert (bench.workspace / "x").read_text() == "ok \ufffd done \U0001f378"


async def test_nul_characters_are_written_as_they_are(bench: Bench) -> None:
    await bench.done("write_file", path="x", content="a\0ü")
    assert (bench.workspace / "x").read_text() == "a\0ü"


async def test_a_cut_call_writes_nothing(bench: Bench) -> None:  # c20
    failure = await bench.failed("write_file", path="x")
    assert (failure.hint, failure.message) == (ErrorClass.INVALID_ARGUMENTS, "content: missing")
    assert list(bench.workspace.iterdir()) == []


async def test_an_edit_replaces_exactly_what_was_named(bench: Bench) -> None:
    (bench.workspace / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 1\r\n")
    outcome = await bench.done("edit_file", path="a.py", old="y = 1", new="y = 2")
    assert outcome.text == "Edited a.py at line 2."
    assert (bench.workspace / "a.py").read_bytes() == b"\xef\xbb\xbfx = 1\r\ny = 2\r\n"
    await bench.done("edit_file", path="a.py", old=" = ", new="=", all=True)
    assert (bench.workspace / "a.py").read_bytes() == b"\xef\xbb\xbfx=1\r\ny=2\r\n"


async def test_an_edit_that_is_not_clear_changes_nothing_and_says_why(bench: Bench) -> None:
    text = "def one():\n    return 1\n\ndef two():\n    return 1\n"
    (bench.workspace / "a.py").write_text(text)
    many = await bench.failed("edit_file", path="a.py", old="    return 1", new="    return 2")
    assert "2 times (lines 2, 5)" in many.message
    none = await bench.failed("edit_file", path="a.py", old="def one( ):", new="def uno():")
    assert "does not stand in the file" in none.message
    assert "1: def one():\n2:     return 1" in none.advice
    same = await bench.failed("edit_file", path="a.py", old="one", new="one")
    assert "are the same" in same.message
    (bench.workspace / "crlf").write_bytes(b"a\r\nb\r\n")
    assert "CRLF" in (await bench.failed("edit_file", path="crlf", old="a\nb", new="c")).advice
    (bench.workspace / "latin").write_bytes(b"caf\xe9")
    assert "not UTF-8 (byte 3)" in (await bench.failed("edit_file", path="latin", old="caf", new="x")).message
    assert (bench.workspace / "a.py").read_text() == text


async def test_an_edit_of_a_huge_line_of_nonsense_comes_back_soon(bench: Bench) -> None:
    (bench.workspace / "big").write_text("\n".join(f"value_{number} = compute({number})" for number in range(100_000)))
    started = time.monotonic()
    failure = await bench.failed("edit_file", path="big", old="valve_777 == compute", new="x")
    assert time.monotonic() - started < 5
    assert len(failure.advice) < 2000


async def test_files_never_block_the_loop(bench: Bench) -> None:
    for number in range(300):
        (bench.workspace / f"f{number}").write_text("word\n" * 20_000)
    gaps, last = [], time.monotonic()
    searching = asyncio.create_task(bench.done("search_files", pattern="nothing like this"))
    while not searching.done():
        await asyncio.sleep(0.005)
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    assert (await searching).facts["files"] == 300
    assert max(gaps) < 1


async def test_a_cancelled_search_stops_its_thread(bench: Bench) -> None:
    for number in range(200):
        (bench.workspace / f"f{number}").write_text("word\n" * 50_000)
    searching = asyncio.create_task(bench.done("search_files", pattern="nothing like this"))
    await asyncio.sleep(0.05)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    started = time.process_time()
    await asyncio.sleep(0.2)
    assert time.process_time() - started < 0.1  # nobody goes on searching


async def test_a_cancelled_write_is_done_or_never_comes(bench: Bench) -> None:
    content = "x" * 30_000_000
    for steps in range(6):
        writing = asyncio.create_task(bench.done("write_file", path=f"f{steps}", content=content))
        for _ in range(steps):
            await asyncio.sleep(0.002)
        writing.cancel()
        await asyncio.wait({writing})
        before = sorted(path.name for path in bench.workspace.iterdir())
        await asyncio.sleep(0.1)
        assert sorted(path.name for path in bench.workspace.iterdir()) == before
        assert not [name for name in before if name.startswith(".harnessd")]
