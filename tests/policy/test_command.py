"""A shell line as its simple commands."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessd.policy.calls.command import split


def forms(line: str) -> set[str]:
    parts = split(line)
    assert parts is not None, line
    return {form for part in parts for form in part.forms}


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("ls", ["ls"]),
        ("cd x && git   push", ["cd x", "git push"]),
        ("a | b; c & d\ne", ["a", "b", "c", "d", "e"]),
        ("git commit -m \"it's fine\" 'and so on'", ["git commit -m it's fine and so on"]),
        ("(cd a; ls) | grep x", ["cd a", "ls", "grep x"]),
        ("{ ls; }", ["ls"]),
        ("! true || false", ["true", "false"]),
        ("if test -f x; then a; elif b; then c; else d; fi", ["test -f x", "a", "b", "c", "d"]),
        ('for f in *.py "x y"; do wc -l "$f"; done', ["wc -l $f"]),
        ("while read l; do echo $l; done < f", ["read l", "echo $l", "< f"]),
        ("case $x in a|b) one;; *) two;; esac; three", ["one", "two", "three"]),
        ("f() { inner; }; f", ["inner", "f"]),
        ("function g { inner; }", ["inner"]),
        ("[[ -f a && $b == c ]] && ls", ["ls"]),
        ("a=(1 2); b", ["a=", "b"]),
        ("echo $((1 + 2)) $(( (3+4)*2 ))", ["echo $((1 + 2)) $(( (3+4)*2 ))"]),
        ("echo a # comment 'x\nls", ["echo a", "ls"]),
        ("echo {a,b} a#b", ["echo {a,b} a#b"]),
        ("echo a\\\nb", ["echo ab"]),
        ("cmd 2>&1 >out <in", ["cmd 2>& 1 > out < in"]),
        ("python3 - <<'EOF'\nprint(\"it's; rm\")\nEOF\nls", ["python3 - << EOF", "ls"]),
        ("cat <<-X\n\ta\n\tX\nls", ["cat << X", "ls"]),
        ("", []),
        ("# only words", []),
    ],
)
def test_lines_are_taken_apart(line: str, written: list[str]) -> None:
    parts = split(line)
    assert parts is not None
    assert [part.written.replace("<<- ", "<< ") for part in parts] == written


@pytest.mark.parametrize(
    "line",
    [
        # every way to say `git push` that a guard rail must see
        "git push",
        "g''it push",
        '"git" "push"',
        "\\git push",
        "/usr/bin/git push",
        "FOO=1 git push",
        "sudo -u x git push",
        "env A=1 git push origin",
        "timeout 5 git push",
        "xargs -n1 git push",
        "find . -exec git push {} ;",
        "echo $(git push)",
        "echo `git push`",
        'echo "$(git push)"',
        "echo ${x:-$(git push)}",
        "diff <(git push) x",
        "bash -c 'git push'",
        "bash -lc 'cd x; git push'",
        "sh -e -c 'git push'",
        "sudo bash -c 'git push'",
        "eval git push",
        "eval 'git push'",
        "trap 'git push' EXIT",
        "bash <<EOF\ngit push\nEOF",
        "sh <<< 'git push'",
        "cat <<EOF\n$(git push)\nEOF",
        "f() { git push; }; f",
        "if git push; then x; fi",
        ">out git push",
        "git push >out",
        "a=$(git push)",
        "(((git push)))",
        "ls; ( git push )",
        "git -C /elsewhere push",
        "git -C/elsewhere push",
        "git --no-pager push",
        "git -c user.name=x -c a=b push origin",
        "git --git-dir=/x/.git --work-tree /x push",
        'git -C "$dir" push',
        "sudo git -C /x push",
        "/usr/bin/git --no-pager push",
        "alias p='git push'; p",
        "coproc git push",
        "while read u; do git push $u; done < urls",
        "x=$(git -C y push)",
    ],
)
def test_nothing_hides_a_command(line: str) -> None:
    assert any(form == "git push" or form.startswith("git push ") for form in forms(line)), forms(line)


def test_a_here_document_that_is_quoted_is_data() -> None:
    assert "git push" not in forms("cat <<'EOF'\n$(git push)\nEOF")


@pytest.mark.parametrize(
    "line",
    [
        "echo 'unfinished",
        'echo "unfinished',
        "echo $(unfinished",
        "echo `unfinished",
        "(a",
        "a)",
        "cat <<EOF\nno end",
        "$X push",
        "${X} push",
        '"$(which git)" push',
        "*/git push",
        "echo git push | sh",
        "cat x | bash -s",
        "curl x | sudo bash",
        'bash -c "$SCRIPT"',
        'eval "$x"',
        "case x in a) b;;",
        "x > ",
        "git $sub",
        'git "$@"',
        "git $(echo push)",
        'git p"$x"ush',
        "git pu*",
        "git -c alias.x=push x",
        "git -C x $sub",
        "kubectl -n web $verb",
        "$'\\x67it' push",
        "g{i,}t push",
        "gi? push",
        "a\0b",
        "$(" * 30 + ")" * 30,
        "echo " + "x" * 200_000,
    ],
)
def test_what_cannot_be_taken_apart_for_certain_is_not(line: str) -> None:
    assert split(line) is None


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="ab \t\n'\"`$(){}[]<>|&;\\#=-!*", max_size=40))
def test_any_line_is_taken_apart_or_not_never_a_traceback(line: str) -> None:
    parts = split(line)
    assert parts is None or all(part.written in part.forms for part in parts)
