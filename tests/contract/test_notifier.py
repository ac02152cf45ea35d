"""The contract of every way to tell people: webhook, command, log, apprise, each against a real target."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.durable.outbox import Alert, Delivery, Notifier
from harnessd.net import Clients
from harnessd.notify import Apprise, Command, Log, Webhook
from tests.loopback import Loopback, Visit, loopback

# apprise loads all its plug-ins, and some of them load modules that Python has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

SECRET = "T0815-CANARY-4711"
ALERT: Alert = {
    "key": "breaker_opened|model/primary|@1800000000.000",
    "event": "breaker_opened",
    "state": "new",
    "title": "harnessd: model/primary is not called any more",
    "sentence": "10 failures in a row – „é“; it is tried again.",
    "next": "harnessctl status",
    "task": "",
    "agent": "",
    "dependency": "model/primary",
    "class": "",
    "reason": "",
    "revision": 7,
    "at": 1_800_000_000.0,
    "count": 1,
    "lasting": 0.0,
    "labels": {"team": "web"},
    "data": {"why": "10 failures in a row"},
}


@dataclass
class Scene:
    """One notifier, and what its target received."""

    notifier: Notifier
    received: Callable[[], list[str]]
    lines: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)


def answering(status: int, body: bytes = b"ok", *headers: str) -> Callable[[Visit], Any]:
    async def script(visit: Visit) -> None:
        await visit.answer(status, body, *headers)

    return script


async def silent(visit: Visit) -> None:
    await visit.hung_up()


def program(folder: Path, text: str) -> str:
    file = folder / f"program-{len(list(folder.iterdir()))}"
    file.write_text(f"#!{sys.executable}\n{text}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def command_lines() -> list[str]:
    """What every process of this host was called with."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(entry.read_bytes().decode(errors="replace"))
    return lines


def webhook(clients: Clients, url: str, **more: Any) -> Webhook:
    settings: dict[str, Any] = {
        "headers": {"authorization": f"Bearer {SECRET}"},
        "body": dict,
        "accepts": lambda status, _: 200 <= status <= 299,
        "now": time.time,
        "secrets": (SECRET,),
    }
    return Webhook(clients, url, **settings | more)


@contextlib.asynccontextmanager
async def posting(*scripts: Callable[[Visit], Any], **more: Any) -> AsyncIterator[tuple[Webhook, Loopback]]:
    clients = Clients()
    try:
        async with loopback(*scripts) as server:
            yield webhook(clients, f"{server.url}/services/{SECRET}", **more), server
    finally:
        await clients.aclose()


@contextlib.asynccontextmanager
async def scene(sort: str, tmp_path: Path, mood: str = "well") -> AsyncIterator[Scene]:
    """A notifier of each sort whose target is well, broken, or never answers."""
    scripts = {"well": answering(200), "broken": answering(500, f"no {SECRET}".encode()), "hanging": silent}
    if sort == "webhook":
        async with posting(scripts[mood], timeout_s=0.4) as (one, server):
            yield Scene(one, lambda: [visit.body.decode() for visit in server.visits])
    elif sort == "apprise":
        async with loopback(scripts[mood]) as server:
            address = server.url.replace("http://", "json://") + f"/{SECRET}"
            yield Scene(Apprise(address, timeout_s=0.4), lambda: [visit.body.decode() for visit in server.visits])
    elif sort == "command":
        out = tmp_path / "out"
        ends = {"well": "", "broken": "sys.exit(3)", "hanging": "import time; time.sleep(60)"}
        path = program(tmp_path, f"import sys\nopen({str(out)!r}, 'a').write(sys.stdin.read())\n{ends[mood]}\n")
        limit_s = 0.6 if mood == "hanging" else 20.0
        command = Command([path], {"PATH": "/usr/bin:/bin"}, timeout_s=limit_s)
        yield Scene(command, lambda: out.read_text().splitlines() if out.exists() else [])
    else:
        lines: list[tuple[str, str, Mapping[str, Any]]] = []
        yield Scene(Log(lambda *line: lines.append(line)), lambda: [str(line) for line in lines], lines)


@pytest.mark.parametrize("sort", ["webhook", "command", "log", "apprise"])
async def test_an_alert_arrives_and_may_come_again(tmp_path: Path, sort: str) -> None:
    async with scene(sort, tmp_path) as there:
        for count in (1, 2):
            delivery = await there.notifier.deliver(ALERT)
            assert delivery.done, delivery
            assert len(there.received()) == count
        assert "model/primary is not called any more" in there.received()[0]


@pytest.mark.parametrize("sort", ["webhook", "command", "apprise"])
@pytest.mark.parametrize("mood", ["broken", "hanging"])
async def test_a_target_that_fails_is_a_value_in_bounded_time(tmp_path: Path, sort: str, mood: str) -> None:
    # F39: neither an exception nor a wait without an end, and no secret in what is said of it
    async with scene(sort, tmp_path, mood) as there:
        began = time.monotonic()
        delivery = await there.notifier.deliver(ALERT)
        assert (delivery.done, time.monotonic() - began < 15) == (False, True)
        assert delivery.said
        assert SECRET not in delivery.said


@pytest.mark.parametrize("sort", ["webhook", "command"])
async def test_a_cancelled_try_leaves_nothing_behind(tmp_path: Path, sort: str) -> None:
    async with scene(sort, tmp_path, "hanging") as there:
        trying = asyncio.ensure_future(there.notifier.deliver(ALERT))
        await asyncio.sleep(0.2)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        assert [line for line in command_lines() if str(tmp_path) in line] == []


