"""App: the composition root; the only file that names concrete adapters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from harnessd.config.files import Snapshot
from harnessd.config.load import (
    ConfigProblems,
    Loaded,
    ReadPolicies,
    find_config,
    load,
    read_policies,
    read_settings,
    shown_folder,
)
from harnessd.config.reload import Candidate, Reloader
from harnessd.config.settings import Settings
from harnessd.domain.durable.backup import StoreRestored
from harnessd.domain.failure import ConfigError, HarnessError
from harnessd.domain.ports import Refused, Tool
from harnessd.domain.task import Task
from harnessd.net import Clients
from harnessd.notify import Apprise, Command, Log, Webhook
from harnessd.providers import PROTOCOLS, Endpoint
from harnessd.runtime import crashpoints, telemetry
from harnessd.runtime.background.care import Care
from harnessd.runtime.catalog import Catalog
from harnessd.runtime.configured import Configured, store_options, store_url
from harnessd.runtime.control import Lineage, open_control_socket
from harnessd.runtime.control import serve as serve_control
from harnessd.runtime.daemon import Facade, Parts, WallClock, serve
from harnessd.runtime.gateway import Gateway, Service
from harnessd.runtime.host.early_stop import early
from harnessd.runtime.host.hardening import only_uid, undumpable
from harnessd.runtime.host.latency import keep_the_loop_quick
from harnessd.runtime.host.systemd import ServiceManager
from harnessd.runtime.host.writers import Writers
from harnessd.runtime.observing.service import Observing, Seen
from harnessd.runtime.observing.status import status_facts
from harnessd.runtime.policies.authors import Authors
from harnessd.runtime.policies.in_force import InForce
from harnessd.runtime.policies.keeper import Keeper
from harnessd.runtime.policies.start import Start, choose_start
from harnessd.runtime.redact import Redactor
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.telling.channels import Adapters, Posting
from harnessd.runtime.telling.service import Telling
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.traffic.caller import task_names
from harnessd.runtime.traffic.chaos import Chaos
from harnessd.runtime.traffic.dependencies import Dependencies
from harnessd.runtime.traffic.desk import seats
from harnessd.runtime.traffic.passage import Traffic
from harnessd.runtime.traffic.prober import Prober
from harnessd.runtime.watchdog import Watchdog
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store, state_folder
from harnessd.stores import restore as restore_store
from harnessd.tools import ACTS, TOUCHES, Declared, Jobs, builtin_tools, command_tools, misfits, partial_output
from harnessd.tools.process import adopt_orphans
from harnessd.workspace.checkpoints import Checkpoints, Limits
from harnessd.workspace.confine import confine

# A change of the policy files is seen within this time; whose tools ran meanwhile may have made it.
_WRITERS_S = 5.0
scratch_store = open_store  # one of its own, to measure a disk by


def run(config: Path | None, strict: bool = False) -> int:
    """`harnessd run`: the daemon in the foreground; gives the exit status of contracts.md.

    Policies that are not valid do not keep a daemon from starting that has a last good revision; `strict` does.
    """
    path = find_config(config, os.environ)
    read = read_settings(path, os.environ)
    if read.settings is None:
        _tell(read.problems)
        return ConfigError.exit_code
    folder = Path(read.settings.policies.dir)
    policies = read_policies(folder, shown_folder(folder, path, None), read.settings)
    if strict and _tell((*policies.problems, *policies.warnings)):
        return ConfigError.exit_code
    daemon = _Daemon(path, read.settings, folder, policies, read.data)
    return daemon.seen.loop.run(daemon.run)


def check(config: Path | None) -> tuple[list[str], list[str]]:
    """`harnessd check`: all problems and all warnings, a line each; touches nothing."""
    try:
        loaded = load(config, os.environ)
    except ConfigProblems as wrong:
        return [str(problem) for problem in wrong.problems], []
    return [], [str(warning) for warning in loaded.warnings]


def restore(file: Path, config: Path | None) -> StoreRestored | int:
    """`harnessd restore FILE`: a backup becomes the store. Policies that are not valid are no reason not to."""
    read = read_settings(find_config(config, os.environ), os.environ)
    if read.settings is None:
        _tell(read.problems)
        return ConfigError.exit_code
    url = store_url(read.settings, os.environ, Redactor())
    return restore_store(file, url, crashpoint=crashpoints.from_environment(os.environ))


def _tell(lines: Any) -> bool:
    for line in lines:
        print(line, file=sys.stderr)  # noqa: T201 - there is no log yet, and these lines are the answer
    return bool(lines)


@dataclass(slots=True)
class _Daemon:
    """One daemon's adapters, filled in from its configuration."""

    path: Path
    settings: Settings
    folder: Path
    read: ReadPolicies
    config_bytes: bytes | None
    redactor: Redactor = field(default_factory=Redactor)
    clock: WallClock = field(default_factory=WallClock)
    started_at: float = field(default_factory=time.time)
    crash: crashpoints.Crashpoint = field(default_factory=lambda: crashpoints.from_environment(os.environ))
    jobs: Jobs = field(init=False)
    tools: Mapping[str, Tool] = field(init=False)
    configured: Configured = field(init=False)
    catalog: Catalog = field(init=False)
    keeper: Keeper = field(init=False)
    telling: Telling = field(init=False)
    watchdog: Watchdog = field(init=False)
    care: Care = field(init=False)
    dependencies: Dependencies = field(init=False)
    witness: Writers = field(init=False)
    seen: Observing = field(default_factory=Observing)

    async def run(self) -> int:
        """Open everything, serve, close everything."""
        self.seen.sink = telemetry.configure(self.redactor)
        undumpable()
        adopt_orphans()
        os.umask(0o077)
        url = store_url(self.settings, os.environ, self.redactor)
        store = open_store(url, crashpoint=self.crash, **store_options(self.settings))
        owner = f"{self.settings.store.node or socket.gethostname()}:{os.getpid()}"
        early.something_is_open()
        await store.open(owner)
        try:
            start = await choose_start(store, self._candidate(), self.clock.now())
            if start is None:
                _tell(self.read.problems)
                return ConfigError.exit_code
            state = state_folder(url, self.settings.store.state)
            self.configured = Configured(
                self.path, self.folder, self.settings, state, os.environ, self.redactor, misfits
            )
            keep_the_loop_quick()
            return await self._serve(store, owner, start)
        finally:
            await store.close()

    def _candidate(self) -> Candidate | None:
        if self.read.policies is None:
            return None
        snapshot = self.read.snapshot
        files = tuple(file.shown for file in snapshot.files)
        return Candidate(self.read.policies, self.settings, self.read.warnings, "start", files, (), snapshot)

    async def _serve(self, store: SqlStore, owner: str, start: Start) -> int:
        clients = Clients()
        in_force = InForce(start.policies, self.configured.wishes, self.clock.now(), start.source)
        self._make_tools(store, in_force)
        chaos = Chaos(lambda: in_force.policies, self.clock) if self.settings.chaos else None
        traffic = Traffic(lambda: in_force.policies, self.clock, store, local_tools=self.tools, chaos=chaos)
        await traffic.load()
        calls = self.seen.configure(self.settings, self.configured, traffic.class_of)
        gateway = Gateway(self._services(clients), self.crash, traffic, calls)
        pool = self._pool(store, gateway, traffic, in_force, owner)
        prober = self._look_after(traffic, gateway, store, in_force, pool)
        self.witness = Writers(self.jobs.task_of)
        self.keeper = self._keeper(store, in_force, pool, start)
        self.telling = self._telling(store, clients, in_force)
        reloader = self._reloader(start)
        facade = self._facade(pool, in_force, reloader)
        listener = open_control_socket(self.settings.socket.path, os.environ)
        await self.care.begin()
        await self.seen.attach(Seen(store, pool, in_force, self.dependencies, self._facts, self.configured, self.clock))

        async def control(stop: asyncio.Event, started: Callable[[], None]) -> None:
            about: dict[str, Any] = {"dependencies": self.dependencies, **self.care.served(), "metrics": self.seen.text}
            lineage = Lineage(os.getpid(), self.jobs.task_of, only_uid())
            about |= {"uid": os.geteuid(), "clock": self.clock, "lineage": lineage}
            await serve_control(listener, store, facade, stop, started=started, **about)

        work = (*self.care.work, *self.telling.work, *self.seen.work)
        return await serve(
            Parts(
                store=store,
                pool=pool,
                clock=self.clock,
                manager=ServiceManager(os.environ),
                control=control,
                watch=reloader.run,
                reload=lambda: reloader.reload("SIGHUP"),
                status_line=lambda: f"policies r{in_force.policies.revision} in force, {pool.busy} tasks running",
                also=(traffic.breakers.keep, prober.run, self.watchdog.run, *work),
                drain_s=self.settings.drain,
                close=partial(self._close, traffic, gateway, clients),
                ended=self.care.end,
            )
        )

    async def _close(self, traffic: Traffic, gateway: Gateway, clients: Clients) -> None:
        await self.jobs.aclose()
        await gateway.aclose()
        await clients.aclose()
        self.witness.close()
        with contextlib.suppress(HarnessError):
            await traffic.breakers.flush()
        await asyncio.to_thread(self.seen.close)

    def _make_tools(self, store: SqlStore, in_force: InForce) -> None:
        state = self.configured.state
        retention = lambda: in_force.policies.retention  # noqa: E731 - what is in force changes
        self.care = Care(store, self.clock, self.redactor.text, state, retention, self._workspace(state))
        self.care.starts.limits, self.care.drain_s = self.settings.restarts, self.settings.drain
        mark = sha256(os.fsencode(state)).hexdigest()[:12]
        self.jobs = Jobs(self.care.book, mark=mark, scrub=self.redactor.file, crashpoint=self.crash)
        built_in = builtin_tools(confine, self.jobs, self.settings.http_request.private)
        self.tools = {**built_in, **command_tools(self._declared(), self.jobs)}
        self.catalog = self.configured.catalog(self.tools, TOUCHES, ACTS)

    def _workspace(self, state: Path) -> Checkpoints:
        limits = self.settings.workspaces.checkpoints
        return Checkpoints(state / "checkpoints", Limits(limits.max_file, limits.exclude), self.crash)

    def _declared(self) -> dict[str, Declared]:
        folder = self.path.absolute().parent
        tools = self.settings.tools.items()
        return {name: Declared(one.command, one.schema_, one.about, folder) for name, one in tools}

    def _look_after(self, traffic: Traffic, gateway: Gateway, store: SqlStore, in_force: InForce, pool: Pool) -> Prober:
        """What people see of dependencies, and who brings parked tasks back."""
        prober = Prober(traffic, store, self.clock, pool.wake, self.settings.workers)
        in_force.changed += [traffic.changed, prober.limits_changed, pool.wake]
        self.dependencies = Dependencies(
            traffic, gateway, store, self.clock, models=self.configured.models, tools=self.tools, workers=pool
        )
        return prober

    def _services(self, clients: Clients) -> dict[str, Service]:
        services = {}
        for alias, model in self.settings.models.items():
            endpoint = Endpoint(
                alias=alias,
                base_url=model.base_url,
                model=model.model,
                key=self.configured.key(alias),
                clients=clients,
                window=model.window,
                max_output=model.max_output,
                now=self.clock.now,
            )
            services[alias] = Service(PROTOCOLS[model.protocol](endpoint), self.configured.prices(alias))
        return services

    def _pool(self, store: SqlStore, gateway: Gateway, traffic: Traffic, in_force: InForce, owner: str) -> Pool:
        toolbox = Toolbox(
            self.tools,
            partial_output=partial_output,
            environment=self.configured.environment,
            artefacts=self.configured.state / "artefacts",
            jobs=self.jobs,
            crashpoint=self.crash,
            traffic=traffic,
            redact=self.configured.redactor.text,
            protected=self.configured.protected,
            calls=self.seen.calls,
        )
        begun = lambda: self.watchdog.wake()  # noqa: E731, PLW0108 - the watchdog needs the pool, and is made after it
        around = Surroundings(
            self.seen.calls.journal(self.care.journal),
            gateway,
            toolbox,
            self.clock,
            crashpoint=self.crash,
            watching=begun,
            room=self.care.guard,
            looker=self.care.looker(self.jobs),
        )
        lease = self.settings.store.lease
        settings = PoolSettings(
            owner,
            self.settings.workers,
            lease.ttl,
            lease.heartbeat,
            lambda tasks: seats(in_force.policies, [task_names(task) for task in tasks]),
        )

        async def prepare(task: Task) -> Refused | None:
            await self.keeper.pin(task.draft.pinned_revision)
            look = self.configured.workspace_refused
            return await asyncio.to_thread(look, task.draft.workspace, in_force.policies)

        pool = Pool(store, around, lambda: self.catalog, in_force.for_task, settings, prepare)
        toolbox.make_sure = pool.leases.make_sure
        self.watchdog = self.care.attach(pool, self.jobs, gateway.silence_s, toolbox.perform, self.crash)
        in_force.changed.append(pool.policies_changed)
        return pool

    def _keeper(self, store: SqlStore, in_force: InForce, pool: Pool, start: Start) -> Keeper:
        return Keeper(
            store,
            in_force,
            self.clock,
            running=pool.standing,
            guard=self.settings.policies.guard,
            agents_changed=self._take_agents,
            hold=start.hold,
            warnings=self.read.warnings,
            authors=Authors(
                self.witness,
                lambda: [task for task, runner in pool.running.items() if runner.tools_ran(_WRITERS_S)],
                lambda files: pool.named_lately([Path(file).name for file in files], _WRITERS_S),
            ),
            waits=start.waits,
            files=self._candidate(),
            agents=self.settings.agents,
            crashpoint=self.crash,
        )

    def _telling(self, store: SqlStore, clients: Clients, in_force: InForce) -> Telling:
        def webhook(one: Posting) -> Webhook:
            return Webhook(clients, one.url, one.headers, one.body, one.accepts, self.clock.now, one.secrets)

        telling = Telling(
            store,
            lambda: in_force.policies,
            self.clock,
            Adapters(webhook, Command, Log, Apprise),
            environ=os.environ,
            redactor=self.redactor,
            lasts=self.keeper.lasts,
        )
        in_force.changed.append(telling.rules_changed)
        return telling

    def _take_agents(self, candidate: Candidate) -> None:
        """`agents` is the one part of harness.yaml that is read again, in the same step as the policies."""
        self.configured.settings = candidate.settings
        self.catalog = self.configured.catalog(self.tools, TOUCHES, ACTS)

    def _reloader(self, start: Start) -> Reloader:
        # Where the files are not what is in force, the reloader's first look shall say so.
        as_read = not start.hold and start.waits is None and self.read.policies is not None
        loaded = Loaded(
            self.path,
            self.settings,
            start.policies,
            self.folder,
            self.read.warnings,
            snapshot=self.read.snapshot if as_read else Snapshot(()),
            config_bytes=self.config_bytes,
        )
        return Reloader(loaded, os.environ, self.keeper.take, onlooker=self.witness, same=self.keeper.same)

    def _facade(self, pool: Pool, in_force: InForce, reloader: Reloader) -> Facade:
        return Facade(
            pool,
            self.clock,
            draft=self.care.guard.admitting(lambda body: self.configured.draft(body, in_force.policies)),
            in_force=lambda draft, task: in_force.effective(draft, task, self.catalog.model_of),
            facts=self._facts,
            keeper=self.keeper,
            reload=lambda hear, yes: reloader.reload("reload", yes=yes, tell=hear),
            channel=self.telling.test,
            window=lambda history: self.catalog.window(history, in_force.of(history.task.draft, history.task.id)),
            sources=self.configured.sources,
        )

    def _facts(self) -> dict[str, Any]:
        parts = (self.care, self.dependencies, self.seen)
        return status_facts(self.settings.workers, self.started_at, parts, self.keeper)
