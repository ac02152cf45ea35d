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
from harnessd.config.load import ConfigProblems, Loaded, load, read_policies, shown_folder
from harnessd.config.settings import ModelSettings, Settings
from harnessd.domain.failure import ConfigError
from harnessd.domain.ports import Refused, Tool
from harnessd.domain.task import TaskDraft
from harnessd.engine.protocol import ModelFacts
from harnessd.net import Clients
from harnessd.policy.kinds import KINDS
from harnessd.providers import PROTOCOLS, Endpoint
from harnessd.runtime import crashpoints, telemetry
from harnessd.runtime.catalog import AgentFacts, Catalog
from harnessd.runtime.control import listen
from harnessd.runtime.control import serve as serve_control
from harnessd.runtime.daemon import Facade, Parts, WallClock, serve
from harnessd.runtime.drafts import Known, draft_from
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.hardening import undumpable
from harnessd.runtime.in_force import InForce
from harnessd.runtime.redact import Redactor
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.socket_path import daemon_socket_path
from harnessd.runtime.systemd import ServiceManager
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import open_store
from harnessd.stores import restore as restore_store
from harnessd.tools import Jobs, builtin_tools, partial_output
from harnessd.tools.process import adopt_orphans
from harnessd.workspace.confine import confine

_log = telemetry.log("app")
# What a tool's process gets of our environment; everything else an agent must ask for (contracts.md, `env`).
_PASSED_ALWAYS = ("PATH", "LANG")
_PATH = "/usr/local/bin:/usr/bin:/bin"


def run(config: Path | None, strict: bool = False) -> int:
    """`harnessd run`: the daemon in the foreground; gives the exit status of contracts.md."""
    loaded = _load(config)
    if loaded is None or (strict and _tell(loaded.warnings)):
        return ConfigError.exit_code
    return asyncio.run(_Daemon(loaded).run())


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

    loaded: Loaded
    redactor: Redactor = field(default_factory=Redactor)
    clock: WallClock = field(default_factory=WallClock)
    started_at: float = field(default_factory=time.time)
    reloads: int = 1

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

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
            state = _state_folder(url)
            jobs = Jobs()
            tools = builtin_tools(confine, jobs)
            clients = Clients()
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
            in_force = InForce(self.loaded.policies.at(self.reloads), self._wishes, self.started_at)
            catalog = self._catalog(tools)
            lease = self.settings.store.lease
            pool_settings = PoolSettings(owner, self.settings.workers, lease.ttl, lease.heartbeat)
            pool = Pool(store, around, lambda: catalog, in_force.for_task, pool_settings)
            facade = Facade(
                pool,
                self.clock,
                draft=lambda body: self._draft(body, in_force, state),
                in_force=lambda draft, task: in_force.effective(draft, task, lambda agent: catalog.agents[agent].model),
                facts=lambda: self._facts(in_force),
            )
            path = Path(self.settings.socket.path or daemon_socket_path(os.environ, os.geteuid()))
            listener = listen(path, for_group=os.geteuid() == 0 and self.settings.socket.path is None)
            await store.release_all(self.clock.now())

            async def close() -> None:
                await jobs.aclose()
                await gateway.aclose()
                await clients.aclose()

            return await serve(
                Parts(
                    store=store,
                    pool=pool,
                    clock=self.clock,
                    manager=ServiceManager(os.environ),
                    control=lambda stop, started: serve_control(
                        listener, store, facade, stop, clock=self.clock, uid=os.geteuid(), started=started
                    ),
                    reload=lambda: self._reload(in_force),
                    status_line=lambda: f"policies r{in_force.policies.revision} in force, {pool.busy} tasks running",
                    drain_s=self.settings.drain,
                    close=close,
                )
            )
        finally:
            await store.close()

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
            protected=(self.loaded.path.absolute(), self.loaded.policies_dir, state),
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

    def _facts(self, in_force: InForce) -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "node": socket.gethostname(),
            "started_at": self.started_at,
            "ready": True,
            "workers": self.settings.workers,
            "warnings": [str(warning) for warning in self.loaded.warnings],
            "policies": in_force.facts(),
        }

    async def _reload(self, in_force: InForce) -> None:
        """SIGHUP: the whole set or nothing; the last good one stays in force."""
        folder = self.loaded.policies_dir
        shown = shown_folder(folder, self.loaded.path, None)
        read = await asyncio.to_thread(read_policies, folder, shown, self.settings)
        if read.policies is None:
            _log.error("policy_invalid", problems=[str(problem) for problem in read.problems])
            return
        if read.policies.hash != in_force.policies.hash:
            self.reloads += 1
            in_force.swap(read.policies.at(self.reloads), self.clock.now(), "SIGHUP")
        _log.info("policy_applied", revision=in_force.policies.revision)


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
