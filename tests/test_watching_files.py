"""The shipped dashboard and alerts ask for nothing that the daemon does not give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harnessd.runtime.observing.figures import Figures
from harnessd.runtime.observing.meters import Histogram

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
METERS = {meter.name: meter for meter in Figures()}
SCRAPED = {"instance", "job"}  # what Prometheus itself adds


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "harnessd.json").read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


def labels_of(name: str) -> set[str]:
    """The labels of a metric as a query names it; AssertionError where there is no such metric."""
    for suffix in ("", "_bucket", "_sum", "_count"):
        meter = METERS.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if meter is not None and isinstance(meter, Histogram) == bool(suffix):
            return {*meter.labels, *({"le"} if suffix == "_bucket" else ())}
    raise AssertionError(f"there is no metric {name}")


def test_every_query_asks_for_metrics_and_labels_that_exist() -> None:
    seen = 0
    for where, query in queries():
        names = re.findall(r"\b(?:harnessd|process)_\w+", re.sub(r'"[^"]*"', '""', query))
        assert names or query.startswith("up{"), where
        known = set(SCRAPED).union(*(labels_of(name) for name in names))
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
        for group in re.findall(r"(?:by|without)\s*\(([^)]*)\)", query):
            asked |= {word.strip() for word in group.split(",")}
        assert asked <= known, f"{where}: {asked - known}"
        seen += len(names)
    assert seen > 40


def test_what_an_operator_wants_to_see_is_on_the_dashboard() -> None:
    asked = " ".join(query for _, query in queries())
    wanted = (
        *("tasks", "queue_oldest_age_seconds", "questions_open", "model_calls_total", "tokens_total", "cost_usd_total"),
        *("breaker_state", "decisions_total", "rollbacks_total", "compactions_total", "policy_revision"),
        *("policy_refused_age_seconds", "store_commit_seconds_bucket", "store_bytes", "event_loop_turn_seconds_bucket"),
        *(
            "event_loop_blocked_total",
            "outbox_alerts",
            "effects_unknown_total",
            "tasks_near_limit",
            "trace_spans_total",
        ),
    )
    assert [name for name in wanted if f"harnessd_{name}" not in asked] == []


def test_parentheses_and_braces_of_every_query_close() -> None:
    for where, query in queries():
        bare = re.sub(r'"[^"]*"', '""', query)
        for opening, closing in ("()", "{}", "[]"):
            assert bare.count(opening) == bare.count(closing), where


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["do"], rule["alert"]


def test_panels_do_not_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
