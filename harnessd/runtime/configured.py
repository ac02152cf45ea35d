"""Configured: what harness.yaml means for the runtime: catalog, prices, keys, environments, drafts that fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harnessd.config.environment import resolve_secret
from harnessd.config.pricing.charge import charges
from harnessd.config.settings import Settings
from harnessd.domain.failure import ConfigError
from harnessd.domain.ports import Refused, Tool
from harnessd.domain.task import TaskDraft
from harnessd.domain.workspace import Touches
from harnessd.engine.protocol import ActOf, ModelFacts
from harnessd.policy import PolicySet
from harnessd.policy.assembly.kinds import KINDS
from harnessd.runtime.catalog import AgentFacts, Catalog, FeatureFacts
from harnessd.runtime.drafts import Known, draft_from, workspace_refused
from harnessd.runtime.gateway import Prices
from harnessd.runtime.redact import Redactor

# What a tool's process gets of our environment; everything else an agent must ask for (contracts.md, `env`).
_PASSED_ALWAYS = ("PATH", "LANG")
_PATH = "/usr/local/bin:/usr/bin:/bin"

Misfits = Callable[[Mapping[str, Any], Any], Sequence[str]]


def store_url(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> str:
    """The store's address; a secret one is read and learned by the redactor. Raises ConfigError."""
    url = settings.store.url
    if isinstance(url, str):
        return url
    found = resolve_secret(url, environ, "store.url")
    if found.value is None:
        raise ConfigError(found.sentence, remedy=found.remedy)
    return redactor.learn(found.value) or ""


def store_options(settings: Settings) -> dict[str, Any]:
    """Who this daemon is among others on a server, and for how long it looks for a server that is away.

    A daemon that cannot prolong its leases ends before others may take its tasks.
    """
    store = settings.store
    given = {"node": store.node, "host": store.host}
    node = {key: value for key, value in given.items() if value is not None}
    return {"node": node, "patience_s": max(store.lease.ttl - store.lease.heartbeat, store.lease.ttl / 2)}


