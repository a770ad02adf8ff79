"""A second engine contract: S-LoRA / LightLLM's loop, for replaying runs measured on it.

No prefix cache and no preemption: a request is admitted only if the batch can be decoded to its
end, with output lengths known (``Request.max_new_tokens`` is taken for the true length, as in the
measured runs, which ignored the end-of-sequence token). A new minibatch is tried
``max_wait_tokens`` decode steps after the last one and from then on after each step, or when idle.
Source: [VTC-artifact], slora/server/router/{manager,req_queue}.py.

One event loop both reads the socket and runs the model, and the step's own coroutine resumes before
the reader's. So a request that arrives during a step is seen one decision late, unless the step
ended a request (the batch is filtered then, which lets the reader run). Idle, it looks every 10 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import PS_PER_S, Request
from fairbench.hardware.timing import PS_PER_MS, TimingProfile
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Tried, drive
from fairbench.sim.clock import DECIDE, END, Clock
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.engine.decode_run import DecodeRun
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.running_view import BatchView
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.sequence import FINISHED, REFUSED, Sequence


@dataclass(frozen=True)
class LightLLMLimits:
    """Server settings. ``max_prefill_tokens`` 0 is S-LoRA's max(pool / 6, 3072).

    ``client_tokens`` of the pool are set aside for each client in the batch (its adapter).
    ``prefill_overhead_ms`` is what a minibatch costs beyond its tokens (its own start and merge).
    The linear layers of a prefill compute whole tiles of ``prefill_tile`` rows; a minibatch of less
    than one takes the next power of two. An idle server looks for requests every ``idle_poll_ms``.
    """

    pool_tokens: int
    client_tokens: int = 0
    max_running_requests: int = 1_000
    max_wait_tokens: int = 10
    max_prefill_tokens: int = 0
    prefill_overhead_ms: float = 0.0
    prefill_tile: int = 1
    idle_poll_ms: float = 0.0

    def prefill_rows(self, tokens: int) -> int:
        """Rows that the linear layers compute for a minibatch of so many tokens."""
        tile = min(self.prefill_tile, 1 << (tokens - 1).bit_length())
        return -(-tokens // tile) * tile


class LightLLMWorker:
    """One server. ``submit`` requests; their ``on_done`` is called when they are over."""

    def __init__(
        self,
        clock: Clock,
        scheduler: LocalScheduler,
        profile: TimingProfile,
        limits: LightLLMLimits,
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.batch = RunningBatch()
        self.waiting = WaitingQueue(KVCache(limits.pool_tokens), cache_aware=False)
        self.waiting.running = BatchView(self.batch, self._free_tokens)
        self._clock = clock
        self._profile = profile
        self._max_prefill = limits.max_prefill_tokens or max(limits.pool_tokens // 6, 3_072)
        self._overhead_ps = round(limits.prefill_overhead_ms * PS_PER_MS)
        self._decoded = 0  # steps since the last minibatch
        self._run: DecodeRun | None = None
        self._prefilling: list[Sequence] = []
        self._poll_ps = round(limits.idle_poll_ms * PS_PER_MS)
        self._idle_since_ps: int | None = 0
        self._unread: list[Sequence] = []  # arrived, but the queue does not know of them yet

    def submit(self, sequence: Sequence) -> None:
        """A request arrives; it is refused at once if it can never fit or is over a rate limit."""
        request = sequence.request
        sequence.worker = 0
        now_s = self._clock.now_ps / PS_PER_S
        if not self._ever_fits(sequence) or not self.scheduler.accepts(request, now_s):
            sequence.status = REFUSED
            sequence.on_done(sequence)
            return
        if self._read_at_once():
            self.scheduler.on_arrival(request, self.waiting, now_s)
            self.waiting.enter(sequence)
            return
        self._unread.append(sequence)
        if self._idle_since_ps is not None:
            self._clock.at(self._next_look_ps(self._idle_since_ps), DECIDE, 0, self._decide)
            self._idle_since_ps = None

    def _read_at_once(self) -> bool:
        """Whether what arrives now is read before the next decision: not in the step before it."""
        if self._run is None:
            return bool(self._prefilling)
        self._book(self._run, self._run.steps_before(self._clock.now_ps))
        return self._run.steps > 1

    def _next_look_ps(self, since_ps: int) -> int:
        """When a server that has been idle since then sees what arrives now."""
        if not self._poll_ps:
            return self._clock.now_ps
        return since_ps + -((since_ps - self._clock.now_ps) // self._poll_ps) * self._poll_ps

    def _read(self) -> None:
        """The queue learns of what has arrived."""
        unread, self._unread = self._unread, []
        for sequence in unread:
            self.scheduler.on_arrival(sequence.request, self.waiting, self._clock.now_ps / PS_PER_S)
            self.waiting.enter(sequence)

    def _free_tokens(self) -> int:
        return self.limits.pool_tokens - self.batch.context_tokens

    def _ever_fits(self, sequence: Sequence) -> bool:
        alone = FitTest(RunningBatch(), self.limits)
        return sequence.total <= self._max_prefill and alone.try_add(sequence)

    def _decide(self) -> None:
        """S-LoRA's ``_step``: a minibatch if it is due and something fits, else decode."""
        if not len(self.batch):
            self._read()
        due = self.limits.max_wait_tokens - self._decoded
        if (due <= 0 or not len(self.batch)) and self._start_prefill():
            return
        if not len(self.batch):
            self._idle_since_ps = self._clock.now_ps
            return
        size = len(self.batch)
        steps = min(self.batch.steps_to_finish(), max(due, 1))  # overdue: it tries every step
        first_ps = self._profile.decode_ps(size, self.batch.context_tokens)
        growth_ps = self._profile.context_ps * size
        self._run = DecodeRun(self._clock.now_ps, first_ps, growth_ps, steps)
        self._clock.at(self._run.end_ps(steps), END, 0, self._end_decode)
        self._read()

    # Prefill.

    def _start_prefill(self) -> bool:
        admitted = self._fill_minibatch()
        if not admitted:
            return False
        now_ps = self._clock.now_ps
        self._prefilling = admitted
        for sequence in admitted:
            sequence.admitted_ps = now_ps
        chunks = [(0, sequence.total) for sequence in admitted]
        rows = self.limits.prefill_rows(sum(tokens for _, tokens in chunks))
        duration_ps = self._profile.prefill_ps(chunks, rows) + self._overhead_ps
        self._clock.at(now_ps + duration_ps, END, 0, self._end_prefill)
        return True

    def _fill_minibatch(self) -> list[Sequence]:
        fit = FitTest(self.batch, self.limits)
        admitted: list[Sequence] = []
        tokens = 0

        def try_admit(request: Request) -> Tried:
            nonlocal tokens
            sequence = self.waiting.sequence_of(request)
            if tokens + sequence.total > self._max_prefill or not fit.try_add(sequence):
                return Tried.NO_ROOM
            tokens += sequence.total
            admitted.append(sequence)
            sequence.extend_tokens = sequence.total
            self.waiting.admit(request)
            self.scheduler.on_admitted(request, sequence.total, recompute=False)
            return Tried.ADMITTED

        drive(self.scheduler.select(self.waiting, self._clock.now_ps / PS_PER_S), try_admit)
        self.waiting.end_pass()
        return admitted

    def _end_prefill(self) -> None:
        admitted, self._prefilling = self._prefilling, []
        self._decoded = 0
        for sequence in admitted:
            sequence.first_token_ps = self._clock.now_ps
            sequence.produced = 1
            self.batch.join(sequence)
            self.scheduler.on_tokens(sequence.request.client, 1)
            self.scheduler.on_request_tokens(sequence.request, 1)
        self._finish()

    # Decode.

    def _book(self, run: DecodeRun, steps: int) -> None:
        if not steps:
            return
        batch = self.batch
        batch.steps += steps
        self._decoded += steps
        run.advance(steps)
        batch.report(steps, self.scheduler)

    def _end_decode(self) -> None:
        run, self._run = self._run, None
        assert run is not None
        self._book(run, run.steps)
        self._finish()

    def _finish(self) -> None:
        done = self.batch.finished()
        for sequence in done:
            self.batch.leave(sequence)
            sequence.status, sequence.finish_ps = FINISHED, self._clock.now_ps
            self.scheduler.on_finish(sequence.request)
        if done:
            self._read()
        self._clock.at(self._clock.now_ps, DECIDE, 0, self._decide)
        for sequence in done:
            sequence.on_done(sequence)


