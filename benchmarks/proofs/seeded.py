"""Seeded bugs: thirty mistakes that somebody could make in harnessd, each with the tests that must see it.

A bug is a substitution in one file: `old` stands there once, `new` takes its place in a scratch copy. `caught_by` are
arguments of pytest; one failing test is enough. `cheap` ones are CI's share.
"""

from __future__ import annotations

from dataclasses import dataclass

STORES = "harnessd/stores"
RUNTIME = "harnessd/runtime"
ENGINE = "harnessd/engine"


@dataclass(frozen=True, slots=True)
class Bug:
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]
    cheap: bool = False


BUGS: tuple[Bug, ...] = (
    Bug(
        "submit is acknowledged before its commit",
        f"{STORES}/queue.py",
        "answer = await self._write(unit)\n            except Conflict:",
        'asyncio.ensure_future(self._write(unit)); answer = [[("early",)]]\n            except Conflict:',
        ("tests/contract/test_store.py::test_a_submitted_task_is_there_as_it_was_asked_for",),
    ),
    Bug(
        "a batch is answered before its commit",
        f"{STORES}/batch.py",
        '            cursor.execute("COMMIT")\n',
        "            pass\n",
        ("tests/stores/test_writer.py::test_200_writers_share_a_few_syncs",),
        cheap=True,
    ),
    Bug(
        "the fence does not test the epoch",
        f"{STORES}/sql/journal.sql",
        " AND tasks.epoch = :epoch AND tasks.state IN ('running', 'rolling_back')",
        " AND tasks.state IN ('running', 'rolling_back')",
        ("tests/contract/test_store_journal.py::test_a_lease_that_is_not_the_rows_writes_nothing",),
        cheap=True,
    ),
    Bug(
        "the heartbeat does not test the epoch",
        f"{STORES}/sql/tasks.sql",
        "WHERE id = :task AND lease_owner = :owner AND epoch = :epoch AND state IN",
        "WHERE id = :task AND lease_owner = :owner AND state IN",
        ("tests/contract/test_store.py::test_a_heartbeat_prolongs_what_is_ours_and_names_it",),
        cheap=True,
    ),
    Bug(
        "synchronous=NORMAL",
        f"{STORES}/sqlite.py",
        '"PRAGMA synchronous = FULL",',
        '"PRAGMA synchronous = NORMAL",',
        ("tests/stores/test_writer.py::test_the_file_is_written_as_promised",),
        cheap=True,
    ),
    Bug(
        "the acknowledged mark is not written",
        f"{STORES}/sqlite.py",
        "            self._mark.write(self._store, commit, time.monotonic())\n",
        "            pass\n",
        ("tests/stores/test_loss.py::test_a_log_that_lost_its_end_raises_the_alarm",),
        cheap=True,
    ),
    Bug(
        "an error from COMMIT is taken for a no",
        f"{STORES}/sqlite.py",
        "            return await self._settle(unknown)\n",
        "            raise HarnessError('nothing was written') from unknown\n",
        ("tests/stores/test_faults.py",),
    ),
    Bug(
        "files swapped under the daemon are not looked at",
        f"{STORES}/files.py",
        "    if found == expected:\n        return\n",
        "    if found == expected or expected:\n        return\n",
        ("tests/stores/test_loss.py::test_a_file_gone_under_the_daemon_is_seen_before_the_next_answer",),
        cheap=True,
    ),
    Bug(
        "two daemons share the lock",
        f"{STORES}/files.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ("tests/stores/test_owner.py::test_a_second_daemon_is_refused_and_the_next_gets_it_after_a_kill",),
    ),
    Bug(
        "one poisoned member sinks the whole batch",
        f"{STORES}/batch.py",
        " isinstance(self._refusal(error), StorageFull | StoreLost):\n                raise\n",
        " self:\n                raise\n            raise\n",
        ("tests/stores/test_writer.py::test_a_poisoned_member_fails_alone",),
        cheap=True,
    ),
    Bug(
        "a migration is no transaction",
        f"{STORES}/files.py",
        "                connection.execute(statement)\n",
        "                connection.execute(statement)\n"
        "                connection.execute('COMMIT')\n"
        "                connection.execute('BEGIN IMMEDIATE')\n",
        ("tests/stores/test_files.py::test_a_step_that_fails_leaves_the_version_before_it",),
    ),
    Bug(
        "a broken hash chain is not noticed",
        f"{STORES}/sessions.py",
        "        return misfit(session[0], rows)\n",
        "        return None\n",
        ("tests/stores/test_loss.py::test_a_changed_history_does_not_fit_its_chain",),
    ),
    Bug(
        "two tasks in one workspace",
        f"{STORES}/sql/tasks.sql",
        "WHERE tasks.workspace <> '' AND held.holder <> tasks.id AND {overlap})",
        "WHERE tasks.workspace = 'nowhere' AND held.holder <> tasks.id AND {overlap})",
        ("tests/contract/test_store.py::test_one_running_task_holds_a_workspace",),
    ),
    Bug(
        "a recovery is not charged",
        f"{STORES}/sql/tasks.sql",
        "SET state = 'queued', recoveries = recoveries + 1,",
        "SET state = 'queued', recoveries = recoveries,",
        ("tests/contract/test_store.py::test_a_lease_that_ran_out_is_taken_over_and_the_old_holder_fenced",),
        cheap=True,
    ),
    Bug(
        "the same key with another body is another task's",
        f"{STORES}/queue.py",
        "        if row[0] == identity_of(draft):\n",
        "        if row[0] or identity_of(draft):\n",
        ("tests/contract/test_store.py::test_the_same_key_for_another_wish_is_a_conflict",),
    ),
    Bug(
        "a drain is not told to a task that was just taken",
        f"{RUNTIME}/worker.py",
        " or self._held:\n",
        " and self._held and not self.draining:\n",
        ("tests/runtime/test_worker.py::test_a_task_that_was_just_taken_is_handed_back_by_a_drain",),
    ),
    Bug(
        "the lease is not renewed",
        f"{RUNTIME}/worker.py",
        "[lease_of(task) for task in self._tasks.values()]",
        "[lease_of(task) for task in ()]",
        ("tests/runtime/test_worker.py::test_a_lease_is_renewed_as_long_as_its_task_is_at_work",),
        cheap=True,
    ),
    Bug(
        "a daemon that was paused acts without asking whose the task is",
        "harnessd/app.py",
        "        toolbox.make_sure = pool.leases.make_sure\n",
        "",
        ("tests/acceptance/test_several.py::test_a_daemon_paused_before_an_act_does_not_do_it_later",),
    ),
    Bug(
        "what a task left running outlives it",
        f"{RUNTIME}/worker.py",
        '            self._around.crashpoint("J21")\n            await self._around.toolbox.jobs.end_task(task.id)\n',
        '            self._around.crashpoint("J21")\n',
        (
            "tests/acceptance/test_background_jobs.py::test_what_a_command_leaves_behind_ends_with_the_task_and_holds_nobody",
        ),
    ),
    Bug(
        "an act begins before its intent is durable",
        f"{RUNTIME}/runner.py",
        "        if records:\n            before(records, self.around.crashpoint)\n",
        "        if records and acts and isinstance(acts[0], CallTool):\n"
        "            self._perform(acts[0])\n"
        "            await asyncio.sleep(0.02)\n"
        "            acts = acts[1:]\n"
        "        if records:\n            before(records, self.around.crashpoint)\n",
        ("tests/acceptance/test_crash_sweep.py", "-k", "every_crash_point"),
    ),
    Bug(
        "a secret stands in a tool's result",
        f"{RUNTIME}/toolbox.py",
        "            return replace(outcome, text=self.redact(outcome.text))\n",
        "            return outcome\n",
        ("tests/acceptance/test_secrets.py::test_a_key_that_tools_read_is_not_kept",),
    ),
    Bug(
        "an answer without words counts",
        f"{RUNTIME}/gateway.py",
        "    for block in reply.message.blocks:\n        if isinstance(block, ToolUseBlock)",
        "    for block in (*reply.message.blocks, TextBlock('.')):\n        if isinstance(block, ToolUseBlock)",
        ("tests/runtime/test_gateway_answers.py",),
    ),
    Bug(
        "an unfinished rollback is not taken up",
        f"{RUNTIME}/rollbacks/carrying.py",
        "            await self.carry_on(task.id)\n",
        "            pass\n",
        ("tests/acceptance/test_crash_sweep.py", "-k", "every_crash_point"),
    ),
    Bug(
        "an unclean start more is allowed",
        f"{RUNTIME}/host/starts.py",
        "        if self.unclean < self.limits.unclean:\n",
        "        if self.unclean <= self.limits.unclean:\n",
        ("tests/acceptance/test_crash_sweep.py::test_how_many_unclean_starts_hold_tasks_is_a_setting",),
    ),
    Bug(
        "an irreversible act is repeated by guess",
        f"{ENGINE}/tool_calls/outcomes.py",
        "    if begun.effect_class is not EffectClass.IRREVERSIBLE and honoured(s, call, begun):\n",
        "    if honoured(s, call, begun):\n",
        ("tests/engine/test_keys.py::test_what_goes_on_in_the_background_is_not_done_and_its_twin_is_held",),
        cheap=True,
    ),
    Bug(
        "a question about an act does not say its key",
        f"{ENGINE}/tool_calls/outcomes.py",
        "and its outcome is unknown (key {effect.key}). ",
        "and its outcome is unknown. ",
        ("tests/engine/test_probes.py::test_without_a_probe_a_person_is_asked_at_once",),
    ),
    Bug(
        "a second try has another key",
        f"{ENGINE}/tool_calls/keys.py",
        "        if effect.name == call.name and effect.key is not None:\n            return effect.key\n",
        "        if effect.name == call.name and effect.key is not None:\n            return effect.key[::-1]\n",
        ("tests/engine/test_keys.py::test_a_second_try_keeps_the_key",),
    ),
    Bug(
        "a call without an answer is not charged",
        f"{ENGINE}/asking.py",
        "    if usage is None:\n        return\n",
        "    if usage is None or usage:\n        return\n",
        ("tests/engine/test_turns.py::test_what_a_cut_answer_has_used_is_counted",),
    ),
    Bug(
        "a budget warns again and again",
        f"{ENGINE}/tool_calls/results.py",
        "        s.count(warned=(*s.counters.warned, *warning.marks))\n",
        "",
        ("tests/engine/test_turns.py::test_the_agent_is_warned_at_63_and_81_and_stopped_at_90",),
    ),
    Bug(
        "a compaction cuts between a call and its result",
        "harnessd/defence/line3_repair/compaction/plan.py",
        "        if body[place].kind is NodeKind.ASSISTANT:\n",
        "        if body[place].kind is NodeKind.TOOL_RESULT:\n",
        ("tests/engine/test_compacting.py",),
    ),
    Bug(
        "a manifest counts before it is synced",
        "harnessd/workspace/checkpoints.py",
        "        vault.contents.sync()\n        vault.last, vault.place",
        "        vault.last, vault.place",
        ("tests/workspace/test_content.py::test_a_checkpoint_is_one_sync_and_an_unchanged_workspace_none",),
    ),
    Bug(
        "killpg alone",
        "harnessd/tools/supervisor.py",
        "        for pid in descendants(os.getpid()):\n"
        "            with Passing(ProcessLookupError, PermissionError):\n"
        "                os.kill(pid, signal.SIGKILL)\n",
        "        with Passing(ProcessLookupError, PermissionError):\n"
        "            os.killpg(self.main, signal.SIGKILL)\n",
        ("tests/acceptance/test_escapes.py", "-k", "kill"),
    ),
    Bug(
        "a job is told before its row",
        "harnessd/tools/jobs.py",
        "            await self._book.begun(job.kept())\n",
        "            self._early = asyncio.ensure_future(self._book.begun(job.kept()))\n",
        ("tests/tools/test_jobs.py::test_nobody_hears_of_a_job_before_it_is_written_down",),
    ),
)
