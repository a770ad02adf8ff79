"""Programs as a scheduler knows them: a state for each program that may have more calls."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from fairbench.core import Request

IDLE_PROGRAMS = 10_000  # programs that are remembered, if their ends are unknown

T = TypeVar("T")


class Programs(Generic[T]):
    """Program states: calls of a program share one; a request without a program has its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._states: dict[tuple[str, int], T] = {}
        self._calls: Counter[tuple[str, int]] = Counter()  # calls in flight
        self._complete: set[tuple[str, int]] = set()  # no further call will come
        self._idle: OrderedDict[tuple[str, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def enter(self, request: Request) -> tuple[T, bool]:
        """Begin a call; return its program's state, and whether the program is new."""
        program = _name(request)
        self._calls[program] += 1
        self._idle.pop(program, None)
        if request.calls_left == 0 or not program[0]:
            self._complete.add(program)
        new = program not in self._states
        if new:
            self._states[program] = self._make()
        return self._states[program], new

    def __getitem__(self, request: Request) -> T:
        return self._states[_name(request)]

    def leave(self, request: Request) -> bool:
        """End a call; return whether its program is over, with no call running or to come."""
        program = _name(request)
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
    """Return whether the host names programs: others use 0 or -1 and no ``calls_left``."""
    return request.program_id > 0 or request.calls_left is not None


def _name(request: Request) -> tuple[str, int]:
    return (
        (request.client, request.program_id) if has_program(request) else ("", request.request_id)
    )
