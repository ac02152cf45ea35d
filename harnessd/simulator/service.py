"""The service: routes, and one model request from its bytes to its delivery."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.simulator.answer import PromptCache, bill
from harnessd.simulator.deliver import Delivery, Exchange, Gate, HangUp, Pause, Step, applies, deliver, document
from harnessd.simulator.faults import Fault, draw
from harnessd.simulator.history import Histories
from harnessd.simulator.holds import Controls
from harnessd.simulator.http import BadRequest, Request, perform, read_request
from harnessd.simulator.ledger import Entry, Ledger
from harnessd.simulator.play import Played, play
from harnessd.simulator.protocols import BY_PATH, WireProtocol
from harnessd.simulator.protocols.quota import Quotas
from harnessd.simulator.protocols.wire import Problem, Refused
from harnessd.simulator.script import Script, Scripts, read_document
from harnessd.simulator.transcript import Transcript
from harnessd.simulator.values import ScriptError

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class Service:
    """Everything that a request can meet."""

    scripts: Scripts
    ledger: Ledger = field(default_factory=Ledger)
    controls: Controls = field(default_factory=Controls)
    histories: Histories = field(default_factory=Histories)
    cache: PromptCache = field(default_factory=PromptCache)
    quotas: Quotas = field(default_factory=lambda: Quotas(time.monotonic))
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    started: float = field(default_factory=time.time)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        """One connection, request after request."""
        try:
            while True:
                request = await read_request(reader, writer)
                if request is None or not await self.exchange(request, writer, gone):
                    break
        except BadRequest as error:
            refusal = document(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            await perform(refusal, writer, self.controls.wait)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left; its entry says so
        finally:
            writer.close()

    async def exchange(self, request: Request, writer: asyncio.StreamWriter, gone: asyncio.Event) -> bool:
        """One request and its response, dropped when the client goes away. True: another may follow."""
        work = asyncio.ensure_future(self.respond(request, writer))
        left = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            return await work and request.headers.get("connection", "").lower() != "close"
        except asyncio.CancelledError:
            work.cancel()
            if gone.is_set():
                return False
            raise
        finally:
            left.cancel()

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Route a request and send what it gets."""
        protocol = BY_PATH.get(request.path)
        if protocol is None or request.method != "POST":
            return await perform(self.plain_route(request), writer, self.controls.wait)
        ledger = self.ledger  # a reset while this request runs must not be told of its end
        entry = ledger.begin(request.path)
        ended = "client_gone"
        try:
            delivery = await self.model_call_or_fault(request, protocol, entry)
            entry.status = delivery.status if delivery.framing != "raw" else 0
            again = await perform(delivery, writer, self.controls.wait)
            ended = "refused" if entry.refusal else "faulted" if entry.fault else "complete"
            return again
        finally:
            ledger.end(entry, ended)
            if entry.within_quota:
                self.quotas.leave(entry.model)

    async def model_call_or_fault(self, request: Request, protocol: WireProtocol, entry: Entry) -> Delivery:
        """A fault of our own is a 500 that says so, and a violation, so that no test takes it for a planned one."""
        try:
            return await self.model_call(request, protocol, entry)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            traceback.print_exc()
            self.ledger.violate(entry, f"the simulator itself failed: {error!r}")
            return document(500, {"error": {"message": f"the simulator itself failed: {error!r}"}})

    async def model_call(self, request: Request, protocol: WireProtocol, entry: Entry) -> Delivery:
        """From bytes to a delivery."""
        request_id = f"req_{next(self.numbers):024d}"
        try:
            body = parse_body(request, protocol)
            nth = self.ledger.name(entry, str(body.get("model", "")), protocol.name)
            script = self.script_of(entry.model, protocol)
            protocol.check_head(request.headers, script.limits)
            transcript = protocol.read(body, script.limits)
        except Refused as refused:
            return self.refusal(refused.problem, protocol, entry, request_id)
        self.ledger.show(entry, transcript)
        if script.quota is not None:
            words = protocol.problem("rate_limited", transcript, script.limits)
            refusal = self.quotas.enter(entry.model, script.quota, transcript.tokens, words)
            if refusal is not None:
                return self.refusal(refusal, protocol, entry, request_id)
            entry.within_quota = True
        for what in self.histories.check(script, transcript):
            self.ledger.violate(entry, what)
        hold = self.controls.hold_for(transcript)
        if hold and hold.after is None:
            entry.ended = "held"
            await self.controls.wait()
            entry.ended = "open"
        played = play(script, transcript, str(entry.attempt) if script.fresh_ids else "")
        exchange = Exchange(
            protocol=protocol,
            transcript=transcript,
            answer=played.answer,
            cost=bill(played.answer, transcript, self.cache),
            limits=script.limits,
            request_id=request_id,
            key=protocol.key_of(request.headers),
        )
        self.note(script, transcript, played, entry)
        delivery = deliver(exchange, self.fault_for(script, exchange, nth, entry))
        gate_after = hold.after if hold else None
        return delivery if gate_after is None else replace(delivery, steps=gated(delivery.steps, gate_after))

    def script_of(self, model: str, protocol: WireProtocol) -> Script:
        """The script of a model; a model without one does not exist."""
        script = self.scripts.find(model)
        if script is None:
            raise Refused(protocol.unknown_model(model))
        return script

    def note(self, script: Script, transcript: Transcript, played: Played, entry: Entry) -> None:
        """Write down what was answered, and what was odd about it."""
        entry.played, entry.calls = played.turn, [call.tool for call in played.answer.calls]
        entry.said = played.answer.say[:2000]
        if played.odd:
            self.ledger.violate(entry, played.odd)
        self.histories.note(script, transcript, played.answer)

    def fault_for(self, script: Script, exchange: Exchange, nth: int, entry: Entry) -> Fault | None:
        """The fault of this request, written down; one that finds nothing to spoil is none."""
        fault = self.draw(script, exchange.transcript, nth, entry.attempt)
        if fault is None or not applies(fault, exchange.answer):
            return None
        self.ledger.fault(entry, fault.kind)
        return fault

    def draw(self, script: Script, transcript: Transcript, nth: int, attempt: int) -> Fault | None:
        """The first fault of those added at run time and the script's own."""
        plans = [*self.controls.plans_for(transcript.model), script.faults]
        drawn = (draw(plan, transcript, nth, attempt) for plan in plans)
        return next((fault for fault in drawn if fault), None)

    def refusal(self, problem: Problem, protocol: WireProtocol, entry: Entry, request_id: str) -> Delivery:
        """The service's own no."""
        self.ledger.refuse(entry, problem.status, problem.message)
        headers = [*problem.headers, *protocol.headers(request_id, None)]
        return document(problem.status, protocol.error_body(problem, request_id), headers)

    def plain_route(self, request: Request) -> Delivery:
        """Everything that is no model call."""
        try:
            match (request.method, request.path):
                case ("GET", "/requests"):
                    last, shown = int(request.query.get("last", ["50"])[0]), "shown" in request.query
                    return document(200, self.ledger.as_json(last=last, held=len(self.controls.waiting), shown=shown))
                case ("GET", "/health"):
                    return document(200, {"status": "ok", "models": sorted(self.scripts.by_pattern)})
                case ("GET", "/v1/models"):
                    return document(200, self.models("anthropic-version" in request.headers))
                case ("POST", "/control"):
                    return document(200, self.control(json.loads(request.body or b"{}")))
                case ("POST", "/reset"):
                    self.reset()
                    return document(200, {"reset": True})
                case _:
                    return document(
                        404, {"error": {"message": f"Unknown request URL: {request.method} {request.path}."}}
                    )
        except (ScriptError, ValueError) as error:
            return document(400, {"error": {"message": str(error), "type": "invalid_request_error"}})

    def control(self, order: Any) -> dict[str, Any]:
        """`POST /control`; `scripts` adds or replaces models at run time."""
        if not isinstance(order, dict):
            raise ScriptError("control: a JSON object is wanted")
        scripts = order.pop("scripts", None)
        if scripts is not None:
            self.scripts.add(read_document(scripts, "control.scripts", "script"))
        return self.controls.obey(order)

    def reset(self) -> None:
        """As if just started; scripts stay."""
        self.controls.reset()
        self.ledger, self.histories, self.cache = Ledger(), Histories(), PromptCache()

    def models(self, anthropic: bool) -> dict[str, Any]:
        """The list of models, in the form of the service that is asked."""
        names = sorted(self.scripts.by_pattern)
        if anthropic:
            data = [{"type": "model", "id": n, "display_name": n, "created_at": "2026-01-01T00:00:00Z"} for n in names]
            return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
        created = int(self.started)
        return {
            "object": "list",
            "data": [{"id": n, "object": "model", "created": created, "owned_by": "simulator"} for n in names],
        }


def parse_body(request: Request, protocol: WireProtocol) -> dict[str, Any]:
    """The JSON object of a request, as strict as the services' parsers: UTF-8, no lone surrogates, no NaN."""
    if request.oversized:
        raise Refused(protocol.too_large())
    try:
        body = json.loads(request.body.decode("utf-8"), parse_constant=no_constant)
    except ValueError as error:
        raise Refused(protocol.bad_json(str(error))) from error
    if not isinstance(body, dict):
        raise Refused(protocol.bad_json("expected an object"))
    lone = SURROGATE.search(json.dumps(body, ensure_ascii=False))
    if lone:
        raise Refused(
            protocol.bad_json(f"no low surrogate in string: line 1 column {lone.start()} (char {lone.start()})")
        )
    return body


def no_constant(name: str) -> Mapping[str, Any]:
    """NaN and Infinity are no JSON."""
    raise ValueError(f"unexpected character: {name}")


def gated(steps: Any, after: int) -> Iterator[Step]:
    """The same steps with a gate after some events."""
    sent = 0
    for step in steps:
        if sent == after and not isinstance(step, (Pause, HangUp)):
            yield Gate()
        sent += 1
        yield step
    if sent <= after:
        yield Gate()
