"""Stand-ins as the runtime sees them: whose policies hold, whose tools there are, what a task may begin with (R3.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.ports import Refused
from harnessd.domain.task import Counters, Task, TaskDraft, TaskState
from harnessd.engine.protocol import ModelFacts
from harnessd.policy import tools as tools_policy
from harnessd.runtime.catalog import AgentFacts, Catalog, FeatureFacts
from harnessd.runtime.drafts import Known, draft_from
from harnessd.runtime.policies.in_force import InForce
from harnessd.stores.rows import draft_from_json, draft_to_json
from tests.policy.written import policies

OF_BUILDER = """
kind: tools
name: strict
permissions: [{name: no-web, for: tool/http_request, do: deny}]
"""
OF_CRAWLER = """
kind: tools
name: careful
permissions: [{name: no-shell, for: tool/bash, do: deny}, {name: web, for: tool/http_request, do: allow}]
---
kind: budget
name: small
limits: {turns: 3}
---
kind: retry
name: patient
model: {retries: 42}
"""
WISHES: dict[str, dict[str, str]] = {
    "builder": {"tools": "strict"},
    "crawler": {"tools": "careful", "budget": "small", "retry": "patient"},
}
PRIMARY, SECOND = ModelFacts("primary", 200_000, 8_192), ModelFacts("second", 100_000, 4_096)
CATALOG = Catalog(
    agents={
        "builder": AgentFacts("builder", "You build.", (), "primary", feature="full", wanted='{"type": "object"}'),
        "crawler": AgentFacts("crawler", "You crawl.", (), "second"),
    },
    models={"primary": PRIMARY, "second": SECOND},
    tools={},
    features={
        "full": FeatureFacts("full", "builder", (), "Analyse everything."),
        "basic": FeatureFacts("basic", "builder", (), "Only count."),
    },
)
TASK = Task("t1", TaskDraft("Do it.", "builder", "/w"), TaskState.RUNNING, 1.0)


def in_force() -> InForce:
    return InForce(policies(OF_BUILDER, OF_CRAWLER), lambda agent: WISHES.get(agent, {}), 0.0)


def acting(task: Task, agent: str = "agent/crawler") -> Task:
    return replace(task, counters=Counters(roles={"agent": agent}))


def test_a_stand_ins_policies_hold_but_for_what_the_task_may_use() -> None:  # R3.4
    force = in_force()
    own, others = force.for_task(TASK), force.for_task(acting(TASK))
    assert (own.retry.name, others.retry.name) == ("default", "patient")
    assert (own.tools.name, others.tools.name) == ("strict", "careful")
    assert others.budget.shape.limits.turns == own.budget.shape.limits.turns, "a budget is the task's"
    assert others.fallback is own.fallback
    assert force.for_task(TASK) == own, "with the way back, its own again"


@pytest.mark.parametrize(
    ("tool", "do"), [("tool/http_request", "deny"), ("tool/bash", "deny"), ("tool/read_file", "allow")]
)
def test_no_stand_in_may_do_what_the_tasks_own_agent_may_not(tool: str, do: str) -> None:  # policies.md 1
    rules = in_force().for_task(acting(TASK))
    facts = tools_policy.CallFacts(agent="builder", tool=tool)
    found = [tools_policy.permission(policy, facts).do for policy in (rules.tools, *rules.denies)]
    assert ("deny" in found) == (do == "deny")


def test_a_task_begins_with_the_feature_of_its_agent_or_its_own() -> None:  # R3.4
    brief = CATALOG.brief(TASK)
    assert not isinstance(brief, str)
    assert brief.feature == "full"
    assert brief.system.startswith("You build.\n\nAnalyse everything.\n\nWhen the task is done")
    assert '{"type": "object"}' in brief.system, "the model is told the form from the start"
    assert set(brief.roles) == {"feature/full", "feature/basic", "agent/builder", "agent/crawler"}
    assert brief.roles["agent/crawler"].model is SECOND
    other = CATALOG.brief(replace(TASK, draft=replace(TASK.draft, feature="basic")))
    assert not isinstance(other, str)
    assert (other.feature, "Only count." in other.system) == ("basic", True)


def test_a_frozen_system_prompt_stays_as_it_was() -> None:  # R4.8
    brief = CATALOG.brief(replace(TASK, system="Frozen."))
    assert not isinstance(brief, str)
    assert brief.system == "Frozen."


def test_a_feature_that_is_gone_is_said_in_a_sentence() -> None:
    found = CATALOG.brief(replace(TASK, draft=replace(TASK.draft, feature="gone")))
    assert found == "Feature 'gone' is no longer in harness.yaml."


@pytest.mark.parametrize(
    ("feature", "words"),
    [("ful", "Did you mean full?"), ("of_crawler", "belongs to agent crawler"), (7, "feature is not a name")],
)
def test_a_feature_that_a_task_cannot_have_is_refused(feature: Any, words: str, tmp_path: Path) -> None:
    known = Known({"builder": "primary"}, ("primary",), features={"full": "builder", "of_crawler": "crawler"})
    body = {"prompt": "x", "agent": "builder", "workspace": str(tmp_path), "feature": feature}
    found = draft_from(body, known)
    assert isinstance(found, Refused)
    assert words in f"{found.message} {found.hint}"
    good = draft_from({**body, "feature": "full"}, known)
    assert isinstance(good, TaskDraft)
    assert good.feature == "full"
    assert draft_from_json(draft_to_json(good)) == good
    assert good.identity() != replace(good, feature=None).identity(), "the same key means another task then"