@dataclass(slots=True)
class Configured:
    """harness.yaml at work. `settings` is replaced when its agents are read again; `state` is the store's folder."""

    path: Path
    folder: Path  # of the policies
    settings: Settings
    state: Path
    environ: Mapping[str, str]
    redactor: Redactor
    misfits: Misfits = lambda _, __: ()  # what of a value does not fit a JSON Schema

    def catalog(self, tools: Mapping[str, Tool], touches: Mapping[str, Touches], acts: Mapping[str, ActOf]) -> Catalog:
        """The agents and models a task may name. `touches`: what tools may write of a workspace, where not anything."""
        agents = {
            name: AgentFacts(
                name,
                agent.system,
                tuple(tool for tool in agent.tools if tool in tools),
                agent.model,
                agent.policies,
                wanted=_json(agent.output.schema_) if agent.output else "",
                safe=_json(agent.output.safe) if agent.output else "",
                fits=partial(self.misfits, agent.output.schema_) if agent.output else None,
                feature=agent.feature or "",
            )
            for name, agent in self.settings.agents.items()
        }
        charged, models = charges(self.settings.models), {}
        for alias, model in self.settings.models.items():
            charge = charged[alias]
            models[alias] = ModelFacts(
                alias,
                model.window,
                model.max_output,
                charge.input,
                charge.output,
                priced=charge.known,
                tools=model.tools,
                images=model.images,
                protocol=model.protocol,
                service_model=model.model,
            )
        features = {
            name: FeatureFacts(name, feature.agent, feature.tools, feature.add)
            for name, feature in self.settings.features.items()
        }
        return Catalog(agents, models, tools, features, touches, acts)

    def models(self) -> dict[str, dict[str, Any]]:
        """The models for people; no key. `price` is USD per million tokens and says whose price it is."""
        charged = charges(self.settings.models)
        return {
            alias: {
                "protocol": model.protocol,
                "name": model.model,
                "base_url": model.base_url,
                "window": model.window,
                "max_output": model.max_output,
                "tools": model.tools,
                "images": model.images,
                "price": asdict(charged[alias]),
            }
            for alias, model in self.settings.models.items()
        }

    def prices(self, alias: str) -> Prices:
        """What a model costs; without a price it counts as the dearest declared one, never as free (R3.9)."""
        charge = charges(self.settings.models)[alias]
        return Prices(charge.input, charge.output, charge.cache_read, charge.cache_write)

    def key(self, alias: str) -> Callable[[], str | None]:
        """Reads a model's key; called at each call, so that a new credential needs no restart.

        The reader raises OSError with a sentence where the key is declared and cannot be had.
        """
        secret = self.settings.models[alias].key

        def read() -> str | None:
            if secret is None:
                return None
            found = resolve_secret(secret, self.environ, f"model {alias}")
            if found.value is None:
                raise OSError(f"{found.sentence}: {found.remedy}")
            return self.redactor.learn(found.value)

        return read

    def wishes(self, agent: str) -> Mapping[str, str]:
        """The policies that an agent asks for."""
        found = self.settings.agents.get(agent)
        return found.policies if found is not None else {}

    def environment(self, agent: str, folder: Path) -> dict[str, str]:
        """A child's environment, built from nothing: what the agent passes and sets, a home and scratch of the task."""
        home, scratch = folder / "home", folder / "tmp"
        home.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        env = self.settings.agents[agent].env if agent in self.settings.agents else None
        passed = (*_PASSED_ALWAYS, *(env.pass_ if env else ()))
        built = {"PATH": _PATH, "LANG": "C.UTF-8", "TERM": "dumb"}
        built |= {name: self.environ[name] for name in passed if name in self.environ}
        built |= {"HOME": str(home), "TMPDIR": str(scratch)}
        return built | {name: str(value) for name, value in (env.set if env else {}).items()}

    def draft(self, body: Mapping[str, Any], policies: PolicySet) -> TaskDraft | Refused:
        """The draft behind a submit's body, refused where it could not run: unknown names, no key, no such folder."""
        draft = draft_from(body, self._known(policies))
        if isinstance(draft, Refused):
            return draft
        alias = draft.model or self.settings.agents[draft.agent].model
        secret = self.settings.models[alias].key
        if secret is not None:
            found = resolve_secret(secret, self.environ, f"model {alias}")
            if found.value is None:
                return Refused("refused", f"{found.sentence}.", f"{found.remedy[:1].upper()}{found.remedy[1:]}.")
        return draft

    def workspace_refused(self, workspace: str, policies: PolicySet) -> Refused | None:
        """Looked at again whenever a worker takes a task: folders move, and links appear."""
        return workspace_refused(workspace, self._known(policies))

    def _known(self, policies: PolicySet) -> Known:
        return Known(
            agents={name: agent.model for name, agent in self.settings.agents.items()},
            models=tuple(self.settings.models),
            default_agent=self.settings.default_agent,
            policies={kind: policies.names(kind) for kind in KINDS},
            roots=tuple(Path(root) for root in self.settings.workspaces.roots),
            protected=(self.path.absolute(), self.folder, self.state),
            features={name: feature.agent for name, feature in self.settings.features.items()},
        )

    @property
    def protected(self) -> tuple[str, ...]:
        """Paths that no tool call may name: what decides about agents is not theirs."""
        return (str(self.path.absolute()), str(self.folder))

    def sources(self) -> dict[str, Any]:
        """Which files the policies come from, for `policy diff files`; what agents ask for, for `policy show --for`."""
        agents = {name: dict(agent.policies) for name, agent in self.settings.agents.items()}
        return {"config": str(self.path.absolute()), "folder": str(self.folder), "agents": agents}


def _json(value: Any) -> str:
    """A value of harness.yaml as JSON text; nothing for none."""
    return "" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
