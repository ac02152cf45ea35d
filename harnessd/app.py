"""App: the composition root; the only file that names concrete adapters."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd import __version__
from harnessd.config.environment import resolve_secret
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
from harnessd.config.settings import ModelSettings, Settings
from harnessd.domain.failure import ConfigError
from harnessd.domain.ports import Refused, Tool
from harnessd.domain.task import Task, TaskDraft
from harnessd.engine.protocol import ModelFacts
from harnessd.net import Clients
from harnessd.policy.kinds import KINDS
from harnessd.providers import PROTOCOLS, Endpoint
from harnessd.runtime import crashpoints, telemetry
from harnessd.runtime.catalog import AgentFacts, Catalog
from harnessd.runtime.control import Lineage, listen
from harnessd.runtime.control import serve as serve_control
from harnessd.runtime.daemon import Facade, Parts, WallClock, serve
from harnessd.runtime.drafts import Known, draft_from
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.hardening import undumpable
from harnessd.runtime.in_force import InForce
from harnessd.runtime.policy_keeper import Keeper, Start, choose_start
from harnessd.runtime.redact import Redactor
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.socket_path import daemon_socket_path
from harnessd.runtime.systemd import ServiceManager
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store
from harnessd.stores import restore as restore_store
from harnessd.tools import Jobs, builtin_tools, partial_output
from harnessd.tools.process import adopt_orphans
from harnessd.workspace.confine import confine

# What a tool's process gets of our environment; everything else an agent must ask for (contracts.md, `env`).
_PASSED_ALWAYS = ("PATH", "LANG")
_PATH = "/usr/local/bin:/usr/bin:/bin"


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
    return asyncio.run(_Daemon(path, read.settings, folder, policies, read.data).run())


def check(config: Path | None) -> tuple[list[str], list[str]]:
    """`harnessd check`: all problems and all warnings, a line each; touches nothing."""
    try:
        loaded = load(config, os.environ)
    except ConfigProblems as wrong:
        return [str(problem) for problem in wrong.problems], []
    return [], [str(warning) for warning in loaded.warnings]


def restore(file: Path, config: Path | None) -> int:
    """`harnessd restore FILE`: a backup becomes the store."""
    loaded = _load(config)
    if loaded is None:
        return ConfigError.exit_code
    restore_store(file, _store_url(loaded.settings, Redactor()))
    return 0


def _load(config: Path | None) -> Loaded | None:
    try:
        return load(config, os.environ)
    except ConfigProblems as wrong:
        _tell(wrong.problems)
        return None


def _tell(lines: Any) -> bool:
    for line in lines:
        print(line, file=sys.stderr)  # noqa: T201 - there is no log yet, and these lines are the answer
    return bool(lines)


def _store_url(settings: Settings, redactor: Redactor) -> str:
    url = settings.store.url
    if isinstance(url, str):
        return url
    found = resolve_secret(url, os.environ, "store.url")
    if found.value is None:
        raise ConfigError(found.sentence, remedy=found.remedy)
    return redactor.learn(found.value) or ""


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
    catalog: Catalog = field(init=False)
    keeper: Keeper = field(init=False)

    async def run(self) -> int:
        """Open everything, serve, close everything."""
        telemetry.configure(self.redactor)
        undumpable()
        adopt_orphans()
        os.umask(0o077)
        crash = crashpoints.from_environment(os.environ)
        url = _store_url(self.settings, self.redactor)
        store = open_store(url, crashpoint=crash)
        owner = f"{socket.gethostname()}:{os.getpid()}"
        await store.open(owner)
        try:
            start = await choose_start(store, self._candidate(), self.clock.now())
            if start is None:
                _tell(self.read.problems)
                return ConfigError.exit_code
            return await serve(await self._parts(store, owner, start, url, crash))
        finally:
            await store.close()

    def _candidate(self) -> Candidate | None:
        if self.read.policies is None:
            return None
        snapshot = self.read.snapshot
        files = tuple(file.shown for file in snapshot.files)
        return Candidate(self.read.policies, self.settings, self.read.warnings, "start", files, (), snapshot)

    async def _parts(self, store: SqlStore, owner: str, start: Start, url: str, crash: crashpoints.Crashpoint) -> Parts:
        state = _state_folder(url)
        jobs, clients = Jobs(), Clients()
        tools = builtin_tools(confine, jobs)
        gateway = Gateway(self._services(clients), crash)
        toolbox = Toolbox(
            tools,
            partial_output=partial_output,
            environment=self._environment,
            artefacts=state / "artefacts",
            jobs=jobs,
            crashpoint=crash,
        )
        around = Surroundings(store, gateway, toolbox, self.clock, crashpoint=crash)
        in_force = InForce(start.policies, self._wishes, self.clock.now(), start.source)
        pool = self._pool(store, around, in_force, owner, tools)
        keeper = Keeper(
            store,
            in_force,
            self.clock,
            running=pool.standing,
            guard=self.settings.policies.guard,
            agents_changed=lambda candidate: self._take_agents(candidate, tools),
            hold=start.hold,
            warnings=self.read.warnings,
        )
        self.keeper = keeper
        reloader = self._reloader(start, keeper)
        facade = Facade(
            pool,
            self.clock,
            draft=lambda body: self._draft(body, in_force, state),
            in_force=lambda draft, task: in_force.effective(
                draft, task, lambda agent: self.catalog.agents[agent].model
            ),
            facts=self._facts,
            keeper=keeper,
            reload=lambda hear, yes: reloader.reload("reload", yes=yes, tell=hear),
            sources=self._sources,
        )
        path = Path(self.settings.socket.path or daemon_socket_path(os.environ, os.geteuid()))
        listener = listen(path, for_group=os.geteuid() == 0 and self.settings.socket.path is None)
        await store.release_all(self.clock.now())

        async def close() -> None:
            await jobs.aclose()
            await gateway.aclose()
            await clients.aclose()

        return Parts(
            store=store,
            pool=pool,
            clock=self.clock,
            manager=ServiceManager(os.environ),
            control=lambda stop, started: serve_control(
                listener,
                store,
                facade,
                stop,
                clock=self.clock,
                uid=os.geteuid(),
                started=started,
                lineage=Lineage(os.getpid(), jobs.task_of),
            ),
            watch=reloader.run,
            reload=lambda: _reload(reloader),
            status_line=lambda: f"policies r{in_force.policies.revision} in force, {pool.busy} tasks running",
            drain_s=self.settings.drain,
            close=close,
        )

    def _pool(
        self, store: SqlStore, around: Surroundings, in_force: InForce, owner: str, tools: Mapping[str, Tool]
    ) -> Pool:
        self.catalog = self._catalog(tools)
        lease = self.settings.store.lease
        settings = PoolSettings(owner, self.settings.workers, lease.ttl, lease.heartbeat)

        async def prepare(task: Task) -> None:
            await self.keeper.pin(task.draft.pinned_revision)

        return Pool(store, around, lambda: self.catalog, in_force.for_task, settings, prepare)

    def _reloader(self, start: Start, keeper: Keeper) -> Reloader:
        # Where the files are not what is in force, the reloader's first look shall say so.
        as_read = not start.hold and self.read.policies is not None
        loaded = Loaded(
            self.path,
            self.settings,
            start.policies,
            self.folder,
            self.read.warnings,
            snapshot=self.read.snapshot if as_read else Snapshot(()),
            config_bytes=self.config_bytes,
        )
        return Reloader(loaded, os.environ, keeper.take)

    def _take_agents(self, candidate: Candidate, tools: Mapping[str, Tool]) -> None:
        """`agents` is the one part of harness.yaml that is read again, in the same step as the policies."""
        self.settings = candidate.settings
        self.catalog = self._catalog(tools)

    def _services(self, clients: Clients) -> dict[str, Service]:
        dearest = max((m.prices.output for m in self.settings.models.values() if m.prices), default=0.0)
        services = {}
        for alias, model in self.settings.models.items():
            endpoint = Endpoint(
                alias=alias,
                base_url=model.base_url,
                model=model.model,
                key=self._key(alias, model),
                clients=clients,
                window=model.window,
                max_output=model.max_output,
                now=self.clock.now,
            )
            services[alias] = Service(PROTOCOLS[model.protocol](endpoint), _prices(model, self.settings, dearest))
        return services

    def _key(self, alias: str, model: ModelSettings) -> Callable[[], str | None]:
        def read() -> str | None:
            # At each call: a new credential needs no restart.
            if model.key is None:
                return None
            found = resolve_secret(model.key, os.environ, f"model {alias}")
            if found.value is None:
                raise OSError(f"{found.sentence}: {found.remedy}")
            return self.redactor.learn(found.value)

        return read

    def _catalog(self, tools: Mapping[str, Tool]) -> Catalog:
        agents = {
            name: AgentFacts(
                name, agent.system, tuple(tool for tool in agent.tools if tool in tools), agent.model, agent.policies
            )
            for name, agent in self.settings.agents.items()
        }
        models = {}
        for alias, model in self.settings.models.items():
            price = model.prices
            models[alias] = ModelFacts(
                alias, model.window, model.max_output, price.input if price else None, price.output if price else None
            )
        return Catalog(agents, models, tools)

    def _model_of(self, agent: str) -> str:
        return self.catalog.agents[agent].model if agent in self.catalog.agents else ""

    def _wishes(self, agent: str) -> Mapping[str, str]:
        found = self.settings.agents.get(agent)
        return found.policies if found is not None else {}

    def _environment(self, agent: str, folder: Path) -> dict[str, str]:
        """A child's environment, built from nothing: what the agent passes and sets, a home and scratch of the task."""
        home, scratch = folder / "home", folder / "tmp"
        home.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        env = self.settings.agents[agent].env if agent in self.settings.agents else None
        passed = (*_PASSED_ALWAYS, *(env.pass_ if env else ()))
        built = {"PATH": _PATH, "LANG": "C.UTF-8", "TERM": "dumb"}
        built |= {name: os.environ[name] for name in passed if name in os.environ}
        built |= {"HOME": str(home), "TMPDIR": str(scratch)}
        return built | {name: str(value) for name, value in (env.set if env else {}).items()}

    def _draft(self, body: Mapping[str, Any], in_force: InForce, state: Path) -> TaskDraft | Refused:
        agents = {name: agent.model for name, agent in self.settings.agents.items()}
        known = Known(
            agents=agents,
            models=tuple(self.settings.models),
            default_agent=self.settings.default_agent,
            policies={kind: in_force.policies.names(kind) for kind in KINDS},
            roots=tuple(Path(root) for root in self.settings.workspaces.roots),
            protected=(self.path.absolute(), self.folder, state),
        )
        draft = draft_from(body, known)
        if isinstance(draft, Refused):
            return draft
        alias = draft.model or agents[draft.agent]
        model = self.settings.models[alias]
        if model.key is not None:
            found = resolve_secret(model.key, os.environ, f"model {alias}")
            if found.value is None:
                return Refused("refused", f"{found.sentence}.", f"{found.remedy[:1].upper()}{found.remedy[1:]}.")
        return draft

    def _sources(self) -> dict[str, Any]:
        """Which files the policies come from, for `policy diff files`; what agents ask for, for `policy show --for`."""
        agents = {name: dict(agent.policies) for name, agent in self.settings.agents.items()}
        return {"config": str(self.path.absolute()), "folder": str(self.folder), "agents": agents}

    def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "node": socket.gethostname(),
            "started_at": self.started_at,
            "ready": True,
            "workers": self.settings.workers,
            "warnings": [str(warning) for warning in self.keeper.warnings],
            "policies": self.keeper.facts(),
        }


async def _reload(reloader: Reloader) -> None:
    await reloader.reload("SIGHUP")


def _prices(model: ModelSettings, settings: Settings, dearest: float) -> Prices:
    """What the model costs; without a price it counts as the dearest declared one, never as free (R3.9)."""
    price = model.prices
    if price is None:
        priced = [other.prices for other in settings.models.values() if other.prices and other.prices.output == dearest]
        price = priced[0] if priced else None
    if price is None:
        return Prices()
    return Prices(price.input, price.output, price.cache_read, price.cache_write)


def _state_folder(url: str) -> Path:
    return Path(url.removeprefix("sqlite:")).absolute().parent
