"""The HTTP server and tokenizer before an engine's scheduler, and the time of its next pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil

from fairbench.core import PS_PER_S
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.hardware.timing import Frontend
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.views import WaitingView
from fairbench.sim.clock import ARRIVE, DECIDE, Clock
from fairbench.sim.sequence import Sequence


class FrontendQueue:
    """A queue that passes requests on in order of arrival, each after its processing time.

    There is one process: while it works on a request, the next one waits, and so does an answer's
    first token. The other delay of an answer on its way out is counted on the way in, where it
    affects the same latencies. Without costs, all requests pass immediately.
    """

    def __init__(
        self, clock: Clock, costs: Frontend, key: int, pass_on: Callable[[Sequence], None]
    ) -> None:
        self._clock = clock
        self._costs = costs
        self._is_free = costs == Frontend()
        self._delay_ps = round(costs.delay_ms * PS_PER_MS)
        self._key = key
        self._pass_on = pass_on
        self._free_ps = 0
        self._held: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._held)

    def enter(self, sequence: Sequence) -> None:
        if self._is_free:
            self._pass_on(sequence)
            return
        costs, start_ps = self._costs, self._clock.now_ps
        if start_ps < self._free_ps:
            start_ps = self._free_ps
        turn_ms = costs.request_ms + costs.token_ms * sequence.request.input_tokens
        self._free_ps = start_ps + round(turn_ms * PS_PER_MS)
        self._held[sequence] = None
        leave = partial(self._leave, sequence)
        self._clock.at(self._free_ps + self._delay_ps, ARRIVE, self._key, leave)

    def out_ps(self, now_ps: int) -> int:
        """Return when a token that the engine has ready at ``now_ps`` is sent."""
        return now_ps if now_ps > self._free_ps else self._free_ps

    def withdraw(self, sequence: Sequence) -> bool:
        """Withdraw a request; return False if it is not here."""
        return self._held.pop(sequence, sequence) is None

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self._held:
            del self._held[sequence]
            self._pass_on(sequence)


class WakeUp:
    """Calls ``awake`` at the time that a scheduler which leaves room unused asks for."""

    def __init__(self, clock: Clock, index: int, awake: Callable[[], None]) -> None:
        self._clock = clock
        self._index = index
        self._awake = awake
        self._wake_ps: int | None = None

    def rest(self, scheduler: LocalScheduler, waiting: WaitingView) -> None:
        """Set a wake-up for an idle worker whose scheduler left requests waiting."""
        if scheduler.work_conserving:
            return
        now_ps = self._clock.now_ps
        wake_s = scheduler.wake_s(waiting, now_ps / PS_PER_S)
        if wake_s is not None:
            self._at(max(now_ps + 1, ceil(wake_s * PS_PER_S)))

    def _at(self, time_ps: int) -> None:
        """Set a wake-up at ``time_ps`` unless an earlier one is set."""
        if self._wake_ps is None or not self._clock.now_ps < self._wake_ps <= time_ps:
            self._wake_ps = time_ps
            self._clock.at(time_ps, DECIDE, self._index, self._wake)

    def _wake(self) -> None:
        if self._clock.now_ps == self._wake_ps:
            self._wake_ps = None
            self._awake()
