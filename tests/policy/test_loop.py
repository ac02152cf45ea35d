"""Loop: what is one, and what only looks like one."""

from __future__ import annotations

import pytest

from harnessd.policy.loop import Call, Looping, Turn, detect, fingerprint
from tests.policy.written import policy, problems

SHIPPED = policy("loop")


def one(tool: str = "tool/bash", result: str = "same", **facts: object) -> Turn:
    changed = bool(facts.pop("changed", False))
    arguments = {"command": facts.pop("command", "make")}
    return Turn((Call(tool, arguments, result, **facts),), changed)  # type: ignore[arg-type]


def found(*turns: Turn) -> Looping | None:
    return detect(SHIPPED, turns)


def test_the_same_call_three_times_running() -> None:
    # R3.10
    assert found(one(), one()) is None
    loop = found(one(), one(), one())
    assert loop is not None
    assert (loop.detector, loop.times, loop.tool, loop.rule.rule) == ("repeat_call", 3, "tool/bash", "repeat_call")
    assert loop.nudge == (
        "You have done this 3 times with the same result. Say what you know, then try something else."
    )
    assert loop.do == ("nudge", "rollback", "needs_human")
    assert found(one(), one(), one(command="other"), one()) is None
    assert found(*[one()] * 5) is not None


def test_results_count_too_and_times_and_pids_are_no_change() -> None:
    # c12: polling whose output changes is progress
    assert found(*[one(result=f"running {n}0%") for n in range(5)]) is None
    noisy = [one(result=f"[{n}234] 2026-11-30T12:00:0{n}Z pid {n}77 took 0.{n}3s failed") for n in range(3)]
    assert found(*noisy) is not None
    assert found(one(), one(), one(polling=True)) is None


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("done at 12:04:31", "done at 12:05:02", True),
        ("process 4711 exited", "process 12 exited", True),
        ("took 120 ms", "took 97 ms", True),
        ("object at 0x7f3a", "object at 0x11bb", True),
        ("commit 9fceb02d0ae5", "commit 1a410efbd13", True),
        ("req_011abcdef", "req_98zzzzzz", True),
        ("file /tmp/tmpabc123/x", "file /tmp/tmpzzz/x", True),
        ("Mon, 30 Nov 2026", "Tue, 1 Dec 2026", True),
        ("started 20261130T120000Z", "started 20261130T120105Z", True),
        ("finished in 1m 2s", "finished in 3m 40s", True),
        ("real\t0m0.012s", "real\t0m1.112s", True),
        ("up 2 hours", "up 5 hours", True),
        ('{"elapsed": 0.0123}', '{"elapsed": 0.0456}', True),
        ('"time": 1.23e-05', '"time": 2.5e-05', True),
        ("30/Nov/2026:22:27:14 +0000", "01/Dec/2026:22:27:19 +0000", True),
        ("11/30/2026", "12/01/2026", True),
        ("30.11.2026", "01.12.2026", True),
        ("Nov 30 22:27:14 host x", "Dec  1 02:01:09 host x", True),
        ("goroutine 17 [running]", "goroutine 18 [running]", True),
        ("Thread-12", "Thread-13", True),
        ("127.0.0.1:54321 reset", "127.0.0.1:54399 reset", True),
        ("job id 17 queued", "job id 18 queued", True),
        ("/var/folders/ab/x1/T/tmpq", "/var/folders/ab/x2/T/tmpz", True),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ", True),
        ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id 4f2504e0-4f89-11d3-9a0c-0305e82c3302", True),
        ("\x1b[32mok\x1b[0m", "ok", True),
        ("1796075803123456789", "1796075903999456789", True),
        ("/data/tmp/tmp.AbCdEf1234", "/data/tmp/tmp.ZzCdEf1299", True),
        ("task 3 of 9: ok", "task 4 of 9: ok", False),
        ("10.0.0.1:8080", "10.0.0.1:8081", False),
        ("version 1.2.3", "version 1.2.4", False),
        ("downloaded 12 MB", "downloaded 15 MB", False),
        ("temperature 21.5", "temperature 21.6", False),
        ("3 tests failed", "2 tests failed", False),
        ("line 10: error", "line 12: error", False),
        ("running 40%", "running 80%", False),
        ("value 7", "value 8", False),
    ],
)
def test_what_is_new(first: str, second: str, same: bool) -> None:
    assert (fingerprint(first) == fingerprint(second)) is same


def test_rounds_of_parallel_calls_are_the_same_in_any_order() -> None:
    # c11
    def call(x: int, y: int, swapped: bool) -> Call:
        return Call("get", {"y": y, "x": x} if swapped else {"x": x, "y": y}, "r")

    first = Turn((call(1, 2, False), call(3, 4, False)))
    second = Turn((call(3, 4, True), call(1, 2, True)))
    assert found(first, second) is None
    loop = found(first, second, first)
    assert loop is not None
    assert loop.detector == "repeat_call"
    assert found(first, second, Turn((call(3, 4, False), call(5, 6, False)))) is None


