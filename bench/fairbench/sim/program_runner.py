"""The execution of programs in simulated time, as coroutines that call a simulated ``LLM``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from types import coroutine
from typing import Any

from fairbench.core import PS_PER_S, Prompt, Segment, new_tuple
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.errors import ProgramFailed

# A ``Callback`` gets an operation's result and error; exactly one of these is not None.
Callback = Callable[[Any, ProgramFailed | None], None]
# A ``Pending`` starts an operation; when the operation ends, the callback resumes the program.
Pending = Callable[[Callback], None]


class Join:
    """Parallel branches of a program; ``done`` gets their results, or the first error."""

    def __init__(self, branches: list[Coroutine[Any, Any, Any]], done: Callback) -> None:
        self._branches = branches
        self._done = done
        self._results: list[Any] = [None] * len(branches)
        self._left = len(branches)
        self._error: ProgramFailed | None = None

    def start(self) -> None:
        if not self._branches:
            self._done([], None)
        for number, branch in enumerate(self._branches):
            run(branch, self._ended(number))

    def _ended(self, number: int) -> Callback:
        def call_ended(result: Any, error: ProgramFailed | None) -> None:
            self._results[number] = result
            self._error = self._error or error
            self._left -= 1
            if not self._left:
                self._done(None if self._error else self._results, self._error)

        return call_ended


class _Task:
    """A running coroutine, as a class because a recursive closure would form a reference cycle."""

    __slots__ = ("_done", "_program")

    def __init__(self, program: Coroutine[Any, Any, Any], done: Callback) -> None:
        self._program = program
        self._done = done

    def resume(self, value: Any, error: ProgramFailed | None) -> None:
        try:
            program = self._program
            pending: Pending = program.send(value) if error is None else program.throw(error)
        except StopIteration as end:
            self._done(end.value, None)
        except ProgramFailed as failed:
            self._done(None, failed)
        else:
            pending(self.resume)


def run(program: Coroutine[Any, Any, Any], done: Callback) -> None:
    """Start a coroutine; when it ends, ``done`` receives its result or its ProgramFailed error."""
    _Task(program, done).resume(None, None)


# A function that starts a call, given the prompt, name, output tokens, max_new_tokens, depth and
# callback.
Submit = Callable[[Prompt, str, int, int, int, Callback], None]


class SimLLM:
    """The model (``core.LLM``) that a program calls in simulated time.

    The function ``submit`` passes a call to the cluster.
    """

    def __init__(self, clock: Clock, submit: Submit) -> None:
        self._clock = clock
        self._submit = submit

    @coroutine
    def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Generator[Pending, Any, Segment]:
        output: Segment = yield partial(
            self._submit, prompt, name, output_tokens, max_new_tokens, depth
        )
        return output

    @coroutine
    def sleep(self, seconds: float) -> Generator[Pending, Any, None]:
        yield partial(self._wake, seconds)

    def _wake(self, seconds: float, done: Callback) -> None:
        at_ps = self._clock.now_ps + round(seconds * PS_PER_S)
        self._clock.at(at_ps, ARRIVE, 0, partial(done, None, None))

    @coroutine
    def gather(
        self, branches: Iterable[Coroutine[Any, Any, Any]]
    ) -> Generator[Pending, Any, list[Any]]:
        results: list[Any] = yield lambda done: Join(list(branches), done).start()
        return results


def output_segment(program_id: int, name: str, tokens: int) -> Segment:
    """Return the segment of a call's output; its key does not depend on the order of calls."""
    return new_tuple(Segment, (f"{program_id}/{name}", tokens))
