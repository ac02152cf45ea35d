"""Events: the one closed list of words for what people may want to see.

The same word stands in `logs --event`, in notify's `when: {event: ...}`, in metric labels and in the store.
"""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    """What happened. First the steps of a task, then what policies can tell people about, then the daemon's own."""

    # a task's way
    SUBMITTED = "submitted"
    STARTED = "started"  # a worker leased it
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"
    COMPACTION = "compaction"
    NOTICE = "notice"
    MODEL_CALL = "model_call"  # its intent is durable
    TOOL_CALL = "tool_call"  # its intent is durable
    DECISION = "decision"
    RETRY_WAIT = "retry_wait"
    PARKED = "parked"
    WOKEN = "woken"
    PAUSE_ASKED = "pause_asked"
    PAUSED = "paused"
    CANCEL_ASKED = "cancel_asked"
    RESUMED = "resumed"
    RETRIED = "retried"
    HANDED_BACK = "handed_back"
    INTERRUPTED = "interrupted"  # its worker died: queued again, one recovery charged
    MESSAGE = "message"  # a person's word, not yet a node
    ANSWERED = "answered"
    CHANGED = "changed"
    POINTER_MOVED = "pointer_moved"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_FAILED = "rollback_failed"
    CHECKPOINT = "checkpoint"
    JOB_STARTED = "job_started"
    JOB_ENDED = "job_ended"
    NUDGE = "nudge"
    CONTEXT_REPAIRED = "context_repaired"  # the view of the history had to be made legal
    RUNG = "rung"  # the watchdog acted
    PROGRESS = "progress"
    TASK_COMPLETED = "task_completed"
    # policies.md 3.4
    NEEDS_HUMAN = "needs_human"
    APPROVAL_WANTED = "approval_wanted"
    UNANSWERED = "unanswered"
    TASK_STOPPED = "task_stopped"
    BUDGET_WARNING = "budget_warning"
    CEILING_REACHED = "ceiling_reached"
    BREAKER_OPENED = "breaker_opened"
    BREAKER_CLOSED = "breaker_closed"
    OUTAGE_STARTED = "outage_started"
    OUTAGE_ENDED = "outage_ended"
    DEGRADED = "degraded"
    RECOVERED = "recovered"
    CREDENTIAL_DEAD = "credential_dead"
    POLICY_APPLIED = "policy_applied"
    POLICY_INVALID = "policy_invalid"
    POLICY_HELD = "policy_held"
    INTERNAL_ERROR = "internal_error"
    DISK_LOW = "disk_low"
    STORAGE_FULL = "storage_full"
    NOTIFY_FAILED = "notify_failed"
    RECOVERY_STOPPED = "recovery_stopped"
    DRAINED = "drained"
    NODE_LOST = "node_lost"
    POLICY_MISSING = "policy_missing"
    ACCESS_REFUSED = "access_refused"
    # the daemon's own
    DAEMON_STARTED = "daemon_started"
    DAEMON_STOPPED = "daemon_stopped"
    DRAINING = "draining"
    STORE_RESTORED = "store_restored"  # a backup became the store; of a task: it was told so
    COLLECTED = "collected"  # what policy keeps no longer was given back
    BACKED_UP = "backed_up"
