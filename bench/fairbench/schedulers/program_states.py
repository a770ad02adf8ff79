"""The states that a scheduler keeps for programs that may still send calls."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from fairbench.core import Request

# maximum number of idle programs to remember if the ends of programs are unknown
IDLE_PROGRAMS = 10_000

T = TypeVar("T")


class ProgramStates(Generic[T]):
    """The states of the programs that may still send calls.

    A request that belongs to no program has its own state.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._states: dict[tuple[str, int], T] = {}
        self._calls: Counter[tuple[str, int]] = Counter()
        # ``_complete`` holds the programs that will send no further call.
        self._complete: set[tuple[str, int]] = set()
        self._idle: OrderedDict[tuple[str, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def begin_call(self, request: Request) -> tuple[T, bool]:
        """Begin a call; return the state of its program, and whether the program is new."""
        program = _program_key(request)
        self._calls[program] += 1
        self._idle.pop(program, None)
        if request.calls_left == 0 or not program[0]:
            self._complete.add(program)
        new = program not in self._states
        if new:
            self._states[program] = self._make()
        return self._states[program], new

    def __getitem__(self, request: Request) -> T:
        return self._states[_program_key(request)]

    def values(self) -> Collection[T]:
        """Return the states of all known programs, the oldest first."""
        return self._states.values()

    def forget_idle(self, gone: Callable[[T], bool]) -> None:
        """Delete idle programs, the longest idle first, while ``gone(state)`` is true."""
        while self._idle and gone(self._states[next(iter(self._idle))]):
            del self._states[self._idle.popitem(last=False)[0]]

    def end_call(self, request: Request) -> bool:
        """End a call; return True if its program has ended."""
        program = _program_key(request)
        self._calls[program] -= 1
        if self._calls[program]:
            return False
        del self._calls[program]
        if program in self._complete:
            self._complete.remove(program)
            del self._states[program]
            return True
        self._idle[program] = None
        if len(self._idle) > IDLE_PROGRAMS:
            del self._states[self._idle.popitem(last=False)[0]]
        return False


def has_program(request: Request) -> bool:
    """Return whether the request's program is known.

    A program id of 0 or -1 means that the program is unknown.
    """
    return request.program_id > 0 or request.calls_left is not None


def _program_key(request: Request) -> tuple[str, int]:
    return (
        (request.client, request.program_id) if has_program(request) else ("", request.request_id)
    )
