"""Shell words: a shell line as words, operators and redirections, by POSIX and bash rules; nothing is expanded.

What a line substitutes (`$(...)`, backticks, `<(...)`) is collected as source text, to be taken apart by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LONGEST = 100_000  # characters of a line
DEEPEST = 16  # substitutions inside each other


class Inseparable(ValueError):  # noqa: N818 - named as the finding about the line
    """The line cannot be taken apart."""


@dataclass(slots=True)
class Token:
    """One word, operator or redirection.

    `bare`: no part of it was quoted. `dynamic`: the shell will change it (expansion, substitution, glob).
    A redirection's `text` is its operator and target; `body` its here-document or here-string, where it has one.
    """

    kind: str  # word | op | redirect
    text: str
    bare: bool = True
    dynamic: bool = False
    body: str | None = None


_OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", "|", "&", ";", "(", ")", "\n")
_REDIRECT = re.compile(r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|<(?!\()|>>|>\||>&|>(?!\())|&>>|&>")
_WORD_END = " \t\n;&|()<>"


@dataclass(slots=True)
class Lexer:
    """Reads one line from left to right."""

    line: str
    at: int = 0
    nested: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    waiting: list[tuple[Token, str, bool, bool]] = field(default_factory=list)  # token, delimiter, tabs, literal

    def read(self) -> list[Token]:
        """All tokens. Raises Inseparable."""
        if len(self.line) > LONGEST or "\0" in self.line:
            raise Inseparable("the line is too long or holds a null byte")
        while self.at < len(self.line):
            self._one()
        if self.waiting:
            raise Inseparable("a here-document has no end")
        return self.tokens

    def _one(self) -> None:
        char = self.line[self.at]
        if char in " \t\r":
            self.at += 1
        elif self.line.startswith("\\\n", self.at):
            self.at += 2
        elif char == "#":
            end = self.line.find("\n", self.at)
            self.at = len(self.line) if end < 0 else end
        elif match := _REDIRECT.match(self.line, self.at):
            self._redirect(match)
        elif operator := next((op for op in _OPERATORS if self.line.startswith(op, self.at)), None):
            self.at += len(operator)
            self.tokens.append(Token("op", operator))
            if operator == "\n":
                self._here_documents()
        else:
            self.tokens.append(self._word())

    def _redirect(self, match: re.Match[str]) -> None:
        self.at = match.end()
        operator = match[1] or match[0]
        while self.at < len(self.line) and self.line[self.at] in " \t":
            self.at += 1
        if self.at >= len(self.line) or self.line[self.at] in "\n;&|()":
            raise Inseparable("a redirection has no target")
        target = self._word()
        token = Token("redirect", f"{match[0]} {target.text}", dynamic=target.dynamic)
        if operator in ("<<", "<<-"):
            self.waiting.append((token, target.text, operator == "<<-", not target.bare))
        elif operator == "<<<":
            token.body = target.text
        self.tokens.append(token)

    def _here_documents(self) -> None:
        for token, delimiter, tabs, literal in self.waiting:
            lines = []
            while True:
                if self.at >= len(self.line):
                    raise Inseparable("a here-document has no end")
                end = self.line.find("\n", self.at)
                end = len(self.line) if end < 0 else end
                text = self.line[self.at : end]
                self.at = min(end + 1, len(self.line))
                if (text.lstrip("\t") if tabs else text) == delimiter:
                    break
                lines.append(text)
            token.body = "\n".join(lines)
            if not literal:
                self._scan(token.body)
        self.waiting.clear()

    def _word(self) -> Token:
        token, text = Token("word", ""), []
        while self.at < len(self.line):
            char = self.line[self.at]
            if char in _WORD_END and not (char in "<>" and self.line.startswith("(", self.at + 1)):
                break
            text.append(self._piece(char, token))
        token.text = "".join(text)
        return token

    def _piece(self, char: str, token: Token) -> str:
        """One quoted part, substitution or character of a word."""
        match char:
            case "'":
                token.bare = False
                return self._until("'")
            case '"':
                token.bare = False
                return self._double(token)
            case "\\":
                token.bare = False
                self.at += 2
                return "" if self.line[self.at - 1 : self.at] in ("\n", "") else self.line[self.at - 1]
            case "$" | "`":
                return self._dollar(token)
            case "<" | ">":
                token.dynamic = True
                start = self.at
                self.at += 2
                self.nested.append(self._balanced("(", ")"))
                return self.line[start : self.at]
            case _:
                if char in "*?[{":
                    token.dynamic = True
                self.at += 1
                return char

    def _until(self, end: str) -> str:
        close = self.line.find(end, self.at + 1)
        if close < 0:
            raise Inseparable("a quote has no end")
        text = self.line[self.at + 1 : close]
        self.at = close + 1
        return text

    def _double(self, token: Token) -> str:
        self.at += 1
        text: list[str] = []
        while True:
            char = self.line[self.at : self.at + 1]
            if char == "":
                raise Inseparable("a quote has no end")
            if char == '"':
                self.at += 1
                return "".join(text)
            if char == "\\" and self.line[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                text.append(self.line[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                text.append(self._dollar(token))
            else:
                text.append(char)
                self.at += 1

    def _dollar(self, token: Token) -> str:
        """An expansion or substitution, kept as written; what it substitutes goes to `nested`."""
        start, rest = self.at, self.line[self.at + 1 : self.at + 2]
        if self.line[self.at] == "`":
            token.dynamic = True
            self.nested.append(re.sub(r"\\([`$\\])", r"\1", self._backtick()))
        elif rest == "(":
            token.dynamic = True
            self.at += 2
            self._substituted(self._balanced("(", ")"))
        elif rest == "{":
            token.dynamic = True
            self.at += 2
            self._scan(self._balanced("{", "}"))
        elif rest == "'":
            self.at += 1
            token.bare = False
            text = self._ansi_c()
            token.dynamic = token.dynamic or "\\" in text
            return text
        else:
            token.dynamic = token.dynamic or bool(re.match(r"[A-Za-z0-9_@*#?$!-]", rest))
            self.at += 1
            return "$"
        return self.line[start : self.at]

    def _substituted(self, text: str) -> None:
        """The inside of `$(...)`; of `$((...))` only what it substitutes, unless commands stand in it."""
        arithmetic = text.startswith("(") and text.endswith(")") and not re.search(r"[A-Za-z_]\w*\s+[\w\"'$-]", text)
        if arithmetic:
            self._scan(text)
        else:
            self.nested.append(text)

    def _backtick(self) -> str:
        start = self.at + 1
        self.at = start
        while self.at < len(self.line) and self.line[self.at] != "`":
            self.at += 2 if self.line[self.at] == "\\" else 1
        if self.at >= len(self.line):
            raise Inseparable("a backtick has no end")
        self.at += 1
        return self.line[start : self.at - 1]

    def _ansi_c(self) -> str:
        start = self.at + 1
        self.at = start
        while self.at < len(self.line) and self.line[self.at] != "'":
            self.at += 2 if self.line[self.at] == "\\" else 1
        if self.at >= len(self.line):
            raise Inseparable("a quote has no end")
        self.at += 1
        return self.line[start : self.at - 1]

    def _balanced(self, opening: str, closing: str) -> str:
        """The text up to the closing bracket, quotes respected; stands behind it afterwards."""
        start, depth = self.at, 1
        while self.at < len(self.line):
            char = self.line[self.at]
            if char == "\\":
                self.at += 2
                continue
            if char == "'":
                self._until("'")
                continue
            if char == '"':
                self._skip_double()
                continue
            depth += (char == opening) - (char == closing)
            self.at += 1
            if depth == 0:
                return self.line[start : self.at - 1]
        raise Inseparable("a bracket has no end")

    def _skip_double(self) -> None:
        """Past a double-quoted text; what it substitutes is found when the text itself is taken apart."""
        inner = Lexer(self.line, self.at)
        inner._double(Token("word", ""))
        self.at = inner.at

    def _scan(self, text: str) -> None:
        """Substitutions inside a text that is otherwise data: an unquoted here-document, `${...}`."""
        inner = Lexer(text)
        while inner.at < len(text):
            char = text[inner.at]
            if char == "\\":
                inner.at += 2
            elif char in "$`":
                inner._dollar(Token("word", ""))
            else:
                inner.at += 1
        self.nested.extend(inner.nested)
