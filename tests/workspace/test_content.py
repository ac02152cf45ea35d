"""Contents on disk: one sync a checkpoint, damage is noticed before a file is touched, what is not needed goes."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from harnessd.domain.failure import HarnessError, StorageFull
from harnessd.workspace.checkpoints import Checkpoints
from harnessd.workspace.content import Contents
from harnessd.workspace.manifest import Change, DamagedContent, Entry, Manifest, decode, encode
from tests.workspace.trees import look


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    for number in range(6):
        (root / f"f{number}").write_bytes(f"content {number}\n".encode() * 100)
    return root


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Checkpoints]:
    room = Checkpoints(tmp_path / "state")
    yield room
    room.close()


def segments(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "state").glob("*/*.segment"))


# --- syncs ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_one_sync_and_an_unchanged_workspace_none(tmp_path: Path, root: Path) -> None:
    """Counted by the kernel: fsync and fdatasync calls of a process of its own."""
    script = (
        "import sys; from pathlib import Path; from harnessd.workspace.checkpoints import Checkpoints\n"
        "room = Checkpoints(Path(sys.argv[2])); root = Path(sys.argv[1]); room.take(str(root))\n"
        "for step in range(3):\n"
        "    for n in range(20): (root / f'g{n}').write_text(f'{step} {n}')\n"
        "    room.take(str(root))\n"
        "room.take(str(root))\n"
    )
    words = ["strace", "-f", "-e", "trace=fsync,fdatasync,syncfs,sync", "-o", str(tmp_path / "trace")]
    run = [sys.executable, "-c", script, str(root), str(tmp_path / "state")]
    try:
        done = subprocess.run([*words, *run], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no strace here")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "trace").read_text()
    # Four checkpoints that found something; the names of folders once, when the first segment is made in a new one.
    assert calls.count("fdatasync(") == 4
    assert calls.count(" fsync(") == 4
    assert "syncfs(" not in calls


def test_equal_contents_are_kept_once(tmp_path: Path, root: Path, room: Checkpoints) -> None:
    room.take(str(root))
    before = room.size()
    for number in range(50):
        (root / f"copy{number}").write_bytes((root / "f0").read_bytes())
    taken = room.take(str(root))
    assert taken.stored == room.size() - before
    assert taken.stored < 50 * 200, "names alone"


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flip", "zero", "cut"])
def test_damage_is_noticed_before_a_file_is_touched(tmp_path: Path, root: Path, room: Checkpoints, how: str) -> None:
    at = room.take(str(root)).manifest
    for number in range(6):
        (root / f"f{number}").write_text("other")
    safety = room.take(str(root)).manifest
    (segment,) = segments(tmp_path)
    data = bytearray(segment.read_bytes())
    place = data.index(b"content 3\n" * 50)
    with segment.open("r+b") as file:
        file.seek(place)
        if how == "cut":
            file.truncate(place + 10)
        else:
            file.write(bytes([data[place] ^ 0x40]) if how == "flip" else bytes(512))
    before = look(root)
    with pytest.raises(DamagedContent):
        room.restore(str(root), at, safety, "t")
    assert look(root) == before
    if how != "cut":  # what is whole can still be had
        assert room.restore(str(root), safety, safety, "t").state == "done"


def test_a_damaged_manifest_is_refused(tmp_path: Path, root: Path, room: Checkpoints) -> None:
    at = room.take(str(root)).manifest
    (root / "f0").write_text("x")
    safety = room.take(str(root)).manifest
    (segment,) = segments(tmp_path)
    place = segment.read_bytes().index(b"harnessd manifest 1\n")
    with segment.open("r+b") as file:
        file.seek(place + 80)
        file.write(b"\xee")
    with pytest.raises(DamagedContent):
        room.restore(str(root), at, safety, "t")


def test_no_bytes_are_a_manifest_that_leads_out() -> None:
    whole = decode_source()
    assert decode(whole).change.entries
    for name in (b"../aa", b"/aaaa", b"a/../", b"./aaa", b"a//bb", b"a\0aaa"):
        with pytest.raises(DamagedContent):
            decode(whole.replace(b"xx/yy", name))
    luck = random.Random(3)
    for _ in range(300):
        data = bytearray(whole)
        data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        try:
            found = decode(bytes(data))
        except DamagedContent:
            continue
        assert not any(part in ("", ".", "..") for path in found.change.entries for part in path.split("/"))
    for cut in range(len(whole)):
        with pytest.raises(DamagedContent):
            decode(whole[:cut])


def decode_source() -> bytes:
    """A manifest's bytes."""
    return encode(Manifest(b"", 0, Change({"xx/yy": Entry("file", 0o644, 0, 0, 3, sha256(b"abc").digest())}, ())))


