"""Choosing: the paths that a person keeps or gives up, in the spelling of a checkpoint."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from harnessd.domain.effect import well_formed
from harnessd.domain.ports import Refused
from harnessd.runtime.rollbacks.targets import Wish

_LOST = "\ufffd"  # what every byte that is no UTF-8 is shown as, and comes back as


def in_the_workspace(root: str, wish: Wish) -> Wish | Refused:
    """The wish with each path from the workspace's root: `./a`, `d/` and whole paths mean what they mean in a shell."""
    kept, given_up = _spelt(root, wish.keep), _spelt(root, wish.overwrite)
    if isinstance(kept, Refused):
        return kept
    if isinstance(given_up, Refused):
        return given_up
    if both := set(kept) & set(given_up):
        return Refused("invalid", f"{min(both) or '.'} cannot be kept and overwritten.", "Name it once.")
    return replace(wish, keep=kept, overwrite=given_up)


def under(path: str, chosen: Collection[str]) -> bool:
    """Whether a path is one of them or lies below one; as it is shown, as no person can type bytes that are no text."""
    shown = well_formed(path)
    return any(one in ("", shown) or shown.startswith(f"{one}/") for one in chosen)


def nowhere(chosen: Iterable[str], differing: Sequence[str], there: Collection[str]) -> list[str]:
    """Those that name nothing: neither a path that differs nor one that is in the workspace (`there`)."""
    return [
        one
        for one in chosen
        if one not in there and _LOST not in one and not any(under(path, {one}) for path in differing)
    ]


def _spelt(root: str, words: Iterable[str]) -> tuple[str, ...] | Refused:
    found = []
    for word in words:
        whole = posixpath.normpath(posixpath.join(root, word))
        inner = posixpath.relpath(whole, root)
        if not word or inner.split("/")[0] == "..":
            words_ = f"{word} is not in the workspace {root}." if word else "An empty name is no path."
            return Refused("invalid", words_, "Name a path as harnessctl diff shows it; . is the whole workspace.")
        found.append("" if inner == "." else well_formed(inner))
    return tuple(dict.fromkeys(found))
