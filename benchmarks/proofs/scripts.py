"""Scripts: what the models of the sweeps do, and the configuration of the daemon that runs them.

Each agent passes other crash points. `payer` acts outside by `http_request`, `putter` too, but at a receiver that
honours keys, `caller` by a declared command, `asker` needs a person's yes for it, `bulky` has its first act compacted
away, `frugal` is warned of its budget, `jobber` has a command handed over to the background, `steps-2` writes into its
workspace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.proofs.outside import Outside
from tests.running import settings

ACTS = {"payer": 2, "asker": 1, "caller": 2, "bulky": 2, "frugal": 4, "putter": 2}
STEPS = "steps-2"
AGENTS = (*ACTS, "jobber", STEPS)
# bash speaks TCP itself: no other program is started for a request. Braces would be places for arguments.
CALL = r"""
exec 3<>/dev/tcp/127.0.0.1/$1; end=$'\r\n'
printf %s "POST /$2/$3 HTTP/1.0$end"Idempotency-Key:" $HARNESSD_IDEMPOTENCY_KEY$end"Content-Length:" 0$end$end" >&3
while IFS= read -r line <&3; do last=$line; done; echo "$last"
"""
POLICIES = """\
kind: tools
rules:
  - {{for: tool/bash, when: {{agent: jobber}}, timeout: {{after: 1s, do: background}}}}
permissions: [{{name: acts, when: {{effect: irreversible, agent: [payer, caller, bulky, frugal]}}, do: allow}}]
---
kind: retry
tool: {{base: 1ms, cap: 20ms}}
model: {{base: 1ms, cap: 50ms}}
---
kind: escalation
recoveries: 20
---
kind: compaction
reserve: 2k
keep_turns: 1
summary: {{max_tokens: 1k}}
---
kind: budget
limits: {{turns: {turns}}}
"""
TURNS = 60
# The service reports a history that lost or altered something; not of `bulky`.
KEPT = {"history": "append_only", "allow": ["branch", "compaction"]}


def scripts(outside: Outside) -> dict[str, Any]:
    """A model for each agent, for the simulator; `steps-N` is one of the shipped ones."""
    acting = {name: _acting(name, acts, outside) for name, acts in ACTS.items()}
    return {**acting, "jobber": _jobber(outside)}


def _acting(name: str, acts: int, outside: Outside) -> dict[str, Any]:
    run = {"user_matches": r"run (?P<run>[\w-]+)"}
    last = {"last_call_matches": r"-a(?P<k>\d+)\b"}
    told = {"matches": r'"acted": |was done'}
    enough: dict[str, Any] = {"equal": ["{k}", str(acts)]}
    turns: list[dict[str, Any]] = [{"when": {**run, "first": True}, "say": "I act.", "call": _act(name, "1", outside)}]
    if name == "bulky":
        read = {"tool": "read_file", "args": {"path": "bulk-{turn}.txt"}}
        small = "made the earlier history smaller"
        turns += [
            {"when": {**run, **last, **told, "equal": ["{k}", "2"]}, "say": "Done {run}."},
            {"when": {**run, **last, **told}, "say": "Now I read.", "call": read},
            {
                "when": {**run, "last_tool": "read_file", "shown_matches": small},
                "say": "I act once more.",
                "call": _act(name, "2", outside),
            },
            {"when": {**run, "last_tool": "read_file", "turn": {"max": 24}}, "say": "I read on.", "call": read},
        ]
    turns += [
        {"when": {**run, **last, **told, **enough}, "say": "Done {run}."},
        {"when": {**run, **last, **told}, "say": "The next one.", "call": _act(name, "{k+1}", outside)},
        {"when": {**run, **last, "results": {"max": 30}}, "say": "Once more.", "call": _act(name, "{k}", outside)},
        {"say": "I give up."},
    ]
    if name == "bulky":
        # A compaction with a large new result beside it may be longer than what was shown before: the service cannot
        # tell that from an altered history. The store's own hash chain is checked after every death.
        return {"window": 9000, "turns": turns, "ids": "fresh"}
    return {**KEPT, "turns": turns, "ids": "fresh"}


def _act(name: str, number: str, outside: Outside) -> dict[str, Any]:
    act = f"{{run}}-a{number}"
    if name == "caller":
        return {"tool": "act", "args": {"port": outside.port, "name": act}}
    method = "PUT" if name == "putter" else "POST"
    return {"tool": "http_request", "args": {"method": method, "url": f"{outside.url}/act/{act}"}}


def _jobber(outside: Outside) -> dict[str, Any]:
    command = f"(set -- {outside.port} busy {{run}}; {CALL}); sleep 1.3; echo the job is done"
    run = {"user_matches": r"run (?P<run>[\w-]+)"}
    return {
        "turns": [
            {
                "when": {**run, "first": True},
                "say": "A long one.",
                "call": {"tool": "bash", "args": {"command": command}},
            },
            {"when": {**run, "shown_matches": "the job is done|Job .* was lost|outcome unknown"}, "say": "Done {run}."},
            {"when": {**run}, "say": "I wait for it."},
        ]
    }


def configuration(folder: Path, url: str) -> dict[str, Any]:
    """harness.yaml as data. A sweep kills more often than any machine does: no start of it may hold its tasks."""
    document = settings(folder, url, dict.fromkeys(AGENTS, "anthropic"))
    document["restarts"] = {"unclean": 1_000_000}
    document["http_request"] = {"private": ["127.0.0.0/8"]}
    text = {"type": "string"}
    schema = {"type": "object", "properties": {"port": text, "name": text}, "required": ["port", "name"]}
    command = ["/bin/bash", "-c", CALL, "act", "{port}", "act", "{name}"]
    document["tools"] = {"act": {"command": command, "schema": schema, "about": "Act outside."}}
    for name in AGENTS:
        document["agents"][name]["tools"] = ["bash", "http_request", "act", "read_file", "job_output"]
    document["models"]["bulky"] |= {"window": 9_000, "max_output": 1_000}
    for model in document["models"].values():
        model["prices"] = {"input": 3, "output": 15}
    return document
