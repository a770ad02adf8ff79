"""A simulated vLLM worker (V1 engine, 0.32.0): each step mixes decoding and prefill chunks.

A step is decided when the previous step has ended; ``asynchronous.py`` decides one step ahead.
Rules: docs/appendix/engine.md.
"""

from __future__ import annotations

from functools import partial

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Request
from fairbench.hardware.gpu_time import step_parts
from fairbench.hardware.vllm_params import VLLMLimits
from fairbench.schedulers.drive import never
from fairbench.sim.clock import DECIDE, END
from fairbench.sim.engine.batch import DecodeRun
from fairbench.sim.engine.contract import ManagedMemory, WorkerParts
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.prefill import Prefill, report_prompts
from fairbench.sim.engine.vllm.admission import Booking, Preemption, admit_waiting
from fairbench.sim.engine.vllm.block_cache import BlockCache
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.running import RunningList, RunningListView, Step
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.records.service_log import PrefillShare
from fairbench.sim.sequence import NEVER, Sequence

__all__ = ["BlockCache", "VLLMLimits", "VLLMWorker"]


@mypyc_attr(allow_interpreted_subclasses=True)
class VLLMWorker(EngineLoop[BlockNode]):
    """A vLLM replica. ``submit`` requests; the ``on_done`` of each is called at its end."""

    def __init__(
        self, parts: WorkerParts, limits: VLLMLimits, cache: BlockCache | None = None
    ) -> None:
        self.limits = limits
        self.cache = cache or cache_of(limits)
        self.running = running = RunningList(self.cache, limits, parts.log.index)
        aware, match_us = parts.scheduler.cache_aware, limits.prefix_match_us
        waiting = WaitingQueue(self.cache, aware, match_us=match_us)
        super().__init__(parts, running.batch, waiting, limits.load_cap, limits.host_tokens)
        waiting.running = RunningListView(running, waiting, self.cache, self.cap)
        self._booking = Booking()
        self._preemption = Preemption(self, running, self._booking)
        self._chunks: list[Prefill] = []  # chunks of the step in progress
        self._stalled: list[Sequence] = []  # stalled sequences of the step in progress
        self._short = False  # whether the last step left a request waiting for blocks
        self._taken_ps = NEVER  # the start of the last step for which memory had to be taken back

    def fits(self, request: Request) -> bool:
        """Return whether the request could run here alone; its last token needs no memory."""
        tokens = request.input_tokens + request.max_new_tokens - 1
        return -(-tokens // self.limits.block_size) <= self.limits.blocks

    def sync(self) -> None:
        """Synchronize, and provide memory up to the last step that has begun."""
        if (run := self._run) is None:
            return
        over, _ = run.steps_before(self._clock.now_ps + self._clock.past(DECIDE, self.index))
        begun = over + 1
        provided = self.batch.steps + min(begun, run.steps)
        super().sync()
        self.running.provide(provided)

    def settle(self) -> None:
        """Settle, and undo the admissions of a step that did not end."""
        super().settle()
        for chunk in self._chunks:
            if chunk.first:
                self._booking.take_back(chunk.sequence, chunk.cached)

    @property
    def running_count(self) -> int:
        return len(self.running)

    def _running(self) -> list[Sequence]:
        return self.running.sequences

    @property
    def _may_admit(self) -> bool:
        return self._preempts or not self.running.is_full

    # The decision on a step.

    def _start(self) -> bool:
        step = self._schedule()
        if step.chunks or step.stalled:
            self._start_mixed(step)
        elif step.decodes:
            self._start_decode()
        else:
            return False
        return True

    def _schedule(self) -> Step:
        """Fill a step; fill another one if a preemption left it empty."""
        while True:
            step, wished = self._fill()
            if step.chunks or step.decodes or not (step.preempted or wished):
                return step

    def _fill(self) -> tuple[Step, bool]:
        """Fill a step; return also whether the scheduler preempted a request."""
        step = Step(self._step_tokens())
        self.running.schedule(step, self._preemption.for_memory)
        if step.preempted:
            self._taken_ps = self._clock.now_ps
        elif len(self.waiting) and step.budget > 0 and self._may_admit:
            preempt = partial(self._preemption.wished, step) if self._preempts else never
            admit_waiting(self, self.running, self._booking, step, preempt)
        wished = self._preemption.requeue()
        self._short = step.preempted or (step.budget > 0 and len(self.waiting) > 0)
        return step, wished

    @property
    def saturated(self) -> bool:
        """Return whether the worker is saturated, also if the last step lacked blocks."""
        return super().saturated or (self._short and len(self.waiting) > 0)

    def _step_tokens(self) -> int:
        """Return the engine's or scheduler's lower token limit, with at least 1 for a prompt."""
        most, scheduler = self.limits.max_num_batched_tokens, self.scheduler
        if not scheduler.sizes_steps:
            return most
        wanted = scheduler.step_tokens(self.waiting.running, self._clock.now_ps / PS_PER_S)
        return min(most, max(wanted, len(self.batch) + 1))

    def _start_mixed(self, step: Step) -> None:
        """Start a step with prefill, or a step in which some sequences do not take part."""
        self._end_stretch()
        for sequence in step.stalled:
            self.running.pause(sequence)
            self.scheduler.on_tokens(sequence.request.client, 0)  # fewer of its requests run
        self._stalled, self._chunks = step.stalled, step.chunks
        self._computes_prompts = True
        batch, chunks = self.batch, step.chunks
        computed, context = [chunk.chunk for chunk in chunks], batch.context_tokens
        saved_ps = self._saved_ps()
        if computed:
            saved_ps -= self._profile.vllm_extra_ps(step.decodes, context)
        duration_ps = self._profile.step_ps(computed, step.decodes, context)
        duration_ps -= saved_ps
        copying_ps = self.host.delay_ps() if self.host.copied else 0
        delay_ps = copying_ps + self.waiting.matching_ps()
        start_ps = self._clock.now_ps + delay_ps
        end = partial(self._end_mixed, step, start_ps, context, saved_ps)
        self._clock.at(start_ps + duration_ps, END, self.index, end)

    def _end_mixed(self, step: Step, start_ps: int, context_tokens: int, saved_ps: int) -> None:
        now_ps, batch = self._clock.now_ps, self.batch
        computed, decoding = [chunk.chunk for chunk in step.chunks], batch.decoding()
        parts = step_parts(self._costs, now_ps - start_ps, computed, decoding, saved_ps)
        shares = self._booking.shares(step.chunks, parts.chunks)
        for client, gpu_ps in parts.clients.items():
            share = shares.setdefault(client, PrefillShare())
            share.output_tokens += decoding[client].requests
            share.gpu_ps += gpu_ps
        size = len(step.chunks) + step.decodes
        self._log.prefill(self.index, start_ps, now_ps, size, shares, context_tokens)
        batch.step(1, parts.decode_ps, parts.decode_fixed_ps)
        batch.report(1, self.scheduler)
        report_prompts(step.chunks, parts.chunks, self.scheduler)
        if self.scheduler.times_steps:
            for client, gpu_ps in parts.clients.items():
                self.scheduler.on_gpu_time(client, gpu_ps)
        for chunk in step.chunks:
            chunk.sequence.filled += chunk.tokens
            if chunk.last:
                self._produce_first(chunk.sequence)
        for sequence in self._stalled:
            self.running.decode(sequence)
            self.scheduler.on_tokens(sequence.request.client, 0)
        self._stalled, self._chunks = [], []
        self._computes_prompts = False
        self._end_iteration()

    def _join(self, sequence: Sequence) -> None:
        self.running.decode(sequence)

    def _finished(self) -> list[Sequence]:
        return self.running.finished()

    def _release(self, sequence: Sequence) -> None:
        self.running.finish(sequence)
        self._booking.finish(sequence)

    # Steps that only decode.

    def _start_decode(self) -> None:
        """Start a run until a sequence ends, blocks run out, or a waiting request may enter.

        If evictions are reported, each is reported when it happens. An eviction then also ends the
        run.
        """
        batch, cache = self.batch, self.cache
        steps = batch.steps_to_finish()
        if self.limits.step_by_step or (len(self.waiting) and self._may_admit):
            steps = 1
        blocks = cache.blank if cache.tells_evictions else cache.free_blocks
        steps = 1 + self.running.steps_ahead(blocks, steps - 1)
        self._start_run(steps, self._saved_ps() - self._tail_ps())

    def _tail_ps(self) -> int:
        """Return the time (ps) that the longest sequence, as it joined, adds to a decode step."""
        if self._profile.vllm_attention is None:
            return 0
        batch = self.batch
        longest = max(one.request.input_tokens + one.produced for one in batch.sequences)
        return self._profile.vllm_extra_ps(batch.size, batch.context_tokens, longest)

    def _saved_ps(self) -> int:
        """Return the time (ps) a step saves because decoding sequences share prefixes."""
        if self._profile.shared_read == 1:
            return 0
        decoding = self.batch.sequences
        apart = [sequence for sequence in self.running.sequences if sequence not in decoding]
        return self._profile.saved_ps(self.running.tables.shared_tokens(apart))

    def _next_boundary(self, run: DecodeRun) -> int:
        """Return the steps to the next boundary; a step that preempted has already begun."""
        return 1 if self._clock.now_ps == self._taken_ps else super()._next_boundary(run)

    def _provide(self, steps: int) -> None:
        self.running.provide(self.batch.steps + steps)


def cache_of(limits: VLLMLimits, memory: ManagedMemory | None = None) -> BlockCache:
    """Return an empty KV pool with the given limits; ``memory``, if given, evicts its blocks."""
    caching = limits.enable_prefix_caching
    if memory is None:
        return BlockCache(limits.blocks, limits.block_size, prefix_caching=caching)
    from fairbench.sim.engine.vllm.client_blocks import ClientBlockCache

    return ClientBlockCache(
        limits.blocks, limits.block_size, memory.policy, memory.log, prefix_caching=caching
    )


class VLLMPrefillOnly(VLLMWorker):
    """A worker whose requests produce one token.

    ``sent`` frees the memory that such a request still holds.
    """

    def _release(self, sequence: Sequence) -> None:
        self.running.leave(sequence)
        self._booking.finish(sequence)

    def sent(self, sequence: Sequence) -> None:
        self.running.tables.give_back(sequence)
        self.wake()

    def wake(self) -> None:
        if len(self.waiting):
            super().wake()
