"""Command: a shell line as its simple commands, each by itself, for `when: {command: ...}` in `tools`.

A guard rail, not a boundary: what decides is the workspace and the environment a command runs in. So a line that
cannot be taken apart for certain is treated as `ask` and irreversible, never as harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harnessd.policy.calls.words import DEEPEST, Inseparable, Lexer, Token


@dataclass(frozen=True, slots=True)
class Part:
    """One simple command.

    `written` is the whole of it, quotes removed: what an `allow` or a weaker effect must fit. `forms` are all the ways
    to see it (without its redirections and variables, without the path of the program, behind `sudo`): what a `deny`,
    an `ask` or a stricter effect may fit.
    """

    written: str
    forms: tuple[str, ...]


def split(line: str) -> tuple[Part, ...] | None:
    """The simple commands of a line, in order, or None where it cannot be taken apart."""
    try:
        return tuple(dict.fromkeys(_split(line, 0)))
    except (Inseparable, RecursionError):
        return None


def _split(line: str, depth: int) -> Iterator[Part]:
    if depth > DEEPEST:
        raise Inseparable("too many substitutions inside each other")
    lexer = Lexer(line)
    commands = _Commands(lexer.read())
    for simple in commands.read():
        yield from _parts(simple, depth)
    for source in lexer.nested:
        yield from _split(source, depth + 1)


@dataclass(slots=True)
class _Simple:
    """Words and redirections of one simple command; `piped`: its input comes from another command."""

    words: list[Token] = field(default_factory=list)
    redirects: list[Token] = field(default_factory=list)
    piped: bool = False


_OPENERS = frozenset(["if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "coproc"])
_CLOSERS = frozenset(["fi", "done", "}"])
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")


class _Commands:
    """Walks the tokens of a line and keeps the simple commands; keywords of the shell are no commands."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.found: list[_Simple] = []
        self.simple = _Simple()
        self.depth = 0
        self.cases: list[int] = []  # bracket depth of each open `case`

    def read(self) -> list[_Simple]:
        """All simple commands. Raises Inseparable."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token.kind == "op":
                self._operator(token.text)
            elif token.kind == "redirect":
                self.simple.redirects.append(token)
            elif self.simple.words or not token.bare or not self._keyword(token.text):
                self.simple.words.append(token)
        self._flush()
        if self.depth or self.cases:
            raise Inseparable("brackets do not match")
        return self.found

    def _flush(self, *, piped: bool = False) -> None:
        if self.simple.words or self.simple.redirects:
            self.found.append(self.simple)
        self.simple = _Simple(piped=piped)

    def _operator(self, text: str) -> None:
        if text == "(":
            self._open()
        elif text == ")":
            self._flush()
            self.depth -= 1
            if self.depth < 0:
                raise Inseparable("brackets do not match")
        elif text in (";;", ";&", ";;&") and self.cases:
            self._flush()
            self._pattern()
        else:
            self._flush(piped=text in ("|", "|&"))

    def _open(self) -> None:
        words = self.simple.words
        following = self.tokens[self.at] if self.at < len(self.tokens) else None
        if not words:
            self.depth += 1
        elif len(words) == 1 and following is not None and following.text == ")" and following.kind == "op":
            self.at += 1  # a function's name: its body follows as a command
            self.simple = _Simple()
        elif words[-1].text.endswith("=") and _ASSIGNMENT.fullmatch(words[-1].text):
            self._skip_to(")")  # an array's values
        else:
            raise Inseparable("a bracket stands where none can")

    def _keyword(self, word: str) -> bool:
        """Whether a word in command position is the shell's own; takes what belongs to it."""
        if word in _OPENERS:
            return True
        if word in _CLOSERS:
            return True
        if word in ("for", "select"):
            while self.at < len(self.tokens) and self.tokens[self.at].text not in (";", "\n", "do"):
                self.at += 1
            return True
        if word == "function":
            self.at += 1
            if [token.text for token in self.tokens[self.at : self.at + 2]] == ["(", ")"]:
                self.at += 2
            return True
        if word == "case":
            self._skip_to("in")
            self.cases.append(self.depth)
            self._pattern()
            return True
        if word == "esac" and self.cases:
            self.cases.pop()
            return True
        if word == "[[":
            self._skip_to("]]")
            return True
        return False

    def _pattern(self) -> None:
        """Past the pattern of a `case` branch, or past `esac`."""
        while self.at < len(self.tokens) and self.tokens[self.at].text in ("\n", "("):
            self.at += 1
        if self.at < len(self.tokens) and self.tokens[self.at].text == "esac":
            self.at += 1
            self.cases.pop()
            return
        self._skip_to(")")

    def _skip_to(self, text: str) -> None:
        while self.at < len(self.tokens):
            self.at += 1
            if self.tokens[self.at - 1].text == text:
                return
        raise Inseparable(f"{text} is missing")


