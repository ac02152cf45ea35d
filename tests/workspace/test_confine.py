"""Confine: no path leads out of a workspace, whichever way it is opened."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harnessd.workspace.confine import Confined, Open, confine, kernel_offers_openat2, open_beneath, walk_beneath

needs_openat2 = pytest.mark.skipif(not kernel_offers_openat2(), reason="this kernel or its filter refuses openat2")


@pytest.fixture(params=[pytest.param(open_beneath, marks=needs_openat2), walk_beneath], ids=["openat2", "walk"])
def open_(request: pytest.FixtureRequest) -> Open:
    chosen: Open = request.param
    return chosen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "task"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "app.py").write_text("app")
    (tmp_path / "task-evil").mkdir()
    (tmp_path / "task-evil" / "x").write_text("evil")
    (tmp_path / "secret").write_text("secret")
    return root


@pytest.fixture
def confined(root: Path, open_: Open) -> Iterator[Confined]:
    with Confined(str(root), open_) as confined:
        yield confined


def read(confined: Confined, path: str) -> str:
    with os.fdopen(confined.open_read(path)) as file:
        return file.read()


def refusal(act: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:
        act()
    return caught.value.errno


@pytest.mark.parametrize(
    "path",
    [
        "src/app.py",
        "./src//app.py",
        "src/deep/../app.py",
        "src/../src/app.py",
        "{root}/src/app.py",
        "/{root}//src/app.py",
    ],
)
def test_what_lies_inside_is_reached(confined: Confined, root: Path, path: str) -> None:
    assert read(confined, path.format(root=root)) == "app"


ESCAPES = [
    "../task-evil/x",
    "src/../../task-evil/x",
    "{root}-evil/x",
    "{root}/../task-evil/x",
    "{root}/./../../etc/passwd",
    "/{root}/../x",
    "/etc/passwd",
    "/proc/self/root/etc/passwd",
    "..",
    "src/../..",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_dots_and_siblings_do_not_lead_out(confined: Confined, root: Path, path: str) -> None:
    # security/path-prefix-sibling
    given = path.format(root=root)
    assert refusal(lambda: confined.open_read(given)) == errno.EXDEV
    assert refusal(lambda: confined.entries(given)) == errno.EXDEV
    assert refusal(lambda: confined.write(given + "/new", b"")) == errno.EXDEV
    assert sorted(path.name for path in root.parent.iterdir()) == ["secret", "task", "task-evil"]


@pytest.mark.parametrize("path", ["task\u2215..\u2215x", "..%2f..%2fetc/passwd", "C:\\x", "~/x", "~root"])
def test_what_only_looks_like_an_escape_is_a_name_like_any_other(confined: Confined, path: str) -> None:
    assert refusal(lambda: confined.open_read(path)) == errno.ENOENT


def test_a_nul_is_no_name(confined: Confined) -> None:
    assert refusal(lambda: confined.open_read("\0/etc/passwd")) == errno.EINVAL


@pytest.mark.parametrize(
    "target", ["{outside}", "..", "../..", "../task-evil", "/", "/proc/self/cwd", "src/../../task-evil"]
)
def test_links_do_not_lead_out(confined: Confined, root: Path, target: str) -> None:
    # security/path-symlink-write-escape
    (root / "out").symlink_to(target.format(outside=root.parent / "task-evil"))
    assert refusal(lambda: confined.open_read("out/x")) == errno.EXDEV
    assert refusal(lambda: confined.write("out/pwn.txt", b"x")) == errno.EXDEV
    assert refusal(lambda: confined.entries("out")) == errno.EXDEV
    assert not list(root.parent.glob("**/pwn.txt"))


def test_a_link_as_the_last_name_is_not_written_through_to_the_outside(confined: Confined, root: Path) -> None:
    (root / "absolute").symlink_to(root.parent / "secret")
    (root / "relative").symlink_to("../secret")
    for name in ("absolute", "relative"):
        assert refusal(lambda name=name: confined.write(name, b"x")) == errno.EXDEV  # type: ignore[misc]
        assert refusal(lambda name=name: confined.open_read(name)) == errno.EXDEV  # type: ignore[misc]
    assert (root.parent / "secret").read_text() == "secret"


def test_links_that_stay_inside_are_followed_and_kept(confined: Confined, root: Path) -> None:
    (root / "link").symlink_to("src/deep/../other")
    (root / "src" / "other").symlink_to("app.py")
    assert read(confined, "link") == "app"
    assert confined.write("link", b"new") is False
    assert (root / "src" / "app.py").read_text() == "new"
    assert (root / "link").is_symlink()
    (root / "dangling").symlink_to("src/born")
    assert confined.write("dangling", b"born") is True
    assert (root / "src" / "born").read_text() == "born"


def test_a_circle_of_links_ends(confined: Confined, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert refusal(lambda: confined.open_read("a")) == errno.ELOOP
    assert refusal(lambda: confined.write("a", b"")) == errno.ELOOP


def test_what_is_no_regular_file_is_refused_without_waiting(confined: Confined, root: Path) -> None:
    os.mkfifo(root / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.relpath(root / "socket"))
    (root / "null").symlink_to("/dev/null")
    started = time.monotonic()
    for name in ("pipe", "socket"):
        assert refusal(lambda name=name: confined.open_read(name)) == errno.ENXIO  # type: ignore[misc]
        assert refusal(lambda name=name: confined.write(name, b"x")) == errno.ENXIO  # type: ignore[misc]
    assert refusal(lambda: confined.open_read("src")) == errno.EISDIR
    assert refusal(lambda: confined.write("src", b"")) == errno.EISDIR
    assert refusal(lambda: confined.write(".", b"")) == errno.EISDIR
    assert time.monotonic() - started < 1
    listening.close()


def test_writing_makes_folders_and_keeps_the_mode(confined: Confined, root: Path) -> None:
    assert confined.write("new/er/file", b"one") is True
    assert (root / "new" / "er" / "file").read_bytes() == b"one"
    (root / "new" / "er" / "file").chmod(0o750)
    assert confined.write("new/er/file", b"two") is False
    assert (root / "new" / "er" / "file").read_bytes() == b"two"
    assert stat.S_IMODE((root / "new" / "er" / "file").stat().st_mode) == 0o750
    assert [path.name for path in (root / "new" / "er").iterdir()] == ["file"]  # no temporary name is left
    assert refusal(lambda: confined.write("src/app.py/x", b"")) == errno.ENOTDIR
    assert refusal(lambda: confined.write("no/../../x", b"")) == errno.ENOENT
    assert not (root / "no").exists()


def test_readers_see_the_old_file_or_the_new_one(confined: Confined, root: Path) -> None:
    old, new = b"a" * 300_000, b"b" * 300_000
    confined.write("file", old)
    seen: set[bytes] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add((root / "file").read_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(100):
        confined.write("file", new if number % 2 else old)
    done.set()
    looking.join()
    assert seen <= {old, new}


def test_names_of_any_bytes_are_listed(confined: Confined, root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_text("odd")
    (root / "link").symlink_to("src")
    entries = dict(confined.entries("."))
    assert {os.fsencode(name): facts.kind for name, facts in entries.items()} == {
        b"\xff\xfe": "file",
        b"link": "link",
        b"src": "folder",
    }
    assert entries["link"].link == "src"
    assert read(confined, os.fsdecode(b"\xff\xfe")) == "odd"


def test_facts_follow_links_inside(confined: Confined, root: Path) -> None:
    (root / "link").symlink_to("src/app.py")
    facts = confined.facts("link")
    assert (facts.kind, facts.size) == ("file", 3)
    assert confined.facts(".").kind == "folder"
    assert confined.facts("src/..").kind == "folder"


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Two names change places without end, each time in one step (RENAME_EXCHANGE)."""
    done = threading.Event()
    libc = ctypes.CDLL(None)
    names = [os.fsencode(one), os.fsencode(other)]

    def swap() -> None:
        while not done.is_set():
            assert libc.renameat2(-100, names[0], -100, names[1], 2) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_no_escape_under_a_swapping_race(root: Path, open_: Open) -> None:
    # S4, security/path-toctou-dir-swap: a folder and a link outwards change places while the path is opened
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    (root / "d").mkdir()
    (root / "d" / "f").write_text("inside")
    (root / "l").symlink_to(outside)
    reached = {"inside": 0, "refused": 0}
    deadline = time.monotonic() + 1.5
    with swapping(root / "d", root / "l"), Confined(str(root), open_) as confined:
        while time.monotonic() < deadline:
            try:
                text = read(confined, "d/f")
            except OSError:
                text = "refused"
            reached[text] = reached.get(text, 0) + 1
            with contextlib.suppress(OSError):
                confined.write("d/w", b"x")
    assert set(reached) == {"inside", "refused"}
    assert min(reached.values()) > 10  # both sides of the race were met
    assert [path.name for path in outside.iterdir()] == ["f"]


def test_a_missing_workspace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        confine(str(tmp_path / "gone"))


def test_a_root_that_is_a_link_is_understood_under_both_names(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    with Confined(str(tmp_path / "alias")) as confined:
        assert confined.relative(f"{tmp_path}/alias/src/app.py") == "src/app.py"
        assert confined.relative(f"{root}/src/app.py") == "src/app.py"
        assert read(confined, f"{root}/src/app.py") == "app"


def test_descriptors_are_given_back(root: Path, open_: Open) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    (root / "out").symlink_to("/etc")
    for _ in range(20):
        with Confined(str(root), open_) as confined:
            read(confined, "src/app.py")
            confined.write("a/b", b"")
            confined.entries("src")
            for path in ("out/x", "no/thing", "../x", "src/app.py/x"):
                with pytest.raises(OSError):
                    confined.open_read(path)
                with pytest.raises(OSError):
                    confined.write(path + "/../..", b"")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
