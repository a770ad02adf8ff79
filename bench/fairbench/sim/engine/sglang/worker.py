"""A simulated worker: SGLang's scheduling, iteration by iteration.

Overlap scheduling is off. Rules: docs/appendix/engine.md.
"""

from __future__ import annotations

from fairbench.core import Request, Segment
from fairbench.hardware.engine_params import EngineLimits
from fairbench.hardware.gpu_time import Chunk, prompt_parts
from fairbench.schedulers.drive import never
from fairbench.sim.clock import END
from fairbench.sim.engine.batch import BatchView, DecodeRun, RunningBatch
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.prefill import Prefill, report_prompts, shares_of
from fairbench.sim.engine.sglang.admission_budget import PassInterval, PrefillPass, run_selection
from fairbench.sim.engine.sglang.retraction import (
    NewTokenRatio,
    Retraction,
    store_outputs,
    store_prompt,
)
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import UNFINISHED, Sequence


class Worker(EngineLoop[KVNode]):
    """An SGLang replica. ``submit`` requests; the ``on_done`` of each is called at its end."""

    __slots__ = (
        "_always_due", "_batch_is_full", "_chunked", "_computed", "_has_tail", "_passes",
        "_prefill_start_ps", "_prefills", "_ratio", "_retraction", "cache", "limits",
    )  # fmt: skip

    def __init__(self, parts: WorkerParts, limits: EngineLimits, cache: KVCache) -> None:
        in_batch, match_us = limits.in_batch_prefix_caching, limits.prefix_match_us
        aware, touches = parts.scheduler.cache_aware, limits.rules.touches_waiting
        waiting = WaitingQueue(cache, aware, in_batch=in_batch, match_us=match_us, touches=touches)
        batch = RunningBatch(parts.log.index)
        super().__init__(parts, batch, waiting, limits.load_cap, limits.host_tokens)
        self.limits, self.cache = limits, cache
        self._ratio = NewTokenRatio(limits.schedule_conservativeness, limits.full_reservation)
        self._passes = PassInterval(limits.num_continuous_decode_steps)
        self._has_tail = parts.profile.longest_ps > 0
        self._always_due = limits.num_continuous_decode_steps == 1
        # no pass until a request leaves, unless the scheduler may preempt
        self._batch_is_full = False
        self._chunked: Sequence | None = None
        self._prefills: list[Prefill] = []
        self._computed: list[Chunk] = []  # the computed tokens, in the form of timing profiles
        self._prefill_start_ps = 0
        self._retraction = Retraction(self, cache, self._ratio)
        waiting.running = BatchView(
            batch, lambda: cache.free + cache.evictable, self._retraction.would_fit
        )

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def abort(self, sequence: Sequence) -> None:
        """Abort a sequence; a waiting one leaves at once and counts as refused.

        A running request ends with the step in progress, and a prefilling one at the end of its
        prompt: both as FINISHED, and their output stays cached.
        """
        if sequence.status != UNFINISHED:
            return
        self.sync()
        if self.frontend.withdraw(sequence):
            sequence.refuse()
        elif sequence in self.batch.sequences:
            if self._run is not None:
                self._stop_run(self._run)
            self.batch.cut(sequence, self._run.steps if self._run is not None else 0)
        elif sequence in self._inbox:
            self._inbox.remove(sequence)
            sequence.refuse()
        elif sequence.request in self.waiting:
            self.waiting.withdraw(sequence.request)
            self.host.drop(sequence)
            self.cap.finish(sequence.request, sequence.produced)
            self.scheduler.on_output(sequence.request, sequence.produced)
            self.scheduler.on_finish(sequence.request)
            sequence.refuse()
        else:
            sequence.output = Segment(sequence.output.key, sequence.produced + 1)

    def step_end_ps(self, steps: int) -> int | None:
        """Return when ``steps`` more steps of the synced run end, or the run; None without one."""
        return None if self._run is None else self._run.end_ps(min(steps, self._run.steps))

    def settle(self) -> None:
        """Bring counts up to date, and undo the admissions of an iteration that did not end."""
        super().settle()
        for prefill in self._prefills:
            if prefill.first:
                prefill.sequence.not_admitted(prefill.cached)

    @property
    def running_count(self) -> int:
        chunked = self._chunked is not None and all(
            prefill.sequence is not self._chunked for prefill in self._prefills
        )
        return len(self.batch) + len(self._prefills) + chunked

    @property
    def saturated(self) -> bool:
        """Return whether requests wait and the batch is flagged full, even with preemption."""
        return len(self.waiting) > 0 and self._batch_is_full

    def _running(self) -> list[Sequence]:
        prefilling = [prefill.sequence for prefill in self._prefills]
        chunked = [self._chunked] if self._chunked and self._chunked not in prefilling else []
        return [*self.batch.sequences, *prefilling, *chunked]

    # The loop.

    @property
    def _may_admit(self) -> bool:
        return self._preempts or not self._batch_is_full

    def _start(self) -> bool:
        if not self.batch.size:
            self._batch_is_full = False
        return self._start_prefill() or self._start_decode()

    def _rest(self) -> None:
        super()._rest()
        if not len(self.waiting):
            self._ratio.reset(self.batch.steps)

    def _release(self, sequence: Sequence) -> None:
        self._batch_is_full = False  # these requests leave SGLang's batch before its next pass
        self.batch.leave(sequence)
        store_outputs(self.cache, sequence, self.limits.rules.splits)

    # Prefill.

    def _start_prefill(self) -> bool:
        batch = self.batch
        if not (self._always_due or self._passes.is_due(batch.steps, decoding=batch.size > 0)):
            return False
        if self._chunked is None:
            if not self.waiting.entries or (self._batch_is_full and not self._preempts):
                return False
            if batch.size >= self._slots() and not self._preempts:
                self._batch_is_full = self.limits.marks_full_batch
                return False
        if not self.scheduler.cache_aware:
            self.waiting.pass_unmatched()
        attempt = self._fill_pass()
        if preempted := self._preempts and self._retraction.requeue():
            self._batch_is_full = False
        if not attempt.admitted:
            return preempted and not len(self.batch) and self._start_prefill()
        self._prefills = attempt.admitted
        self._computed = attempt.take_memory()
        copying_ps = self.host.delay_ps() if self.host.copied else 0
        delay_ps = copying_ps + self.waiting.matching_ps()
        start_ps = self._prefill_start_ps = self._clock.now_ps + delay_ps
        duration = self._profile.prefill_ps(self._computed)
        self._end_stretch()
        self._computes_prompts = True
        self._clock.at(start_ps + duration, END, self.index, self._end_prefill)
        return True

    def _slots(self) -> int:
        """Return how many requests may run, with those of the batch that still decode."""
        twice = self._chunked is not None and not self.limits.rules.counts_chunk_once
        return self.limits.max_running_requests - twice

    def _reserved_tokens(self) -> int:
        return self.batch.reserved_tokens()

    def _fill_pass(self) -> PrefillPass:
        most, batch, now_ps = self._slots(), self.batch, self._clock.now_ps
        reserved = self._reserved_tokens() * self._ratio.at(batch.steps)
        attempt = PrefillPass(self.cache, self.host, reserved, self.limits)
        self._retraction.begin(attempt)
        if self._chunked is not None:
            attempt.continue_chunk(self._chunked)
        take = self._retraction.preempt if self._preempts else never
        no_slots = run_selection(
            attempt, self.scheduler, self.waiting, batch, most, self.cap, now_ps, take
        )
        goes_on = attempt.admitted or batch.size or self._retraction.kept
        if no_slots or (attempt.out_of_memory and goes_on):
            self._batch_is_full = self.limits.marks_full_batch
        self._chunked = attempt.chunked
        return attempt

    def _end_prefill(self) -> None:
        """Put prompts into the tree, join the batch, book the iteration."""
        now_ps = self._clock.now_ps
        prefills, self._prefills = self._prefills, []
        self._computes_prompts = False
        if self._chunked is not None or not (self.batch.size or self._retraction.kept):
            # SGLang's batch removes the unfinished request, or replaces an empty batch, and thereby
            # the flag: a pass is made although the last one found no room.
            self._batch_is_full = False
        start_ps = self._prefill_start_ps
        parts = prompt_parts(self._costs, now_ps - start_ps, self._computed)
        if self.batch.times_requests or self.scheduler.times_steps:
            report_prompts(prefills, parts, self.scheduler)
        for prefill in prefills:
            sequence = prefill.sequence
            store_prompt(self.cache, sequence, prefill.tokens, self.limits.rules.splits)
            if prefill.last:
                self._produce_first(sequence)
        shares = shares_of(prefills, parts)
        self._log.prefill(self.index, start_ps, now_ps, len(prefills), shares)
        self._end_iteration()

    # Decode.

    def _start_decode(self) -> bool:
        batch, cache = self.batch, self.cache
        size = batch.size
        if not size:
            return False
        if size > cache.free + cache.evictable:
            self._retract()
            size = batch.size
        if size > cache.free:
            cache.evict(size - cache.free, batch.per_client)
        steps, room = batch.steps_to_finish(), cache.free // size
        if room < steps:
            steps = room
        if self.limits.step_by_step:
            steps = 1
        elif self.waiting.entries and self._may_admit:
            steps = min(steps, self._passes.left(batch.steps))
        saved_ps = self._saved_ps() if self._profile.shared_read != 1 else 0
        self._start_run(steps, saved_ps - self._tail_ps() if self._has_tail else saved_ps)
        return True

    def _tail_ps(self) -> int:
        """Return the time (ps) that the longest sequence adds, as they joined, to a decode step."""
        sequences = self.batch.sequences
        return self._profile.tail_ps([one.request.input_tokens + one.produced for one in sequences])

    def _saved_ps(self) -> int:
        """Return the time (ps) that a step saves by reading each shared prefix once."""
        cache, batch = self.cache, self.batch
        held = cache.capacity - cache.free - cache.evictable + batch.size
        return self._profile.saved_ps(max(0, batch.context_tokens - held))

    def _stop_run(self, run: DecodeRun) -> None:
        """End the run at the next boundary; its memory is allocated, so book nothing."""
        now_ps = self._clock.now_ps
        steps, end_ps = run.steps_before(now_ps + self._clock.past(END, self.index))
        if end_ps != now_ps:
            steps += 1
        if steps < run.steps:
            run.steps = steps
            self._await_end(run)

    def _provide(self, steps: int) -> None:
        self.cache.grow(steps, self.batch.per_client, self.batch.size)

    def _retract(self) -> None:
        """Take memory from running requests until the next decode step fits."""
        self._end_stretch()
        self._retraction.until_a_step_fits()
        self._ratio.after_retraction(self.batch)
        self._batch_is_full = False
