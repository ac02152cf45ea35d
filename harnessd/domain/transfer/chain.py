"""Chain: what ties the nodes of a session together, so that a changed, lost or moved one is noticed; pure."""

from __future__ import annotations

from hashlib import sha256

CHAIN_START = bytes(32)  # what the first node of a session is tied to


def digest(id_: str, parent: str | None, kind: str, at: float, payload: str) -> bytes:
    """SHA-256 over a node's row as it is stored."""
    return sha256(f"{id_}\n{parent or ''}\n{kind}\n{at!r}\n{payload}".encode()).digest()


def chain_hash(before: bytes, row: bytes) -> bytes:
    """What ties a node to the one before it: SHA-256 over that one's hash and this row's digest.

    Each store offers it to its queries as `chain()`.
    """
    return sha256(before + row).digest()
