"""Control API: who may call, and what a body may be."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import product

import pytest

from harnessd.runtime.control import Lineage
from harnessd.runtime.control.answers import BODY_MAX
from tests.control_api import ask, code, draft
from tests.control_server import ControlServer, control_server


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with control_server() as running:
        yield running


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_a_body_that_is_no_json_object_is_400(server: ControlServer) -> None:
    for raw in (b"{", b"[]", b'"x"', b"{\xff}", b'{"priority": NaN}', b"[" * 100_000, b"9" * 5000):
        assert code(ask(server, "POST", "/v1/tasks", raw)) == (400, "bad_request"), raw[:20]


def test_a_body_is_bounded(server: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(server.socket))
        head = "POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {BODY_MAX + 1}\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_bounded_too(server: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(server.socket))
        raw.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(6):
                raw.sendall(chunk)
        except OSError:
            pass  # it was refused before we were through
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_noise_on_the_socket_disturbs_nobody(server: ControlServer) -> None:
    # S11
    shapes = (
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00",
        b"GET /v1/status\r\n\r\n",
        b"GET /v1/status HTTP/9.9\r\nHost: harnessd\r\n\r\n",
        b"GET /v1/tasks/%ff%00 HTTP/1.1\r\nHost: harnessd\r\n\r\n",
        b"GET /v1/tasks?since=%ff&limit=1e999 HTTP/1.1\r\nHost: harnessd\r\n\r\n",
        b"GET " + b"/x" * 100_000,
        b"POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: harnessd\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    )
    with ExitStack() as opened:
        for shape in shapes:
            raw = opened.enter_context(socket.socket(socket.AF_UNIX))
            raw.settimeout(10)
            raw.connect(str(server.socket))
            with suppress(OSError):
                raw.sendall(shape)
        # While they all hang there, and after they are gone.
        assert ask(server, "GET", "/v1/status")[0] == 200
    assert ask(server, "GET", "/v1/status")[0] == 200


def test_a_full_disk_is_said_in_one_line() -> None:
    # G11: and what does not write still works
    with control_server(pragmas=("PRAGMA max_page_count = 120",)) as server:
        for number in range(40):
            answer = ask(server, "POST", "/v1/tasks", draft(server, prompt=f"{number} " + "x" * 20_000))
            if answer[0] != 201:
                break
        assert code(answer) == (500, "storage_full")
        assert ask(server, "GET", "/v1/status")[1]["tasks"]["queued"] == number


# --- who calls --------------------------------------------------------------------------------------------------------

SIMPLE_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
POSTS = ["/v1/tasks", "/v1/tasks/8/cancel", "/v1/inbox/a1", "/v1/tasks/8/set"]


def test_what_a_web_form_can_send_is_415(server: ControlServer) -> None:
    # security/http-simple-post-csrf
    # S6, http-simple-post-csrf
    for path, content_type in product(POSTS, SIMPLE_TYPES):
        answer = ask(server, "POST", path, draft(server), {"content-type": content_type})
        assert code(answer) == (415, "content_type"), (path, content_type)
    assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}


def test_a_get_has_no_effect(server: ControlServer) -> None:
    # security/http-simple-post-csrf
    task = server.submit()
    assert code(ask(server, "GET", f"/v1/tasks/{task}/cancel")) == (405, "method_not_allowed")
    assert ask(server, "GET", f"/v1/tasks/{task}")[1]["state"] == "queued"


FOREIGN: tuple[dict[str, str], ...] = (
    {"Host": "evil.example:8787"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "localhost:8787", "Origin": "http://evil.example"},
    {"Host": "0.0.0.0:8787"},
    {"Host": ""},
    {"Host": "harnessd", "Origin": "null"},
)


def test_a_page_of_a_browser_is_403_before_routing(server: ControlServer) -> None:
    # security/http-dns-rebinding
    # S6, http-dns-rebinding
    for headers, path in product(FOREIGN, ("/v1/status", "/v1/events", "/nothing")):
        assert code(ask(server, "GET", path, headers=headers)) == (403, "forbidden"), (headers, path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_turned_away(server: ControlServer) -> None:
    # security/socket-other-user
    # socket-other-user: even where the file's mode would let him in
    server.socket.chmod(0o666)
    server.socket.parent.chmod(0o755)
    server.socket.parent.parent.chmod(0o755)
    program = (
        "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /v1/tasks HTTP/1.1\\r\\nHost: harnessd\\r\\nConnection: close\\r\\n\\r\\n');"
        "sys.stdout.buffer.write(s.makefile('rb').read())"
    )
    said = subprocess.run([sys.executable, "-c", program, server.socket], capture_output=True, check=True).stdout
    assert said.startswith(b"HTTP/1.1 403 ")
    assert b"tasks" not in said
    events = server.do(server.store.events())
    assert [event.type for event in events] == ["access_refused"]
    assert events[0].data["who"] in ("nobody", "uid:65534")


def test_an_agent_may_read_its_own_task_and_nothing_else() -> None:
    # A24: the client is started by this process, which is the daemon here, as a tool's processes are
    whose: list[str] = []
    with control_server(Lineage(os.getpid(), lambda _: whose[0])) as server:
        own, other = server.submit(), server.submit("Other")
        whose.append(own)
        assert server.cli("status", own).code == 0
        for words in (
            ("status",),
            ("status", other),
            ("list",),
            ("set", own, "--budget", "tool_calls=+60"),
            ("approve", "a1"),
            ("cancel", other),
            ("submit", "Another"),
        ):
            done = server.cli(*words)
            assert done.code == 5, words
            assert f"This request comes from a tool of {own}." in done.err
        # this very process is no tool
        assert len(ask(server, "GET", "/v1/tasks")[1]["tasks"]) == 2
        refused = [event for event in server.do(server.store.events()) if event.type == "access_refused"]
        assert [event.data["who"] for event in refused] == [f"a tool of {own}"]  # once a minute
        assert server.do(server.store.find(own)).draft.budget == {}  # type: ignore[union-attr]


def test_an_agent_cannot_hide_behind_a_dead_or_adopted_process() -> None:
    with control_server(Lineage(os.getpid())) as server:
        # The caller is a grandchild whose parent is gone; a subreaper above it is what the daemon is for its tools.
        program = (
            "import os, socket, sys, time\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid(); time.sleep(0.2)\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "s.sendall(b'GET /v1/tasks HTTP/1.1\\r\\nHost: harnessd\\r\\nConnection: close\\r\\n\\r\\n')\n"
            "sys.stdout.buffer.write(s.makefile('rb').read())"
        )
        subreaper = (
            "import ctypes, os, subprocess, sys\n"
            "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
            "subprocess.run([sys.executable, '-c', *sys.argv[1:]])\n"
            "os.wait()"
        )
        command = [sys.executable, "-c", subreaper, program, str(server.socket)]
        said = subprocess.run(command, capture_output=True, check=True).stdout
        assert said.startswith(b"HTTP/1.1 403 ")
        assert Lineage(os.getpid()).judge(2**22) is not None  # nobody has this pid: gone
        assert Lineage(os.getpid()).judge(os.getppid()) is None
        assert Lineage(os.getpid()).judge(0) is None


def test_the_caller_is_written_down(server: ControlServer) -> None:
    task = server.submit()
    ask(server, "POST", f"/v1/tasks/{task}/pause", {})
    who = server.do(server.store.events(task=task))[-1].data["by"]
    assert who == pwd.getpwuid(os.geteuid()).pw_name
