"""History: does what a client shows extend what it showed before? What it lost or altered is noticed."""

from __future__ import annotations

from dataclasses import dataclass, field

from harnessd.simulator.answer import Answer
from harnessd.simulator.script import Script
from harnessd.simulator.transcript import Transcript, digest_of


@dataclass(slots=True)
class Conversation:
    """What was shown last, every transcript shown before, and what we answered at each point."""

    shown: tuple[str, ...] = ()
    before: set[tuple[str, ...]] = field(default_factory=set)
    answers: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    system: str = ""
    tools: str = ""
    tokens: int = 0


@dataclass(slots=True)
class Histories:
    """All conversations, by the words that opened them, or by what the script's marker finds."""

    known: dict[str, Conversation] = field(default_factory=dict)

    def conversation(self, script: Script, transcript: Transcript) -> Conversation:
        """The conversation that a transcript belongs to."""
        marked = script.marker.search(transcript.everything) if script.marker else None
        key = digest_of([transcript.protocol, transcript.model, marked[0] if marked else transcript.first_user])
        return self.known.setdefault(key, Conversation())

    def check(self, script: Script, transcript: Transcript) -> list[str]:
        """What is wrong with this transcript against the earlier ones, in words; then it is the newest."""
        if not script.append_only:
            return []
        conversation = self.conversation(script, transcript)
        digests = tuple(message.digest for message in transcript.messages)
        if not transcript.tools and conversation.shown:
            # A last word without tools, or a summary: said beside the conversation, which goes on from where it was.
            return forged(conversation, digests)
        found = [*frozen_parts(conversation, script, transcript), *forged(conversation, digests)]
        if conversation.shown:
            found += broken_prefix(conversation, script, transcript, digests)
        conversation.before.add(digests)
        conversation.shown, conversation.tokens = digests, transcript.tokens
        conversation.system, conversation.tools = digest_of(transcript.system), transcript.tools_digest
        return found

    def note(self, script: Script, transcript: Transcript, answer: Answer) -> None:
        """Remember what we said at this point."""
        if script.append_only:
            digests = tuple(message.digest for message in transcript.messages)
            said = self.conversation(script, transcript).answers.setdefault(digests, set())
            said.add(answer.as_shown.digest)


def frozen_parts(conversation: Conversation, script: Script, transcript: Transcript) -> list[str]:
    """The system prompt and the tools stay as they were: the prompt cache hangs on them."""
    if not conversation.shown:
        return []
    found = []
    if conversation.system != digest_of(transcript.system) and "system" not in script.allow:
        found.append("system prompt changed within a conversation")
    if conversation.tools != transcript.tools_digest and "tools" not in script.allow:
        found.append("tools changed within a conversation")
    return found


def forged(conversation: Conversation, digests: tuple[str, ...]) -> list[str]:
    """Every assistant message shown back is one that we said at that point."""
    found = []
    for n in range(1, len(digests)):
        said = conversation.answers.get(digests[:n])
        if said and digests[n] not in said:
            found.append(f"message {n} is not what was answered there")
    return found


def broken_prefix(
    conversation: Conversation, script: Script, transcript: Transcript, digests: tuple[str, ...]
) -> list[str]:
    """The newest transcript extends the last one, but for a rollback or a compaction that the script allows."""
    last = conversation.shown
    common = 0
    while common < min(len(last), len(digests)) and last[common] == digests[common]:
        common += 1
    if common == len(last):
        return []
    branched = any(digests[: len(old)] == old for old in conversation.before if len(old) <= common + 1)
    if "branch" in script.allow and (branched or digests in conversation.before):
        return []
    if "compaction" in script.allow and transcript.tokens < conversation.tokens:
        return []
    if common == len(digests):
        return [f"history shrank from {len(last)} to {len(digests)} messages"]
    return [f"message {common} was altered"]
