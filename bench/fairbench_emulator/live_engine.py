"""The simulator's worker, run in real time for requests that arrive at any time."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import monotonic

import numpy as np

from fairbench.core import PS_PER_S, Request
from fairbench.engine.clock import Clock
from fairbench.engine.sequence import REFUSED, Sequence
from fairbench.engine.sglang import SGLangReplica
from fairbench.schedulers.base import LocalScheduler
from fairbench_emulator.calls import (
    NO_STOPS,
    BadRequest,
    EmulatedCall,
    Ending,
    Generation,
    ending_of,
)
from fairbench_emulator.kv_events import PublishingCache
from fairbench_emulator.tokens import Ids, Text, TokenStreams
from fairbench_load.headers import untagged

MAX_STREAM_TOKENS = 2**22  # number of stored tokens above which unused token sequences are deleted


class WallClock:
    """A clock that runs ``scale`` emulated seconds per real second.

    Waits are computed from absolute times, so that timing errors do not add up. ``time_s`` must be
    the time function of the event loop's ``call_at``.
    """

    def __init__(self, scale: float, time_s: Callable[[], float] = monotonic) -> None:
        self.clock = Clock()
        self._time_s = time_s
        self._start_s = time_s()
        self.scale = scale
        self._ps_per_s = scale * PS_PER_S

    def now_s(self) -> float:
        """Return the emulated time in seconds that corresponds to the current real time."""
        return (self._time_s() - self._start_s) * self.scale

    def catch_up(self) -> None:
        """Run all due events in order, each at its own time, and advance the clock to now."""
        clock = self.clock
        now_ps = max(clock.now_ps, int((self._time_s() - self._start_s) * self._ps_per_s))
        while (next_ps := clock.next_ps()) is not None and next_ps <= now_ps:
            clock.step()
        clock.stop_at(now_ps)

    def real_s(self, time_ps: int) -> float:
        """Return the real time in seconds at which ``clock`` reaches ``time_ps`` (picoseconds)."""
        return self._start_s + time_ps / self._ps_per_s


@dataclass(eq=False)
class LiveEngine:
    """An engine that accepts calls and delivers their output tokens.

    All methods must be called from the event loop's thread.

    A request's first token is delivered immediately, and later tokens every ``stream_interval``
    decode steps. The event loop sleeps until the computed time of the next delivery. If the
    scheduler raises an error, the engine sets ``failure``, calls ``on_failure`` and stops.
    """

    worker: SGLangReplica
    cache: PublishingCache
    streams: TokenStreams
    wall: WallClock
    text: Text
    loop: AbstractEventLoop
    stream_interval: int
    new_scheduler: Callable[[], LocalScheduler]

    def __post_init__(self) -> None:
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.finished = self.aborted = self.refused = 0
        self.cached_tokens = self.input_tokens = 0  # sums over all finished requests
        self._live: dict[Request, Generation] = {}
        self._paced = 0  # number of running calls with their own ``stream_interval``
        self._request_ids = count()
        self._rng = np.random.default_rng(0)
        self._delivered_step = 0  # last decode step whose tokens were sent to clients
        self._timer: TimerHandle | None = None
        self._stream_limit = MAX_STREAM_TOKENS

    @property
    def may_refuse(self) -> bool:
        """Whether the scheduler's class can refuse requests."""
        return type(self.worker.scheduler).accepts is not LocalScheduler.accepts

    def submit(self, call: EmulatedCall) -> Generation:
        """Submit a call to the engine at the current time.

        Raises BadRequest if the KV pool is too small for the call.
        """
        self._forget_streams()
        prompt, end = self.streams.prompt_of(call.ids)
        now_s = self.wall.now_s()
        client, due = untagged(call.routing_key, now_s, self.wall.scale)
        request = Request(
            request_id=next(self._request_ids),
            client=client,
            program_id=call.program_id,
            depth=call.depth,
            prompt=prompt,
            input_tokens=len(call.ids),
            max_new_tokens=call.max_new_tokens,
            arrival_s=now_s,
            deadline_s=due.end_s,
            first_token_by_s=due.first_token_s,
            token_every_s=due.token_every_s,
        )
        if not self.worker.fits(request):
            raise BadRequest(
                f"at least {request.input_tokens} input tokens and {request.max_new_tokens} output "
                f"tokens do not fit into the KV pool of {self.worker.limits.pool_tokens} tokens"
            )
        output, ids = self.streams.output_at(end, lambda: self._draw(call))
        with self._working():
            self.wall.catch_up()
            sequence = Sequence(request, output, self.wall.clock.now_ps, self._on_end)
            listed = ids.tolist()
            generation = Generation(call, sequence, listed, self._ending(call, listed), self.text)
            self._live[request] = generation
            self._paced += call.stream_interval is not None
            self.worker.submit(sequence)
            self._advance()
        return generation

    def abort(self, generation: Generation) -> None:
        """Abort an unfinished output whose client has disconnected."""
        if generation.done:
            return
        generation.aborted = True
        with self._working():
            self.wall.catch_up()
            self.worker.abort(generation.sequence)
            self._advance()

    def flush_cache(self) -> bool:
        """Empty the cache if the engine has no requests. Return whether the cache was emptied.

        The emptied engine gets a new local scheduler, without the credits and counters of the old
        scheduler. fairbench's plugin for SGLang does the same.
        """
        self.wall.catch_up()
        if self._live:
            return False
        self.cache.clear()
        self.worker.scheduler = self.new_scheduler()
        self.worker.cap.forget()
        return True

    def catch_up(self) -> None:
        """Advance the worker's state to the current time, so that a caller can read it."""
        self.wall.catch_up()
        self.worker.sync()

    def _draw(self, call: EmulatedCall) -> Ids:
        known = self.text.output_ids
        ids = known[self._rng.integers(0, len(known), call.output_tokens)]
        return ids if call.stops is NO_STOPS else ids[: self._ending(call, ids.tolist()).tokens]

    def _ending(self, call: EmulatedCall, ids: list[int]) -> Ending:
        return ending_of(ids, call.max_new_tokens, call.stops, self.text)

    def _on_end(self, sequence: Sequence) -> None:
        generation = self._live.pop(sequence.request)
        self._paced -= generation.call.stream_interval is not None
        generation.deliver(sequence.produced, done=True)
        if generation.aborted:
            self.aborted += 1
        elif sequence.status == REFUSED:
            self.refused += 1
        else:
            self.finished += 1
            self.cached_tokens += sequence.cached_tokens
            self.input_tokens += sequence.request.input_tokens

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Record an exception that the scheduler raises in the ``with`` block."""
        try:
            yield
        except Exception as error:  # a user's scheduler may raise any exception
            self.failure = error
            self.on_failure()
            raise

    def _wake(self) -> None:
        with self._working():
            self._advance()

    def _advance(self) -> None:
        self.wall.catch_up()
        self.worker.sync()
        self._deliver()
        self.cache.publish()
        if self._timer is not None:
            self._timer.cancel()
        next_ps = self._next_ps()
        self._timer = (
            None if next_ps is None else self.loop.call_at(self.wall.real_s(next_ps), self._wake)
        )

    def _deliver(self) -> None:
        batch = self.worker.batch
        due = batch.steps - self._delivered_step >= self.stream_interval
        if due:
            self._delivered_step = batch.steps
        for sequence in batch.sequences:
            generation = self._live[sequence.request]
            every = generation.call.stream_interval
            if every is not None and generation.produced:
                if batch.produced(sequence) - generation.produced >= every:
                    generation.deliver(batch.produced(sequence))
            elif due or not generation.produced:
                generation.deliver(batch.produced(sequence))

    def _next_ps(self) -> int | None:
        """Return the time (ps) of the next event, or of an earlier step that delivers tokens."""
        event_ps = self.wall.clock.next_ps()
        to_go = self._delivered_step + self.stream_interval - self.worker.batch.steps
        # A call with its own ``stream_interval`` may have tokens to deliver after any step.
        if self._paced:
            to_go = 1
        step_ps = self.worker.step_end_ps(max(1, to_go))
        return event_ps if event_ps is None or step_ps is None else min(event_ps, step_ps)

    def _forget_streams(self) -> None:
        if self.streams.tokens <= self._stream_limit:
            return
        used = {key for node in self.cache.nodes() for key, _ in node.edge}
        for generation in self._live.values():
            sequence = generation.sequence
            used.update(key for key, _ in (*sequence.request.prompt, sequence.output))
        self.streams.keep_only(used)
        self._stream_limit = max(MAX_STREAM_TOKENS, 2 * self.streams.tokens)