# J15: after a power failure what was written since the last sync may be there, torn, zeroed or gone.
@pytest.mark.parametrize("seed", range(8))
def test_what_a_power_failure_tore_is_never_leant_on(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    folder = tmp_path / "contents"
    synced = Contents(folder)
    sure = [synced.put(luck.randbytes(luck.randrange(1, 5000))) for _ in range(5)]
    synced.sync()
    end = synced.path(1).stat().st_size
    lost = [luck.randbytes(luck.randrange(1, 5000)) for _ in range(5)]
    for data in lost:
        synced.put(data)
    synced.close()
    with synced.path(1).open("r+b") as file:
        size = file.seek(0, 2)
        match seed % 4:
            case 0:
                file.truncate(luck.randrange(end, size))
            case 1:  # the length is there, the blocks are not
                file.seek(luck.randrange(end, size))
                file.write(bytes(size - file.tell()))
            case 2:
                file.seek(luck.randrange(end, size))
                file.write(bytes(min(512, size - file.tell())))
            case _:
                file.seek(luck.randrange(end, size))
                file.write(luck.randbytes(7))
    again = Contents(folder)
    for digest in sure:
        again.verify(digest)
    for data in lost:
        digest = again.put(data)  # as a later checkpoint meets the same content
        assert again.get(digest) == data
    again.sync()
    again.close()
    third = Contents(folder)
    assert all(third.get(sha256(data).digest()) == data for data in lost)
    third.close()


# --- room -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_workspace_and_earlier_checkpoints_alone(
    tmp_path: Path, root: Path, room: Checkpoints
) -> None:
    at = room.take(str(root)).manifest
    size = room.size()
    (root / "large").write_bytes(os.urandom(3 << 20))
    before = look(root)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))  # a write beyond it fails, as on a full disk
    try:
        with pytest.raises(StorageFull):
            room.take(str(root))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert look(root) == before
    assert room.size() == size, "nothing of it is left behind"
    later = room.take(str(root)).manifest
    assert room.restore(str(root), at, later, "t").state == "done"
    assert room.restore(str(root), later, at, "t").state == "done"
    assert look(root) == before


def test_what_no_row_needs_is_given_back_and_the_rest_is_whole(tmp_path: Path, root: Path) -> None:
    room = Checkpoints(tmp_path / "state", segment_max=1 << 20)
    kept: list[tuple[str, object]] = []
    for step in range(12):
        for number in range(4):
            (root / f"f{number}").write_bytes(os.urandom(100_000))
        (root / f"only{step}").write_text(str(step))
        kept.append((room.take(str(root)).manifest, look(root)))
    real = room.take(str(root)).root
    full = room.size()
    assert len(segments(tmp_path)) > 3
    live = {real: {kept[-1][0], kept[2][0]}}
    assert room.collect(live, grace_s=3600) == 0, "what was written lately may have its row still to come"
    assert room.collect(live, grace_s=-60) > 0
    assert room.size() < full / 2
    for manifest, known in (kept[2], kept[-1]):
        safety = room.take(str(root)).manifest
        assert room.restore(str(root), manifest, safety, "t").state == "done"
        assert look(root) == known
    # Taking goes on, and a room that is opened anew finds everything.
    room.close()
    again = Checkpoints(tmp_path / "state", segment_max=1 << 20)
    safety = again.take(str(root)).manifest
    assert again.restore(str(root), kept[2][0], safety, "t").state == "done"
    assert look(root) == kept[2][1]
    # Nobody needs anything: the whole folder goes.
    assert again.collect({}, grace_s=-60) > 0
    assert again.size() == 0
    assert list((tmp_path / "state").iterdir()) == []
    assert again.take(str(root)).manifest
    again.close()


