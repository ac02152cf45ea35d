"""Show: what is in force, or would be, and where each value comes from: file and line, note, the default beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, NOT_FOUND, UNREACHABLE, USAGE, Client, Problem, task_path
from harnessd.cli.options import connect, connection, json_option
from harnessd.cli.policy.origins import LISTS, Value, assigning, entry_title, settings, values
from harnessd.cli.policy.sources import (
    Source,
    config_option,
    in_force,
    kind_and_name,
    no_such_policy,
    on_disk,
    stored,
    tell_problems,
)
from harnessd.policy import Policy, PolicySet, TaskFacts
from harnessd.policy.assembly.kinds import KINDS, TASK_KINDS
from harnessd.policy.assign import share_of
from harnessd.policy.budget import with_limits
from harnessd.policy.language.facts import BUDGETS
from harnessd.policy.language.source import did_you_mean

_VALUE_COLUMNS = 48  # longer ones, conditions mostly, are whole in --json and in the file


@dataclass(frozen=True, slots=True)
class Subject:
    """For whom: which name each task kind has, and what is known of the calls."""

    title: str = ""
    chosen: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    maybe: tuple[str, ...] = ()  # policies that some of its tasks get, and by which rule


@click.command()
@click.argument("policy", required=False, metavar="[KIND[/NAME]]")
@click.option("--effective", is_flag=True, help="All values, the built-in defaults too; else what the files say.")
@click.option("--for", "whom", metavar="TASK|agent/NAME", help="What this task, or a task of this agent, gets.")
@click.option("--name", metavar="NAME", help="What one name gets: tool/bash, model/primary, agent/coder, label/K=V.")
@click.option(
    "--files", "folder", type=click.Path(path_type=Path), metavar="DIR", help="This folder, without a daemon."
)
@config_option
@json_option
@connection
@click.pass_context
def show(ctx: click.Context, /, policy: str | None, whom: str | None, name: str | None, **given: Any) -> int:
    """What is in force, and where each value comes from.

    With a daemon the set in force; with --config or --files the files, without a daemon.
    """
    folder, config, effective, as_json = (given[option] for option in ("folder", "config", "effective", "as_json"))
    client = None if folder is not None or config is not None else connect(ctx)
    kind, named = kind_and_name(policy) if policy else (None, None)
    if name is not None and kind not in LISTS:
        raise Problem(USAGE, "--name asks for settings by name.", f"Name a kind: {', '.join(LISTS)}.")
    source = _source(client, folder, config)
    if source.policies is None:
        tell_problems(source.problems)
        return FAILED
    subject = _subject(whom, source, client, ctx) if whom else Subject()
    if whom and client is not None:
        source = _of_pinned(client, whom, source)
    wanted = _wanted(source.whole, kind, named, subject)
    if kind is None and not effective and not whom:
        return _overview(source, as_json)
    shown = [_shown(one, source, effective or name is not None, name, subject) for one in wanted]
    if as_json:
        render.out_json(_document(source, subject, shown))
    else:
        _print(source, subject, shown, name)
    return 0


def _source(client: Client | None, folder: Path | None, config: Path | None) -> Source:
    if client is None:
        disk = on_disk(folder, config)
        return disk.source(disk.shown)
    try:
        return in_force(client)
    except Problem as problem:
        if problem.exit_code != UNREACHABLE:
            raise
        hint = f"{problem.hint}. Or look at the files: harnessctl policy show --config harness.yaml"
        raise Problem(problem.exit_code, problem.message, hint, problem.code) from None


# --- for whom ---------------------------------------------------------------------------------------------------------


def _subject(whom: str, source: Source, client: Client | None, ctx: click.Context) -> Subject:
    sort, slash, agent = whom.partition("/")
    if slash and sort == "agent":
        return _agent(agent, source)
    row = (client or connect(ctx)).get(task_path(whom))
    chosen = {kind: (found["name"], found.get("why", "")) for kind, found in row["policies"].items()}
    facts = {"agent": row["agent"], "workspace": row["workspace"], "priority": row["priority"], "label.*": None}
    facts |= {f"label.{key}": value for key, value in row["labels"].items()}
    facts |= {"model": f"model/{row['model']}"} if row.get("model") else {}
    budget = {one["budget"]: one["limit"] for one in row.get("budgets", []) if one.get("limit") is not None}
    return Subject(f"task {row['task']}, agent {row['agent']}", chosen, budget, facts)


def _of_pinned(client: Client, whom: str, source: Source) -> Source:
    """A pinned task keeps its task kinds of the revision that was in force when it was pinned."""
    if whom.startswith("agent/"):
        return source
    row = client.get(task_path(whom))
    if not row.get("pinned") or row["revision"] == source.whole.revision:
        return source
    kept = stored(client, int(row["revision"]))
    policies = {key: one for key, one in source.whole.policies.items() if key[0] not in TASK_KINDS}
    policies |= {key: one for key, one in kept.whole.policies.items() if key[0] in TASK_KINDS}
    both = PolicySet(policies, source.whole.revision, source.whole.hash)
    return Source(kept.title, f"pinned; {source.title} in force", both, (), kept.texts, source.agents)


def _agent(name: str, source: Source) -> Subject:
    agents = source.agents
    if agents is not None and name not in agents:
        hint = did_you_mean(name, agents)
        raise Problem(NOT_FOUND, f'There is no agent "{render.one_line(name)}".', f"{hint[:1].upper()}{hint[1:]}")
    # A task that no share smaller than a thousandth below the whole takes in: what is left to chance is said apart.
    unlucky = next(word for word in map(str, range(10**6)) if share_of(word) > 0.999)
    task = source.whole.for_task(TaskFacts(unlucky, name), (agents or {}).get(name, {}), {}, {})
    facts = {"agent": name}
    maybe = []
    for entry in assigning(source.whole.assign, name, facts):
        uses = ", ".join(f"{kind}/{entry.node['use'][kind]}" for kind in entry.node["use"])
        maybe.append(f"{uses} by assign {entry_title(entry.label)} ({entry.condition})")
    return Subject(f"agent {name}", task.chosen, {}, facts, tuple(maybe))


def _wanted(policies: PolicySet, kind: str | None, named: str | None, subject: Subject) -> list[Policy[Any]]:
    kinds = [kind] if kind is not None else list(KINDS)
    found = []
    for one in kinds:
        if named is not None:
            names: Sequence[str] = (named,)
        elif one in subject.chosen:
            names = (subject.chosen[one][0],)
        else:
            names = policies.names(one) if not subject.title else ("default",)
        for name in names:
            policy = policies.get(one, name)
            if policy is None:
                raise no_such_policy(one, name, policies)
            found.append(policy)
    return found


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """One policy and the values that are shown of it."""

    policy: Policy[Any]
    values: tuple[Value, ...]
    why: str = ""


def _shown(policy: Policy[Any], source: Source, effective: bool, name: str | None, subject: Subject) -> Shown:
    shipped = source.builtin()
    builtin = shipped.get(policy.kind, policy.name) or shipped.get(policy.kind)
    why = subject.chosen.get(policy.kind, ("", ""))[1]
    if policy.kind == "budget" and subject.budget:
        policy = _with_own_limits(policy, subject.budget)
    if name is not None:
        return Shown(policy, tuple(settings(policy, builtin, name, subject.facts, source.texts)), why)
    found = tuple(one for one in values(policy, builtin, source.texts) if effective or not one.place.builtin)
    return Shown(policy, found, why)


def _with_own_limits(policy: Policy[Any], limits: Mapping[str, float]) -> Policy[Any]:
    """Limits that this task has on top of its policy, as `submit --budget` and `set --budget` gave them."""
    shape = policy.shape.limits
    own = {name: limits[name] for name in BUDGETS if name in limits and limits[name] != getattr(shape, name)}
    return with_limits(policy, own)


def _document(source: Source, subject: Subject, shown: Sequence[Shown]) -> dict[str, Any]:
    whole = source.whole
    return {
        "source": source.title,
        "revision": whole.revision or None,
        "hash": whole.hash,
        "for": subject.title or None,
        "may_also_get": list(subject.maybe),
        "policies": [
            {
                "kind": one.policy.kind,
                "name": one.policy.name,
                "why": one.why or None,
                "note": one.policy.note,
                "documents": list(one.policy.chain),
                "values": [value.json() for value in one.values],
            }
            for one in shown
        ],
    }


def _print(source: Source, subject: Subject, shown: Sequence[Shown], name: str | None) -> None:
    for number, one in enumerate(shown):
        if number:
            render.out()
        about = [f"{one.policy.kind}/{one.policy.name}"]
        about += [f"for {name}"] if name else []
        about += [subject.title] if subject.title else []
        about += [one.why] if one.why and one.policy.name != "default" else []
        head = render.one_line(", ".join(about))
        render.out(f"{render.pad(head, 88)}  {render.one_line(source.title)}".rstrip())
        if not one.values:
            more = f"harnessctl policy show --effective {one.policy.kind}/{one.policy.name}"
            render.out(f"nothing but what is inherited: {more}")
        render.out_lines(render.table([_row(value) for value in one.values]))
    for words in subject.maybe:
        render.note(f"Some of its tasks get {words}.")


def _row(value: Value) -> list[object]:
    words = []
    entry = value.entry.partition(".")[2] or value.entry
    if value.entry and not value.path.startswith(value.entry):
        words.append(f"rule {entry}" if "[" not in entry.partition(";")[0] else entry)
    words += [f'note "{value.note}"'] if value.note else []
    words += [f"builtin {value.builtin}"] if value.builtin is not None else []
    return [value.path, render.cut(render.one_line(value.value), _VALUE_COLUMNS), str(value.place), "   ".join(words)]


# --- overview ---------------------------------------------------------------------------------------------------------


def _overview(source: Source, as_json: bool) -> int:
    """All policies: where they come from and how many values the files state."""
    whole = source.whole
    rows: list[tuple[str, int, list[str], str | None]] = []
    for (kind, name), policy in whole.policies.items():
        own = [one for one in values(policy, None, source.texts) if not one.place.builtin]
        files = sorted({one.place.file for one in own})
        rows.append((f"{kind}/{name}", len(own), files, policy.note if own else None))
    if as_json:
        found = [{"policy": one, "stated": own, "files": files, "note": note} for one, own, files, note in rows]
        document = {"source": source.title, "revision": whole.revision or None, "hash": whole.hash, "policies": found}
        render.out_json(document)
        return 0
    head = ", ".join(part for part in (source.title, source.about, f"hash {whole.hash}") if part)
    render.out(render.one_line(head))
    cells = [
        [policy, own or "-", " ".join(files) or "builtin", f'"{note}"' if note else ""]
        for policy, own, files, note in rows
    ]
    render.out_lines(render.table(cells, ["POLICY", "STATED", "WHERE", "NOTE"], (1,)))
    render.note("harnessctl policy show [--effective] KIND[/NAME] · policy explain KIND")
    return 0
