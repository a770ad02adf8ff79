"""The admission pass: a scheduler proposes requests, and the host reports which it admitted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import NamedTuple, TypeAlias

from fairbench.core import Request
from fairbench.errors import RunFailed, shortened
from fairbench.files.reader import failure_in_own_file


class Preempt(NamedTuple):
    """A scheduler's demand, yielded by ``select``, to preempt a running request.

    The engine sends True to ``select`` if it freed the KV memory of the request. The engine sends
    False if the request is not running or does not fit into CPU memory. A preempted request keeps
    its outputs and waits again after the pass; the engine calls ``on_retract``. With ``swap``, the
    KV cache is copied to CPU memory and back instead of being recomputed. Only a scheduler that
    declares ``preempts`` may yield a ``Preempt``; with ``swap``, the scheduler must also declare
    ``swaps``.
    """

    request: Request
    swap: bool = False


# A selection is a generator that yields the scheduler's next action, such as a request to admit.
# The engine sends True after a successful action, and closes the generator when the pass ends.
Selection: TypeAlias = Generator[Request | Preempt, bool, None]


class Tried(Enum):
    """The result of an attempt to admit a candidate."""

    ADMITTED = "the candidate is admitted"
    NO_ROOM = "the engine has no room for the candidate"
    LAST = "the candidate is admitted, and the pass ends"
    OVER = "the candidate was not tried, because the pass has ended"


# The enum's members are also module constants, because CPython 3.11 looks up enum members slowly.
ADMITTED, NO_ROOM, LAST, OVER = Tried


def never(wish: Preempt) -> bool:
    """Refuse a preemption; hosts that cannot preempt requests use this function."""
    return False


def drive(
    selection: Selection,
    try_admit: Callable[[Request], Tried],
    preempt: Callable[[Preempt], bool] = never,
) -> None:
    """Try the scheduler's candidates until the scheduler stops or the pass ends.

    If an admission ends the pass, the generator is not resumed, because a scheduler could then
    refill credits for a candidate that is never tried.

    Args:
        selection: The scheduler's generator of candidates and preemptions.
        try_admit: A function that tries to admit a candidate and returns the outcome.
        preempt: A function that carries out a preemption and returns whether it succeeded.

    Raises RunFailed if the selection is not a generator, or yields anything but waiting requests
    and preemptions.
    """
    candidate = first_candidate(selection)
    try:
        while candidate is not None:
            if isinstance(candidate, Preempt):
                candidate = next_candidate(selection, preempt(candidate))
                continue
            verdict = try_admit(candidate)
            if verdict is not ADMITTED and verdict is not NO_ROOM:
                return
            # The code of ``next_candidate`` is repeated here to save a function call per candidate.
            try:
                candidate = selection.send(verdict is ADMITTED)
            except StopIteration:
                return
            if not isinstance(candidate, Request):
                candidate = _checked_candidate(selection, candidate)
    except KeyError as error:
        # A KeyError means that the yielded request is not in the engine's queue.
        if error.args != (candidate,) or failure_in_own_file(error):
            raise
        name = _selection_name(selection)
        raise RunFailed(
            f"{name} yielded {shortened(repr(candidate))}, which is not a waiting request"
        ) from error
    finally:
        selection.close()


def first_candidate(selection: Selection) -> Request | Preempt | None:
    """Return the first candidate of a selection, or None for an empty selection.

    Raises RunFailed if ``select`` returned no generator.
    """
    if not hasattr(selection, "send"):
        raise RunFailed(
            f"select returned {shortened(repr(selection))}: must be a generator that yields "
            "waiting requests"
        )
    try:
        return _checked_candidate(selection, next(selection))
    except StopIteration:
        return None


def next_candidate(selection: Selection, answer: bool) -> Request | Preempt | None:
    """Send the scheduler the outcome of its last candidate; return its next candidate, if any."""
    try:
        return _checked_candidate(selection, selection.send(answer))
    except StopIteration:
        return None


def _checked_candidate(selection: Selection, candidate: Request | Preempt) -> Request | Preempt:
    if not isinstance(candidate, (Request, Preempt)):
        raise RunFailed(
            f"{_selection_name(selection)} yielded "
            f"{shortened(repr(candidate))}: must be a waiting request or a 'Preempt' object"
        )
    return candidate


def _selection_name(selection: Selection) -> str:
    return getattr(selection, "__qualname__", "select")
