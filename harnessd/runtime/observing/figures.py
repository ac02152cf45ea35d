"""Figures: every metric of the daemon, by name; what is counted as it happens, and what is looked at when asked.

Names and units follow https://prometheus.io/docs/practices/naming. Figures of the store (tasks, queue, events) are the
same at every daemon that shares it: over several daemons take their `max`, not their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harnessd.runtime.observing.meters import AnyMeter, Distribution, Histogram, Meter

_CALL_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOOL_S = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 120.0, 600.0, 3600.0)


def _counter(name: str, help_: str, *labels: str) -> Meter:
    return Meter(f"harnessd_{name}_total", help_, "counter", labels)


def _gauge(name: str, help_: str, *labels: str) -> Meter:
    return Meter(f"harnessd_{name}", help_, "gauge", labels)


class Figures:
    """All meters, in the order in which they are shown."""

    def __init__(self) -> None:
        """Nothing was counted yet."""
        self._of_calls()
        self._of_the_store()
        self._of_the_daemon()
        self._of_policies_and_process()

    def _of_calls(self) -> None:
        self.model_calls = _counter(
            "model_calls", "Attempts to call a model, by how they ended.", "model", "outcome", "class"
        )
        self.model_call_s = Histogram(
            "harnessd_model_call_duration_seconds", "Time from sending a model call to its end.", _CALL_S, ("model",)
        )
        self.first_event_s = Histogram(
            "harnessd_model_first_event_seconds",
            "Time from sending a model call to its first useful event.",
            _CALL_S,
            ("model",),
        )
        self.tokens = _counter("tokens", "Tokens that model services counted.", "model", "type")
        self.cost_usd = _counter("cost_usd", "What model calls cost, in US dollars.", "model")
        self.tool_calls = _counter("tool_calls", "Tool calls, by how they ended.", "tool", "outcome", "class")
        self.tool_call_s = Histogram("harnessd_tool_call_duration_seconds", "Time of a tool call.", _TOOL_S, ("tool",))
        self.decisions = _counter(
            "decisions",
            "Decisions on failures: what was done (retry, fallback, park, ...) about which class.",
            "do",
            "class",
        )
        self.effects_unknown = _counter("effects_unknown", "Effects whose outcome could not be known.")
        self.attempts = _counter("attempts_ended", "Runs of tasks under one lease, by how they ended.", "end")

    def _of_the_store(self) -> None:
        self.tasks = _gauge("tasks", "Tasks by state.", "state")
        self.queue_due = _gauge("queue_due_tasks", "Queued tasks that a worker could take now.")
        self.queue_age_s = _gauge("queue_oldest_age_seconds", "Age of the oldest of them; 0 where there is none.")
        self.questions = _gauge(
            "questions_open",
            "Questions that wait for a person: approval, outcome (an effect in doubt), question.",
            "kind",
        )
        self.tasks_ended = _counter("tasks_ended", "Ends of tasks, by stop reason.", "reason")
        self.events = _counter("events", "Events by their word, as in `harnessctl logs`.", "type")
        self.rollbacks = _counter("rollbacks", "Rollbacks, by how they ended.", "outcome")
        self.compactions = _counter("compactions", "Compactions of a session's history.")
        self.notify_failed = _counter("notifications_failed", "Alerts that a channel did not take.")
        self.outbox = _gauge("outbox_alerts", "Alerts that wait for delivery.", "channel")
        self.commit_s = Histogram(
            "harnessd_store_commit_seconds", "Time of a transaction of the store, sync included.", ()
        )
        self.store_units = _counter("store_units", "Units of work in the store's transactions.")
        self.store_bytes = _gauge("store_bytes", "Size of the store's files.", "file")
        self.disk_free = _gauge("disk_free_ratio", "Free part of the store's file system.")
        self.checkpoint_bytes = _gauge("checkpoint_bytes", "Size of the checkpoints' contents.")

    def _of_the_daemon(self) -> None:
        self.build = _gauge("build_info", "Always 1; version and machine of the daemon.", "version", "node")
        self.workers = _gauge("workers", "Tasks that can run at the same time.")
        self.workers_busy = _gauge("workers_busy", "Tasks that hold a worker.")
        self.draining = _gauge("draining", "1 while no new task is taken.")
        self.near_limit = _gauge(
            "tasks_near_limit", "Running tasks that used more than a part of a budget.", "budget", "above"
        )
        self.breaker = _gauge("breaker_state", "1 for the state that a breaker is in.", "dependency", "state")
        self.in_line = _gauge("model_calls_waiting", "Model calls that limits hold back.", "model")
        self.in_flight = _gauge("model_calls_in_flight", "Model calls under way.", "model")
        self.cost_today = _gauge("cost_today_usd", "What a model cost in this UTC day.", "model")
        self.warnings = _gauge("warnings", "Warnings that `harnessctl status` shows.")

    def _of_policies_and_process(self) -> None:
        self.revision = _gauge("policy_revision", "Revision of the policies in force.")
        self.policy_age_s = _gauge("policy_in_force_age_seconds", "Since when that revision is in force.")
        self.policy_refused = _gauge("policy_refused", "1 while the files on disk are not valid and not in force.")
        self.policy_refused_s = _gauge("policy_refused_age_seconds", "For how long; 0 where they are valid.")
        self.policy_held = _gauge("policy_held", "1 while a valid set waits for a person's yes.")
        self.loop_s = Histogram(
            "harnessd_event_loop_turn_seconds",
            "Time of one turn of the event loop: what came meanwhile waited for so long.",
            (),
        )
        self.loop_blocked = _counter("event_loop_blocked", "Turns of the event loop that took more than a second.")
        self.log_dropped = _counter("log_lines_dropped", "Log lines that nobody read in time.")
        self.spans = _counter("trace_spans", "Spans of traces, by what became of them.", "outcome")
        self.cpu_s = Meter("process_cpu_seconds_total", "CPU time of the daemon, in seconds.", "counter")
        self.resident = Meter("process_resident_memory_bytes", "Resident memory of the daemon.", "gauge")
        self.open_fds = Meter("process_open_fds", "Open file descriptors.", "gauge")
        self.max_fds = Meter("process_max_fds", "Most open file descriptors.", "gauge")
        self.threads = Meter("process_threads", "Threads of the daemon.", "gauge")
        self.started = Meter("process_start_time_seconds", "When the daemon started, since the Unix epoch.", "gauge")

    def __iter__(self) -> Iterator[AnyMeter]:
        """All meters."""
        return iter(vars(self).values())


def take(histogram: Histogram, bounds: tuple[float, ...], counts: Sequence[int], total: float) -> None:
    """A distribution that somebody else counts."""
    one = Distribution(bounds)
    one.counts, one.total = list(counts), total
    histogram.series = {(): one}
