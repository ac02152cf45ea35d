"""An editor that reads the first line of a shipped file finds the schema of its kind, and the file fits it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

POLICIES = Path(__file__).resolve().parents[2] / "policies"


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_file_points_to_a_schema_that_it_fits(path: Path) -> None:
    # R7.3
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema=../docs/schemas/{path.stem}.json"
    schema = json.loads((path.parent / first.partition("$schema=")[2]).read_text(encoding="utf-8"))
    judge = jsonschema_rs.validator_for(schema)
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents
    for document in documents:
        problems = [error.message for error in judge.iter_errors(document)]
        assert problems == []
    assert not judge.is_valid(documents[0] | {"retrys": 3})
