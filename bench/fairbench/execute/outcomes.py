"""Outcomes of a sweep's tasks in its store: a failure is stored with its reason."""

from __future__ import annotations

from typing import Any, NamedTuple

from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure
from fairbench.execute.interruption import Interruption
from fairbench.results.sweep_store import SweepStore


class FailedPoint(NamedTuple):
    """A failed run: its name, and the reason in one line."""

    name: str
    error: str


def keep_outcome(
    store: SweepStore, key: str, name: str, result: Any, interrupted: Interruption
) -> str:
    """Store why a task failed, or remove an old failure; return the reason or "".

    ``result`` is a summary or a Failure. A task that was interrupted has not failed.
    """
    if not isinstance(result, Failure) and result["complete"]:
        store.clear_failure(key)
        return ""
    if interrupted():
        return ""
    error, traceback = _why(result)
    store.save_failure(key, name, error, traceback)
    return error


def tell_ended(context: RunContext, name: str, error: str, number: int, count: int) -> None:
    """Report that a task has ended, and whether it failed, unless interrupted.

    Args:
        context: Interruption flag, progress receiver and executor of the tasks.
        name: Name of the task.
        error: Message of the task's error, or empty if the task succeeded.
        number: Number of tasks that have ended, with this one.
        count: Number of all tasks.
    """
    if not context.interrupted():
        context.progress.ended(f"{name} failed" if error else name, number, count)


def _why(result: Any) -> tuple[str, str]:
    if isinstance(result, Failure):
        return str(result.error), result.details
    return result.get("notes", {}).get("complete", "its process was told to stop"), ""
