"""Why: the decisions of a task in order: evidence, the rule that decided, what was done, what else could have been."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import NOT_FOUND, Client, Problem, task_path
from harnessd.cli.options import connect, connection, json_option, task_argument

_REMEDIES = {
    "observe": "the failure became the call's result",
    "nudge": "the agent was asked to replan",
    "needs_human": "a person was asked",
}


@click.command()
@task_argument
@click.argument("node", required=False)
@click.option("--evidence", "as_file", is_flag=True, help="Print the newest answer as the FILE of policy classify.")
@json_option
@connection
@click.pass_context
def why(ctx: click.Context, task: str, node: str | None, as_file: bool, as_json: bool) -> int:
    """Why a task did what it did: every decision with its evidence, its rule (file and line) and its alternatives.

    With NODE only the decisions that were taken there.
    """
    client = connect(ctx)
    found = client.get(task_path(task, "decisions"))
    decisions = [one for one in found["decisions"] if node is None or one["node"] == node]
    if node is not None and not decisions:
        raise Problem(NOT_FOUND, f"No decision was taken at {node}.", f"See all: harnessctl why {found['task']}")
    if as_file:
        render.out_json(_record(found["task"], node, decisions))
        return 0
    if as_json:
        render.out_json({**found, "decisions": decisions})
        return 0
    title = render.one_line(found["title"])
    many = f"{len(decisions)} decision{'s' if len(decisions) != 1 else ''}"
    render.out(f'{found["task"]}  {found["agent"]}  "{title}"   {many}, oldest first')
    nodes = _nodes(client, found["task"]) if decisions else []
    answers = _answers(client, found["task"], decisions)
    for one in decisions:
        render.out()
        render.out_lines(render.visible(line) for line in _story(one, nodes, answers))
    if not decisions:
        render.out("Nothing had to be decided: no attempt failed and no limit was reached.")
    return 0


def _record(task: str, node: str | None, decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest answer of a model service among the decisions, as `policy classify` reads it, without secrets."""
    from harnessd.cli.policy.classify import written  # only here: it loads what reads answers

    for one in reversed(decisions):
        record = written(one.get("evidence") or {}, one["at"])
        if record is not None:
            return record
    where = f"at {node} of {task}" if node else f"in {task}"
    message = f"No decision {where} was about an answer of a model service."
    raise Problem(NOT_FOUND, message, f"See what was decided: harnessctl why {task}")


def _story(
    one: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    evidence: Mapping[str, Any] = one.get("evidence") or {}
    yield f"{one['node'] or '-':5}  {render.clock_time(one['at'])}  {_what(one, evidence)}"
    if message := evidence.get("message"):
        wait = evidence.get("retry_after_s")
        asked = f", asks for {render.duration(wait)}" if wait is not None else ""
        yield f'       "{render.one_line(str(message))}"{asked}'
    if classified := evidence.get("classified_by"):
        name = render.pad(str(one["error_class"]), 20)
        yield f"       {render.pad('class', 12)} {name} rule {classified['rule']}   {_place(classified)}"
    rule: Mapping[str, Any] = one.get("rule") or {}
    by = f"   rule {rule['rule']}" if evidence.get("question") or one["do"] == "rollback" else ""
    yield f"       {render.pad('did', 12)} {_did(one)}{by}   {_place(rule)}"
    if chain := evidence.get("chain"):
        yield f"       {render.pad('chain', 12)} {chain['rule']}   {_place(chain)}"
    if note := evidence.get("note"):
        yield f'       {render.pad("note", 12)} "{render.one_line(note)}"'
    for passed in evidence.get("passed_over") or []:
        yield f"       passed over  {passed}"
    for handed in one.get("tried") or []:
        yield f"       {render.pad(handed['line'], 12)} handed it up: {handed['why']}"
    if others := one.get("alternatives"):
        yield f"       {render.pad('else', 12)} {', '.join(others)}"
    if came := _answered(answers.get(evidence.get("question", ""))) or _came_of_it(one, nodes):
        yield f"       {render.pad('came of it', 12)} {came}"


def _what(one: Mapping[str, Any], evidence: Mapping[str, Any]) -> str:
    if budget := evidence.get("budget"):
        return f"{budget} {evidence.get('used')} of {evidence.get('limit')} used"
    dependency = evidence.get("dependency", "something")
    if window := evidence.get("window"):
        full = f"{evidence['used']:.0%} full ({evidence['tokens']:,} of {window:,} tokens)"
        return f"the window of {dependency} is {full}"
    if question := evidence.get("question"):
        return f"{dependency} needs approval: {question}"
    answered = " ".join(str(evidence[key]) for key in ("status", "code", "type", "transport") if evidence.get(key))
    words = [f"{dependency} {'answered ' + answered if answered else 'failed: ' + str(one['error_class'])}"]
    if (tries := evidence.get("tries")) and tries > 1:
        words.append(f"try {tries}")
    if request := evidence.get("request_id"):
        words.append(f"request {request}")
    return ", ".join(words)


def _did(one: Mapping[str, Any]) -> str:
    remedy: Mapping[str, Any] = one.get("remedy") or {}
    match one["do"]:
        case "retry":
            return f"try {remedy.get('attempt')} of {remedy.get('of')} after {render.duration(remedy.get('after_s'))}"
        case "park":
            return f"parked for {render.duration(remedy.get('for_s'))}"
        case "stop" if (one.get("evidence") or {}).get("budget"):
            return f"a last turn without tools where policy grants one, then stopped: {remedy.get('reason')}"
        case "stop":
            return f"stopped: {remedy.get('reason')}"
        case "rollback":
            return f"rolled back to {remedy.get('to')}, files too ({str(remedy.get('which')).replace('_', ' ')})"
        case "fallback":
            return f"fallback to {remedy.get('to')}"
        case word:
            return _REMEDIES.get(word, str(word).replace("_", " "))


def _place(rule: Mapping[str, Any]) -> str:
    return render.place(rule) if rule else ""


def _nodes(client: Client, task: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = client.get(task_path(task, "nodes"))["nodes"]
    return found


def _answers(client: Client, task: str, decisions: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """What people answered, by question, where one of the decisions asked them."""
    if not any((one.get("evidence") or {}).get("question") for one in decisions):
        return {}
    frames = client.stream([("task", task)])
    return {frame.data["data"]["question"]: frame.data for frame in frames if frame.name == "answered"}


def _answered(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return ""
    data = answer["data"]
    said = f': "{render.one_line(data["say"])}"' if data.get("say") else ""
    return f"answered {data['choice']} by {data.get('by') or 'nobody known'} at {render.clock_time(answer['at'])}{said}"


def _came_of_it(one: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    after = next((node for node in nodes if node["at"] >= one["at"] and node["node"] != one["node"]), None)
    if after is None or one["do"] == "stop":
        return ""
    words = {"assistant": "answered", "tool_result": "the agent was told", "notice": "the agent was told"}
    return f"{words.get(after['kind'], after['kind'])} at {render.clock_time(after['at'])} ({after['node']})"
