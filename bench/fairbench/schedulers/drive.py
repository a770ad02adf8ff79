"""An admission pass: a scheduler names candidates, and the host answers with each outcome."""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import NamedTuple, TypeAlias

from fairbench.core import Request
from fairbench.errors import RunFailed, shortened
from fairbench.files.python_file import failure_in_own_file


class Preempt(NamedTuple):
    """A request that a selection yields: free the memory of this running request.

    With ``swap``, its KV cache is copied to the host's memory and back instead
    (``Setup.swap_token_s`` is the time per token); only for a scheduler that declares ``swaps``.
    The answer is True if the memory was freed: not for a request that does not run, nor if the host
    has no room. Its outputs are kept, ``on_retract`` is called, and it waits again after the pass.
    Only for a scheduler that declares ``preempts``.
    """

    request: Request
    swap: bool = False


# The scheduler yields the next action; the host sends back whether it succeeded, or closes the
# generator when the pass ends.
Selection: TypeAlias = Generator[Request | Preempt, bool, None]


class Tried(Enum):
    """The outcome of trying a candidate."""

    ADMITTED = "it is in"
    NO_ROOM = "there is no room for it"
    LAST = "it is admitted, and the pass ends"
    OVER = "it was not tried, because the pass has ended"


# Module-level names, because CPython 3.11 looks up enum members slowly, and they are needed for
# each candidate.
ADMITTED, NO_ROOM, LAST, OVER = Tried


def never(wish: Preempt) -> bool:
    """Refuse every preemption, for hosts that cannot preempt."""
    return False


def drive(
    selection: Selection,
    try_admit: Callable[[Request], Tried],
    preempt: Callable[[Preempt], bool] = never,
) -> None:
    """Try the candidates of the scheduler until the scheduler stops or the pass ends.

    After an admission that ends the pass the scheduler is not resumed: otherwise it might refill,
    or move on to another group, for a candidate that is never tried.

    Args:
        selection: Candidates and preemptions that the scheduler yields.
        try_admit: Function that tries a candidate and returns the outcome.
        preempt: Function that carries out a preemption and returns whether it was done.

    Raises RunFailed if the selection is not a generator, or yields anything but a waiting request.
    """
    candidate = start(selection)
    try:
        while candidate is not None:
            if isinstance(candidate, Preempt):
                candidate = resume(selection, preempt(candidate))
                continue
            verdict = try_admit(candidate)
            if verdict is not ADMITTED and verdict is not NO_ROOM:
                return
            try:  # as in ``resume``, without a function call for each candidate
                candidate = selection.send(verdict is ADMITTED)
            except StopIteration:
                return
            if not isinstance(candidate, Request):
                candidate = _checked(selection, candidate)
    except KeyError as error:  # of the host's queue
        if error.args != (candidate,) or failure_in_own_file(error):
            raise
        raise RunFailed(
            f"{_name(selection)} yielded {shortened(repr(candidate))}, which does not wait"
        ) from error
    finally:
        selection.close()


def start(selection: Selection) -> Request | Preempt | None:
    """Return the first candidate, or None. Raises RunFailed if ``select`` returned no generator."""
    if not hasattr(selection, "send"):
        raise RunFailed(
            f"select returned {shortened(repr(selection))}: must be a generator, which yields "
            "waiting requests"
        )
    try:
        return _checked(selection, next(selection))
    except StopIteration:
        return None


def resume(selection: Selection, answer: bool) -> Request | Preempt | None:
    """Send the outcome of a candidate to the scheduler; return the next candidate, or None."""
    try:
        return _checked(selection, selection.send(answer))
    except StopIteration:
        return None


def _checked(selection: Selection, candidate: Request | Preempt) -> Request | Preempt:
    """Return the candidate. Raises RunFailed for any other value, such as None."""
    if not isinstance(candidate, (Request, Preempt)):
        raise RunFailed(
            f"{_name(selection)} yielded "
            f"{shortened(repr(candidate))}: must be a waiting request or a Preempt"
        )
    return candidate


def _name(selection: Selection) -> str:
    return getattr(selection, "__qualname__", "select")
