"""Retention: how long things are kept, and the disk."""

from __future__ import annotations

from harnessd.policy.retention import disk, keep_s
from tests.policy.written import policy, problems

SHIPPED = policy("retention")


def test_how_long_things_are_kept() -> None:
    # R6.3
    day = 86_400
    kept = {
        what: keep_s(SHIPPED, what) for what in ("sessions", "artifacts", "checkpoints", "revisions", "idempotency")
    }
    assert kept == {
        "sessions": 30 * day,
        "artifacts": 7 * day,
        "checkpoints": 7 * day,
        "revisions": 365 * day,
        "idempotency": day,
    }
    own = policy("retention", "kind: retention\nrevisions: none\nmax_size: {artifacts: 5GiB}\n")
    assert keep_s(own, "revisions") is None
    assert (own.shape.max_size.artifacts, own.shape.max_size.checkpoints) == (5 << 30, 50 << 30)


def test_the_disk() -> None:
    # A18
    assert [disk(SHIPPED, free)[0] for free in (0.5, 0.1, 0.09, 0.03, 0.029)] == ["ok", "ok", "warn", "warn", "stop"]
    assert disk(SHIPPED, 0.01)[1].rule == "disk_free.stop"


def test_what_is_refused() -> None:
    assert problems("kind: retention\ndisk_free: {stop: 10%}\n") == [
        "a.yaml:2:19: disk_free.stop 10% is not below warn 10%: write stop < warn"
    ]
    assert "1h is out of bounds: write 24h..365d" in problems("kind: retention\nidempotency: 1h\n")[0]
    assert "20GB is not a size: write 20GiB" in problems("kind: retention\nmax_size: {artifacts: 20GB}\n")[0]
    assert "none is not possible here: a duration is wanted" in problems("kind: retention\nidempotency: none\n")[0]