# --- webhook ----------------------------------------------------------------------------------------------------------


async def test_a_webhook_posts_json_with_its_key() -> None:
    async with posting(answering(204, b"")) as (one, server):
        assert await one.deliver(ALERT) == Delivery(done=True, said="status 204")
        (visit,) = server.visits
        head = visit.head.decode().lower()
        assert head.startswith(f"post /services/{SECRET} http/1.1".lower())
        assert f"authorization: bearer {SECRET}".lower() in head
        assert f"idempotency-key: {ALERT['key']}" in head
        assert "content-type: application/json" in head
        assert json.loads(visit.body) == ALERT


async def test_a_webhook_sends_what_the_receiver_wants_and_reads_its_answer() -> None:
    # A21: some services answer 200 with an error inside
    def accepts(status: int, body: Any) -> bool:
        return status == 200 and isinstance(body, Mapping) and body.get("code") == 0

    answers = (answering(200, b'{"code": 19001, "msg": "no such bot"}'), answering(200, b'{"code": 0}'))
    async with posting(*answers, body=lambda alert: {"text": alert["title"]}, accepts=accepts) as (one, server):
        refused = await one.deliver(ALERT)
        assert (refused.done, refused.said) == (False, 'status 200: {"code": 19001, "msg": "no such bot"}')
        assert (await one.deliver(ALERT)).done
        assert json.loads(server.visits[0].body) == {"text": ALERT["title"]}


async def test_a_redirect_is_refused_and_never_followed() -> None:
    async with loopback(answering(200)) as elsewhere:
        script = answering(302, b"", f"Location: {elsewhere.url}/other")
        async with posting(script) as (one, _):
            delivery = await one.deliver(ALERT)
            assert not delivery.done
            assert "redirect" in delivery.said
            assert elsewhere.visits == []


async def test_the_wish_of_a_busy_target_is_heard() -> None:
    async with posting(answering(429, b"", "Retry-After: 17")) as (one, _):
        assert (await one.deliver(ALERT)).retry_after_s == 17


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "no address", "http://127.0.0.1:1/x"])
async def test_an_address_that_cannot_be_called_is_a_value(url: str) -> None:
    clients = Clients()
    delivery = await webhook(clients, url).deliver(ALERT)
    assert not delivery.done
    assert delivery.said
    await clients.aclose()


async def test_a_header_that_http_cannot_carry_is_a_value() -> None:
    async with posting(answering(200), headers={"x-team": "größe"}) as (one, server):
        assert (await one.deliver(ALERT)).done is False
        assert server.visits == []


# --- command ----------------------------------------------------------------------------------------------------------


async def test_a_command_gets_the_alert_and_only_the_environment_it_was_given(tmp_path: Path) -> None:
    text = "import json, os, sys\nprint(sys.argv[1:], sorted(os.environ), json.load(sys.stdin)['title'])\n"
    one = Command([program(tmp_path, text), "--queue", "a b; $HOME"], {"ONLY": "this"})
    delivery = await one.deliver(ALERT)
    assert delivery.done
    assert "['--queue', 'a b; $HOME']" in delivery.said
    assert "'ONLY'" in delivery.said
    assert "'PATH'" not in delivery.said
    assert ALERT["title"] in delivery.said


async def test_a_command_that_is_not_there_or_does_not_read_is_no_fault(tmp_path: Path) -> None:
    missing = await Command([str(tmp_path / "missing")], {}).deliver(ALERT)
    assert (missing.done, missing.said) == (
        False,
        f"{tmp_path / 'missing'} could not be started: No such file or directory",
    )
    large = {**ALERT, "data": {"text": "x" * 2_000_000}}
    assert (await Command(["/bin/true"], {}).deliver(large)).done


async def test_what_a_command_leaves_in_the_background_does_not_hold_us(tmp_path: Path) -> None:
    text = "import subprocess, sys\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
    began = time.monotonic()
    delivery = await Command([program(tmp_path, text)], {"PATH": "/usr/bin:/bin"}, timeout_s=20).deliver(ALERT)
    assert delivery.done
    assert time.monotonic() - began < 15
    pid = int(delivery.said.rpartition(" ")[2])
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it still runs")


# --- log and apprise --------------------------------------------------------------------------------------------------


async def test_a_log_line_has_the_level_and_the_word(tmp_path: Path) -> None:
    async with scene("log", tmp_path) as there:
        await there.notifier.deliver(ALERT)
        ((level, event, facts),) = there.lines
        assert (level, event, facts["dependency"]) == ("warning", "breaker_opened", "model/primary")
        assert "task" not in facts


async def test_an_address_that_apprise_does_not_know_is_a_value() -> None:
    delivery = await Apprise(f"nosuchservice://{SECRET}").deliver(ALERT)
    assert (delivery.done, delivery.said) == (False, "the address is none that apprise understands")


async def test_without_the_extra_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    program_text = (
        "import asyncio, sys\nsys.modules['apprise'] = None\nfrom harnessd.notify import Apprise\n"
        "print(asyncio.run(Apprise('json://localhost').deliver({'title': 't'})).said)\n"
    )
    done = subprocess.run([sys.executable, "-c", program_text], capture_output=True, text=True, check=True)
    assert done.stdout == 'apprise is not installed: install "harnessd[notify]"\n'