def test_alternating_pairs() -> None:
    a, b = one(command="a"), one(command="b")
    assert found(a, b, a, b, a) is None
    loop = found(a, b, a, b, a, b)
    assert loop is not None
    assert (loop.detector, loop.times) == ("alternate", 3)
    assert found(a, b, a, b, a, one(command="b", result="new")) is None


@pytest.mark.parametrize("names", ["abc", "abcd", "aab", "abac"])
def test_longer_circles(names: str) -> None:
    circle = [one(command=name) for name in names]
    assert found(*circle, *circle) is None
    loop = found(*circle, *circle, *circle)
    assert loop is not None
    assert (loop.detector, loop.times) == ("alternate", 3)
    fresh = [*circle[:-1], one(command=names[-1], result="new")]
    assert found(*circle, *circle, *fresh) is None


@pytest.mark.parametrize(
    "other",
    [
        {"path": "src", "depth": 2, "all": False},
        {"all": False, "depth": 2, "path": "src"},
        {"path": " src\n", "depth": 2, "all": False},
        {"path": "src", "depth": 2.0, "all": False},
        {"path": "src", "depth": 2, "all": False, "limit": None},
    ],
)
def test_one_call_spelled_in_other_ways(other: dict[str, object]) -> None:
    # c11
    first = Turn((Call("tool/list_files", {"path": "src", "depth": 2, "all": False}, "a b"),))
    again = Turn((Call("tool/list_files", other, "a b"),))
    assert found(first, again, first) is not None


@pytest.mark.parametrize("other", [{"path": "src2"}, {"path": "src", "depth": 3}, {"path": "src", "depth": True}, {}])
def test_another_call_is_another(other: dict[str, object]) -> None:
    first = Turn((Call("tool/list_files", {"path": "src", "depth": 1}, "a b"),))
    assert found(first, Turn((Call("tool/list_files", other, "a b"),)), first) is None


def test_the_same_error_in_other_words_is_no_progress() -> None:
    words = ("connection refused", "could not connect", "no route to the host", "host is down")
    turns = [
        one(command=f"ping {n}", error_class="execution_failed", reason=words[n % 4], result=words[n % 4])
        for n in range(8)
    ]
    loop = found(*turns)
    assert loop is not None
    assert loop.detector == "no_progress"


def test_the_same_error_with_other_arguments() -> None:
    turns = [
        one(command=f"try {n}", error_class="execution_failed", reason="no such module x", result=f"r{n}")
        for n in range(3)
    ]
    loop = found(*turns)
    assert loop is not None
    assert loop.detector == "same_error"
    assert found(*turns[:2], one(error_class="execution_failed", reason="another")) is None


def test_a_command_that_fails_in_the_same_way_is_the_same_error() -> None:
    turns = [one(command=f"try {n}", failed=True, result="cat: gone: No such file") for n in range(3)]
    loop = found(*turns)
    assert loop is not None
    assert loop.detector == "same_error"
    assert found(*turns[:2], one(command="mend it"), *turns[:2]) is None
    other = [one(command=f"try {n}", failed=True, result=f"{n} tests failed") for n in range(9)]
    assert found(*other) is None, "it fails, and says something new each time"


def test_no_progress() -> None:
    turns = [Turn()] * 7
    assert found(*turns) is None
    loop = found(*turns, Turn())
    assert loop is not None
    assert (loop.detector, loop.times) == ("no_progress", 8)
    assert found(*turns, one(), *turns) is None  # something new was learnt in between
    assert found(*turns, Turn(changed=True), *turns) is None


def test_changes_of_files_are_progress() -> None:
    assert detect(policy("loop", "kind: loop\nrepeat_call: none\n"), [one(changed=True)] * 20) is None


def test_thresholds_are_the_operators() -> None:
    own = policy("loop", "kind: loop\nrepeat_call: 5\ndo: stop\nnudge: '{detector} {tool}'\n")
    assert detect(own, [one()] * 4) is None
    loop = detect(own, [one()] * 5)
    assert loop is not None
    assert (loop.do, loop.nudge, loop.rule.line) == (("stop",), "repeat_call tool/bash", 2)
    off = policy("loop", "kind: loop\nrepeat_call: none\nalternate: none\nsame_error: none\nno_progress: none\n")
    assert detect(off, [one()] * 100) is None


def test_nothing_is_no_loop() -> None:
    assert found() is None
    assert found(Turn()) is None


def test_what_is_refused() -> None:
    assert "1 is out of bounds: write 2..100" in problems("kind: loop\nrepeat_call: 1\n")[0]
    assert "park cannot be done here: write one of nudge, rollback" in problems("kind: loop\ndo: park\n")[0]