# Programs that run what stands behind them.
_WRAPPERS = frozenset(
    [
        "sudo",
        "doas",
        "env",
        "nohup",
        "nice",
        "ionice",
        "chrt",
        "timeout",
        "stdbuf",
        "setsid",
        "xargs",
        "exec",
        "command",
        "builtin",
        "watch",
        "chroot",
        "flock",
        "time",
        "unshare",
        "nsenter",
        "systemd-run",
        "find",
        "parallel",
        "busybox",
        "strace",
        "ltrace",
        "script",
        "ssh",
        "su",
        "runuser",
    ]
)
_FEEDERS = frozenset(["xargs", "parallel"])
# Options with a value that these programs take before their subcommand (git(1), docker, kubectl, npm, gh: --help).
_BEFORE_SUBCOMMAND = {
    "git": frozenset(
        ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env", "--attr-source"]
    ),
    "docker": frozenset(["-H", "--host", "-c", "--context", "--config", "-l", "--log-level"]),
    "kubectl": frozenset(["-n", "--namespace", "--context", "--kubeconfig", "--cluster", "--user", "-s", "--server"]),
    "npm": frozenset(["--registry", "--prefix", "-w", "--workspace", "-C"]),
    "gh": frozenset(["-R", "--repo"]),
}
_SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "fish"])


def _parts(simple: _Simple, depth: int) -> Iterator[Part]:
    words = simple.words
    while words and _ASSIGNMENT.match(words[0].text):
        words = words[1:]
    written = " ".join(token.text for token in (*simple.words, *simple.redirects))
    if not words:
        if written:
            yield Part(written, (written,))
        return
    if words[0].dynamic and words[0].text not in ("[", "{"):
        raise Inseparable("the program's name is not written out")
    forms = [written, " ".join(token.text for token in words)]
    starts = range(len(words)) if _base(words[0].text) in _WRAPPERS else range(1)
    for start in starts:
        rest = words[start:]
        forms.append(" ".join([_base(rest[0].text), *(token.text for token in rest[1:])]))
        if (asked := _subcommand(rest)) is not None:
            forms.append(" ".join([_base(rest[0].text), *(token.text for token in asked)]))
    if starts.stop > 1 and _base(words[0].text) in _FEEDERS:
        forms += [f"{form} {{}}" for form in forms[2:]]  # with the words that it is given to hand on
    yield Part(written, tuple(dict.fromkeys(forms)))
    for start in starts:
        yield from _scripts(words[start:], simple, depth)


def _subcommand(words: list[Token]) -> list[Token] | None:
    """What stands behind the options that a program takes before its subcommand: `git -C x push` is `git push`."""
    valued = _BEFORE_SUBCOMMAND.get(_base(words[0].text))
    if valued is None:
        return None
    at = 1
    while at < len(words) and words[at].text.startswith("-"):
        option = words[at].text
        at += 2 if option in valued else 1
        if option == "-c" and at <= len(words) and words[at - 1].text.startswith("alias."):
            raise Inseparable("an alias is made for one command")
    if at < len(words) and words[at].dynamic:
        raise Inseparable("the subcommand is not written out")
    return words[at:]


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _scripts(words: list[Token], simple: _Simple, depth: int) -> Iterator[Part]:
    """The commands inside a text that the command hands to a shell."""
    program = _base(words[0].text)
    if program in ("eval", "trap"):
        texts = words[1:] if program == "eval" else words[1:2]
        if any(token.dynamic and token.text[:1] != "-" for token in texts):
            raise Inseparable("what eval runs is not written out")
        yield from _split(" ".join(token.text for token in texts), depth + 1)
    elif program == "alias":
        for token in words[1:]:
            yield from _split(token.text.partition("=")[2], depth + 1)
    elif program in _SHELLS:
        yield from _shell(words, simple, depth)


def _shell(words: list[Token], simple: _Simple, depth: int) -> Iterator[Part]:
    arguments = words[1:]
    while arguments and arguments[0].text[:1] in ("-", "+") and arguments[0].text not in ("-", "--"):
        option, arguments = arguments[0].text, arguments[1:]
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", option):
            script = next((token for token in arguments if token.text[:1] != "-"), None)
            if script is None or script.dynamic:
                raise Inseparable("what the shell runs is not written out")
            yield from _split(script.text, depth + 1)
            return
        if re.fullmatch(r"-[a-zA-Z]*[oO]", option):
            arguments = arguments[1:]
        elif option in ("--version", "--help"):
            return
        elif re.fullmatch(r"-[a-zA-Z]*s[a-zA-Z]*", option):
            arguments = []
    if arguments:
        return  # a script file
    bodies = [token for token in simple.redirects if token.body is not None]
    if not bodies or simple.piped or any(token.dynamic for token in bodies):
        raise Inseparable("what the shell reads is not known")
    for token in bodies:
        yield from _split(token.body or "", depth + 1)
