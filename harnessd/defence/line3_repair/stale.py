"""Stale confirmations: a "yes" to something that cannot be undone, acted on long after it was said, is no yes any more.

A task that was interrupted between the word and the deed takes the word up again when it resumes; by then the world may
be another one. The model is told to ask again; the node stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harnessd.domain.messages import TextBlock
from harnessd.domain.session import Node, NodeKind, assistant_message, blocks_of, user_payload

STALE_AFTER_S = 60.0
REDACTED = (
    "[A confirmation was given here, more than a minute before it could be acted on. Look at how things stand, and ask "
    "again before anything that cannot be undone.]"
)
_YES = re.compile(
    r"\W*(?:yes|yep|y|ok|okay|sure|confirm|confirmed|approved?|go ahead|proceed|do it|go for it)"
    r"(?:\W+(?:yes|please|sure|go ahead|proceed|do it|confirmed|thanks))*\W*",
    re.IGNORECASE,
)
_FOR_GOOD = re.compile(
    r"\b(?:delet\w*|drop|rm -\w*[rf]\w*|force[- ]push\w*|push --force|overwrit\w*|wip(?:e|ing)|destroy\w*|format|purge"
    r"|reset --hard|truncat\w*|pay|transfer|irreversibl\w*|cannot be undone)\b",
    re.IGNORECASE,
)


def stale(nodes: Sequence[Node], now: float | None) -> set[int]:
    """Places of the confirmations that were acted on, or would be now, more than a minute after they were said."""
    found = set()
    for place in range(1, len(nodes)):
        node = nodes[place]
        if node.kind is not NodeKind.USER or not _confirms(node) or not _asked(nodes[place - 1]):
            continue
        acted = next((later.at for later in nodes[place + 1 :] if later.kind is NodeKind.ASSISTANT), now)
        if acted is not None and acted - node.at > STALE_AFTER_S:
            found.add(place)
    return found


def redacted(node: Node) -> Node:
    """The node as it is shown."""
    return replace(node, payload=user_payload(REDACTED))


def _confirms(node: Node) -> bool:
    text = "\n".join(block.text for block in blocks_of(node) if isinstance(block, TextBlock))
    return len(text) < 80 and _YES.fullmatch(text.strip()) is not None


def _asked(node: Node) -> bool:
    """The answer before it asks for a yes to something that cannot be undone."""
    if node.kind is not NodeKind.ASSISTANT:
        return False
    text = assistant_message(node).text
    return "?" in text and _FOR_GOOD.search(text) is not None