def test_contents_whose_need_is_not_known_stay(tmp_path: Path, root: Path, room: Checkpoints) -> None:
    taken = room.take(str(root))
    (segment,) = segments(tmp_path)
    place = segment.read_bytes().index(b"harnessd manifest 1\n")
    with segment.open("r+b") as file:
        file.seek(place + 80)
        file.write(b"\xee")
    assert room.collect({taken.root: {taken.manifest}}, grace_s=-60) == 0
    assert segment.exists()


# --- chains -----------------------------------------------------------------------------------------------------------


def test_a_long_chain_of_deltas_reads_back_everywhere(root: Path, room: Checkpoints) -> None:
    kept = []
    for step in range(70):
        (root / f"f{step % 6}").write_text(str(step))
        if step % 7 == 0:
            (root / f"new{step}").mkdir()
        kept.append((room.take(str(root)).manifest, look(root)))
    for place in (0, 31, 32, 33, 64, 69):
        safety = room.take(str(root)).manifest
        assert room.restore(str(root), kept[place][0], safety, "t").state == "done"
        assert look(root) == kept[place][1]


def test_a_workspace_that_is_gone_is_told_in_a_sentence(tmp_path: Path, room: Checkpoints) -> None:
    with pytest.raises(HarnessError, match="is not there any more"):
        room.take(str(tmp_path / "nowhere"))
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(HarnessError, match="cannot be read"):
        room.take(str(file))


def test_a_look_that_is_stopped_ends_soon_and_the_next_is_whole(root: Path, room: Checkpoints) -> None:
    room.take(str(root))
    (root / "f0").write_text("x")
    with pytest.raises(HarnessError, match="stopped"):
        room.take(str(root), stop=lambda: True)
    known = look(root)
    at = room.take(str(root)).manifest
    (root / "f0").write_text("y")
    assert room.restore(str(root), at, room.take(str(root)).manifest, "t").state == "done"
    assert look(root) == known


# --- large files ------------------------------------------------------------------------------------------------------


def test_a_large_file_never_stands_in_memory_whole(tmp_path: Path, root: Path) -> None:
    (root / "large").write_bytes(os.urandom(1 << 20) * 96)
    first = sha256((root / "large").read_bytes()).digest()
    script = (
        "import resource, sys; from pathlib import Path; from harnessd.workspace.checkpoints import Checkpoints\n"
        "room, root = Checkpoints(Path(sys.argv[2])), Path(sys.argv[1])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "at = room.take(str(root)).manifest\n"
        "with (root / 'large').open('r+b') as file: file.write(b'changed')\n"
        "assert room.restore(str(root), at, room.take(str(root)).manifest, 't').state == 'done'\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)\n"
    )
    command = [sys.executable, "-c", script, str(root), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32, "MiB"
    assert sha256((root / "large").read_bytes()).digest() == first
    assert sum(path.stat().st_size for path in segments(tmp_path)) < 200 << 20, "twice, and no more"


def test_a_large_file_that_cannot_be_read_takes_nothing_with_it(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "contents")
    kept = contents.put(b"kept")
    pieces = iter([b"a" * 1000, b"b" * 1000])

    def broken(count: int) -> bytes:
        piece = next(pieces, None)
        if piece is None:
            raise OSError(5, "Input/output error")
        return piece[:count]

    with pytest.raises(OSError, match="Input/output"):
        contents.put_from(broken, 10_000)
    assert contents.put_from(lambda _: b"x" * 100, 10_000) is None, "it never ends"
    more = iter([b"whole"])
    found = contents.put_from(lambda _: next(more, b""), 10_000)
    assert found == (sha256(b"whole").digest(), 5)
    contents.sync()
    contents.close()
    again = Contents(tmp_path / "contents")
    assert (again.get(kept), again.get(found[0])) == (b"kept", b"whole")
    again.close()


def test_a_look_that_is_stopped_in_a_large_file_keeps_no_half_of_it(root: Path, room: Checkpoints) -> None:
    (root / "large").write_bytes(os.urandom(1 << 20) * 40)
    asked = iter(range(1000))
    with pytest.raises(HarnessError, match="stopped"):
        room.take(str(root), stop=lambda: next(asked) > 20)
    manifest = room.take(str(root)).manifest
    kept = room.read(str(root), manifest, "large")
    assert kept == (root / "large").read_bytes()
