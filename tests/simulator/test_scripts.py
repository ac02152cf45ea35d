"""The shipped scripts, played by a small agent that really runs its tools in a real folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulated import ROOT, SimulatedService
from tests.simulator.asking import ask, chat, functions, tools

NAMES = ("bash", "read_file", "write_file", "edit_file", "list_files", "search_files", "task_list")


def use(tool: str, args: dict[str, Any], folder: Path) -> tuple[str, bool]:
    """What a tool of the agent does, and whether it failed."""
    try:
        match tool:
            case "bash":
                done = subprocess.run(
                    ["bash", "-c", args["command"]], cwd=folder, capture_output=True, text=True, timeout=60, check=False
                )
                return f"exit status {done.returncode}\n{done.stdout}{done.stderr}", done.returncode != 0
            case "read_file":
                return (folder / args["path"]).read_text(), False
            case "write_file":
                (folder / args["path"]).parent.mkdir(parents=True, exist_ok=True)
                (folder / args["path"]).write_text(args["content"])
                return f"wrote {args['path']}", False
            case "edit_file":
                text = (folder / args["path"]).read_text()
                if args["old"] not in text:
                    return "the old text is not in the file", True
                (folder / args["path"]).write_text(text.replace(args["old"], args["new"]))
                return f"edited {args['path']}", False
            case "list_files":
                found = sorted(path for path in folder.rglob("*") if path.is_file())
                return "\n".join(str(path.relative_to(folder)) for path in found), False
            case _:
                return "noted", False
    except OSError as error:
        return f"Error: {error.strerror}", True


def converse(service: SimulatedService, model: str, folder: Path, messages: list[Any]) -> str:
    """Run the agent until it calls no tool; its last words."""
    for _ in range(30):
        reply = ask(service, model, messages, tools=tools(*NAMES))
        if reply.status == 429:
            continue
        assert reply.status == 200, reply.body
        content = reply.body["content"]
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return "".join(block.get("text", "") for block in content)
        results = []
        for call in calls:
            text, failed = use(call["name"], call["input"], folder)
            results.append({"type": "tool_result", "tool_use_id": call["id"], "content": text, "is_error": failed})
        messages.append({"role": "user", "content": results})
    pytest.fail("the agent does not come to an end")


def lay_out(model: str, folder: Path) -> None:
    command = [sys.executable, "-m", "harnessd.simulator", "--lay-out", model, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=30)


def test_fix_test_repairs_a_real_project(service: SimulatedService, tmp_path: Path) -> None:
    lay_out("fix-test", tmp_path)
    before = subprocess.run([sys.executable, "-m", "unittest"], cwd=tmp_path, capture_output=True, check=False)
    said = converse(service, "fix-test", tmp_path, [{"role": "user", "content": "Make the tests pass."}])
    after = subprocess.run([sys.executable, "-m", "unittest"], cwd=tmp_path, capture_output=True, check=False)
    assert (before.returncode != 0, after.returncode) == (True, 0)
    assert "The tests pass" in said
    seen = service.requests_now()
    assert seen["violations"] == []
    assert seen["refusals"] == []


def test_report_meets_a_429_and_writes_what_it_counted(service: SimulatedService, tmp_path: Path) -> None:
    lay_out("report", tmp_path)
    said = converse(service, "report", tmp_path, [{"role": "user", "content": "Write the report."}])
    total = sum(len(path.read_text().split()) for path in (tmp_path / "notes").iterdir())
    assert f"| total | {total} |" in (tmp_path / "report.md").read_text()
    assert str(total) in said
    assert service.requests_now()["by_status"]["429"] == 1


def test_mend_corrects_itself(service: SimulatedService, tmp_path: Path) -> None:
    lay_out("mend", tmp_path)
    messages: list[Any] = [{"role": "user", "content": "Set retries to 5."}]
    converse(service, "mend", tmp_path, messages)
    assert "retries = 5" in (tmp_path / "config/app-settings.ini").read_text()
    assert messages[2]["content"][0]["is_error"] is True
    assert service.requests_now()["violations"] == []


@pytest.mark.parametrize("count", [1, 6, 12])
def test_steps_leave_one_mark_each(service: SimulatedService, tmp_path: Path, count: int) -> None:
    said = converse(service, f"steps-{count}", tmp_path, [{"role": "user", "content": "Do your steps."}])
    assert (tmp_path / "ledger.txt").read_text() == "".join(f"step {k}\n" for k in range(1, count + 1))
    assert said == f"All {count} steps are done."


def test_steps_write_leaves_one_file_each(service: SimulatedService, tmp_path: Path) -> None:
    converse(service, "steps-write-4", tmp_path, [{"role": "user", "content": "Do your steps."}])
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == ["1.txt", "2.txt", "3.txt", "4.txt"]


def test_a_step_with_unknown_outcome_is_looked_up_not_repeated(service: SimulatedService, tmp_path: Path) -> None:
    # R6.1: what the model does with an honest synthetic result after a crash.
    messages: list[Any] = [{"role": "user", "content": "Do your steps."}]
    reply = ask(service, "steps-3", messages, tools=tools(*NAMES))
    call = reply.body["content"][-1]
    use("bash", call["input"], tmp_path)
    messages += [
        {"role": "assistant", "content": reply.body["content"]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": call["id"],
                    "content": "The call was started; its outcome is unknown.",
                    "is_error": True,
                }
            ],
        },
    ]
    converse(service, "steps-3", tmp_path, messages)
    assert (tmp_path / "ledger.txt").read_text() == "step 1\nstep 2\nstep 3\n"


def test_steps_go_on_after_a_compaction(service: SimulatedService, tmp_path: Path) -> None:
    summary = "Do your steps.\n\n## Progress\nThe newest result: done step 2"
    said = converse(service, "steps-3", tmp_path, [{"role": "user", "content": summary}])
    assert said == "All 3 steps are done."
    assert "step 1" not in (tmp_path / "ledger.txt").read_text()


def test_files_of_scripts_are_served_by_name_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harnessd.simulator", "--lay-out", "nobody", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (2, "simulator: no script for model nobody\n")
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"


def test_a_second_model_may_use_the_turns_of_another(service: SimulatedService, tmp_path: Path) -> None:
    service.control_now(scripts={"models": {"backup": {"use": "steps-2"}}})
    converse(service, "backup", tmp_path, [{"role": "user", "content": "Do your steps."}])
    assert (tmp_path / "ledger.txt").read_text() == "step 1\nstep 2\n"


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("bash failed (timeout): command timed out after 10000 ms", True),
        ("Error: no such file", True),
        ("started, outcome unknown", True),
        ("(no output)\n[exit code 1]", True),
        ("FAILED (errors=1)", False),
        ("# Error handling\nsee below", False),
        ("all fine", False),
    ],
)
def test_chat_tells_failed_results_by_their_words(service: SimulatedService, text: str, failed: bool) -> None:
    turns = [{"when": {"tool_failed": True}, "say": "It failed."}, {"say": "It worked."}]
    service.control_now(scripts={"models": {"t": {"turns": turns}}})
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]
    said = chat(service, "t", messages, tools=functions("bash")).body["choices"][0]["message"]["content"]
    assert said == ("It failed." if failed else "It worked.")