class FitTest:
    """Whether the batch with one more request can be decoded to its end without running out.

    With requests sorted by remaining outputs, descending, the pool must hold at every finish:
    max over k of (remaining_k * k + sum of the k current lengths) < pool. The last token of a
    request needs no memory, and a new one is counted as after its prefill.
    """

    def __init__(self, batch: RunningBatch, limits: LightLLMLimits) -> None:
        self._limits = limits
        self._clients = set(batch.per_client)
        self._lengths: list[tuple[int, int]] = []  # (remaining outputs, current length)
        for sequence in batch.sequences:
            produced = batch.produced(sequence)
            remaining = sequence.output.length - produced - 1
            self._lengths.append((remaining, sequence.total + produced))

    def try_add(self, sequence: Sequence) -> bool:
        """Add a request if it fits; returns whether it did."""
        extended = [*self._lengths, (sequence.output.length - 1, sequence.total + 1)]
        if len(extended) > self._limits.max_running_requests:
            return False
        clients = self._clients | {sequence.request.client}
        extended.sort(key=lambda length: -length[0])
        held = most = 0
        for size, (remaining, length) in enumerate(extended, start=1):
            held += length
            most = max(most, remaining * size + held)
        if most >= self._limits.pool_tokens - self._limits.client_tokens * len(clients):
            return False
        self._lengths, self._clients = extended, clients
        return True
