"""The simulator's ``LLM``, which programs call in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from types import coroutine
from typing import Any

from fairbench.core import PS_PER_S, Prompt, Segment, new_tuple
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.tasks import Callback, Join, Pending

# (prompt, name, output tokens, max new tokens, depth, callback)
Submit = Callable[[Prompt, str, int, int, int, Callback], None]


class SimLLM:
    """``core.LLM`` in virtual time. ``submit`` hands a call to the cluster."""

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
    """Return a call's output segment; its key is unique and independent of call order.

    Args:
        program_id: Identity of the program.
        name: Name of the call in its program.
        tokens: Length of the output, in tokens.
    """
    return new_tuple(Segment, (f"{program_id}/{name}", tokens))
