"""A simulated vLLM replica (V1 engine, 0.32.0), with token budgets, blocks and preemption.

The method ``_fill`` schedules each step. Running requests get tokens and blocks first, and waiting
requests are admitted with the rest of the budget. Requests are preempted if memory is short or if
the scheduler asks for it. A step may compute chunks of prompts while it decodes, or only decode.

``VLLMReplica`` decides on a step when the previous step has ended. ``AsyncVLLMReplica``, the
default on GPUs, decides while the previous step runs.

The replicas follow the code in ``vllm.v1.core``, and tests compare their decisions with the
decisions of vLLM's code. The page docs/appendix/engine.md describes the simulated rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Request
from fairbench.engine.batch import DecodeRun, Prefill, RunningBatch, report_prompts
from fairbench.engine.client_cache import memory_share
from fairbench.engine.clock import DECIDE, END
from fairbench.engine.contract import ManagedMemory, WorkerParts
from fairbench.engine.logs import InBatch, PrefillShare, Stretch
from fairbench.engine.loop import EngineLoop
from fairbench.engine.sequence import FINISHED, NEVER, Sequence
from fairbench.engine.vllm_blocks import BlockCache, BlockNode, ClientBlockCache
from fairbench.engine.vllm_running import Booking, RunningList, RunningListView, Step
from fairbench.engine.waiting_queue import WaitingQueue, retraction_order
from fairbench.hardware.engine_params import VLLMLimits, VLLMParams, vllm_limits
from fairbench.hardware.gpu_time import StepParts, step_parts
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.drive import ADMITTED, LAST, NO_ROOM, OVER, Preempt, Tried, never
from fairbench.schedulers.params import make_params
from fairbench.schedulers.views import Room


@mypyc_attr(allow_interpreted_subclasses=True)
class VLLMReplica(EngineLoop[BlockNode]):
    """A vLLM replica."""

    def __init__(
        self, parts: WorkerParts, limits: VLLMLimits, cache: BlockCache | None = None
    ) -> None:
        self.limits = limits
        self.cache = cache or empty_block_cache(limits)
        self.running = running = RunningList(self.cache, limits, parts.log.index)
        aware, match_us = parts.scheduler.cache_aware, limits.prefix_match_us
        waiting = WaitingQueue(self.cache, aware, match_us=match_us)
        super().__init__(parts, running.batch, waiting, limits.load_cap, limits.host_tokens)
        waiting.running = RunningListView(running, waiting, self.cache, self.cap)
        self._booking = Booking()
        self._chunks: list[Prefill] = []
        # ``_stalled`` holds the decoding sequences without a token in the current step.
        self._stalled: list[Sequence] = []
        # ``_short`` is true if a request still waited for KV blocks after the last scheduling
        # decision.
        self._short = False
        # ``_taken_ps`` is the time of the last decision that preempted a request for lack of
        # memory.
        self._taken_ps = NEVER

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
        """Decide on a step, and decide again if preemptions left the step empty."""
        while True:
            step = self._fill()
            if step.chunks or step.decodes or not (step.preempted or step.wished):
                return step

    def _fill(self) -> Step:
        tokens = prompt_tokens = self.limits.max_num_batched_tokens
        if (step_tokens := self.scheduler.step_tokens) is not None:
            # A step has room for at least one prompt token, even if the scheduler's limit is lower.
            wanted = step_tokens(self.waiting.running, self._clock.now_ps / PS_PER_S)
            tokens = min(tokens, max(wanted, len(self.batch) + 1))
        threshold = self.limits.long_prefill_token_threshold
        if threshold and len(self.running) + len(self.waiting) > 1:
            prompt_tokens = threshold
        step = Step(tokens, prompt_tokens)
        self._schedule_running(step)
        if step.preempted:
            self._taken_ps = self._clock.now_ps
        elif len(self.waiting) and step.budget > 0 and self._may_admit:
            self._admit_waiting(step)
        for sequence in step.wished:
            self._wait_again(sequence)
        self._short = step.preempted or (step.budget > 0 and len(self.waiting) > 0)
        return step

    # Part 1 of the engine, running requests: a decoding request gets a token, and an incomplete
    # prompt gets a chunk.

    def _schedule_running(self, step: Step) -> None:
        """Schedule running sequences together if free blocks suffice, otherwise one by one.

        A prompt takes tokens of the step's budget before decoding sequences that follow it in the
        running list.
        """
        running, batch = self.running, self.batch
        prefilling = running.prefilling
        if prefilling and prefilling[0] is not running.sequences[-1]:
            self._schedule_one_by_one(step)
            return
        last = prefilling[0] if prefilling else None
        budget = step.budget - len(batch)
        tokens = 0 if last is None else min(last.total - last.filled, step.most, budget)
        if running.blocks_of_next_step(last, tokens) > self.cache.free_blocks:
            self._schedule_one_by_one(step)
            return
        running.provide(batch.steps + 1)
        step.budget, step.decodes = budget, len(batch)
        if last is not None and tokens:
            self._add_chunk(step, last, tokens)

    def _schedule_one_by_one(self, step: Step) -> None:
        running, tables, batch = self.running, self.running.tables, self.batch
        scheduled: dict[Sequence, int] = {}
        index = 0
        while index < len(running.sequences) and step.budget > 0:
            sequence = running.sequences[index]
            if sequence in running.ending:
                index += 1
                continue
            has, decodes = running.computed_tokens(sequence), sequence in batch.sequences
            tokens = step.chunk(1 if decodes else sequence.total - has)
            known = has if self.limits.async_scheduling and decodes else has + tokens
            while not tables.grow(sequence, has + tokens, known):
                victim = self._preempt_for_memory()
                step.preempted = True
                step.budget += scheduled.pop(victim, 0)
                if victim is sequence:
                    break
                index = running.sequences.index(sequence)
            if sequence not in running.sequences:
                if not self.limits.goes_on_after_self:
                    break
                # The preemption removed this sequence from the list, so ``index`` is now the
                # position of the next sequence.
                continue
            scheduled[sequence] = tokens
            step.budget -= tokens
            index = running.sequences.index(sequence) + 1
        # If vLLM schedules no sequence in a step, it schedules this step again later, and allocates
        # blocks only then.
        if scheduled:
            running.provided_steps = batch.steps + 1
        for sequence, tokens in scheduled.items():
            if sequence in batch.sequences:
                step.decodes += 1
            else:
                step.budget += tokens
                self._add_chunk(step, sequence, tokens)
        step.stalled = [one for one in batch.sequences if one not in scheduled]

    def _add_chunk(self, step: Step, sequence: Sequence, tokens: int) -> None:
        end = sequence.filled + tokens
        assert self.running.tables.grow(sequence, end, end)
        last = end == sequence.total
        step.chunks.append(Prefill(sequence, sequence.filled, tokens, first=False, last=last))
        step.budget -= tokens

    # Part 2 of the engine, admission: a waiting request needs budget, a slot and blocks.

    def _admit_waiting(self, step: Step) -> None:
        """Ask the scheduler for waiting requests, and admit each request that fits.

        Under ``fcfs``, as in vLLM, admission stops at the first request that does not fit.
        Schedulers other than ``fcfs`` may propose a different waiting request instead.
        """
        scheduler, running, waiting = self.scheduler, self.running, self.waiting

        def try_admit(request: Request) -> Tried:
            if step.budget <= 0:
                return OVER
            if running.is_full:
                return NO_ROOM if scheduler.preempts else OVER
            if not self.cap.has_room(request):
                return NO_ROOM
            sequence = waiting.sequence_of(request)
            node, place = waiting.match(request)
            loaded = self.host.behind(sequence, node.depth)
            filled = node.depth + loaded
            left = sequence.total - filled
            tokens = step.chunk(left)
            if not running.admit(sequence, node, place, filled + tokens):
                return NO_ROOM
            self.host.load(sequence, node.depth)
            sequence.node, sequence.filled = None, filled
            last = tokens == left
            chunk = Prefill(sequence, filled, tokens, first=True, last=last, loaded=loaded)
            step.chunks.append(chunk)
            step.budget -= tokens
            waiting.admit(request)
            self.cap.enter(request)
            self._booking.admit(sequence, scheduler, self._clock.now_ps)
            full = running.is_full and not scheduler.preempts
            return LAST if step.budget <= 0 or full else ADMITTED

        preempt = partial(self._preempt_wished, step) if self._preempts else never
        try:
            self._select(running.prefilling, try_admit, preempt)
        finally:
            waiting.end_pass()

    # Part 3 of the engine, preemption: a preempted request loses its memory and waits at the head
    # of the queue.

    def _preempt_for_memory(self) -> Sequence:
        victim = self.running.sequences[-1]
        if self.scheduler.retraction_order is not None:
            running, now_s = self.running.sequences, self._clock.now_ps / PS_PER_S
            victim = retraction_order(self.scheduler, self.waiting, running, now_s)[0]
        self._take_back(victim)
        self._wait_again(victim)
        return victim

    def _preempt_wished(self, step: Step, wish: Preempt) -> bool:
        """Preempt a running request for the scheduler; return whether it was preempted.

        A request that this pass has admitted cannot be preempted.
        """
        running, host = self.running, self.host
        sequence = next((s for s in running.sequences if s.request is wish.request), None)
        if sequence is None:
            return False
        chunk = next((chunk for chunk in step.chunks if chunk.sequence is sequence), None)
        if chunk is not None and chunk.first:
            return False
        held = running.computed_tokens(sequence)
        if wish.swap and not host.fits_copy(held):
            return False
        if chunk is not None:
            step.chunks.remove(chunk)
            step.budget += chunk.tokens
        elif sequence in running.batch.sequences:
            step.decodes -= 1
            step.budget += 1
        self._take_back(sequence)
        if wish.swap:
            host.store(sequence, held)
        step.wished.append(sequence)
        return True

    def _take_back(self, sequence: Sequence) -> None:
        """Remove a sequence from the running list and free its blocks; full blocks stay cached."""
        self._end_stretch()
        self._booking.preempt(sequence, self.running.decodes(sequence))
        self.running.remove(sequence)
        self.cap.leave(sequence.request)
        sequence.retract(self._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        now_s = self._clock.now_ps / PS_PER_S
        self.scheduler.on_retract(sequence.request, self.waiting, now_s)
        self.waiting.enter(sequence, first=True)

    # Part 4 of the engine: steps with prompt chunks, or with decoding sequences that get no token.

    def _start_mixed(self, step: Step) -> None:
        self._end_stretch()
        for sequence in step.stalled:
            self.running.pause(sequence)
            # A call with 0 tokens tells the scheduler that a request of the client paused.
            self.scheduler.on_tokens(sequence.request.client, 0)
        self._stalled, self._chunks = step.stalled, step.chunks
        self._computes_prompts = True
        batch, chunks = self.batch, step.chunks
        computed, context = [chunk.chunk for chunk in chunks], batch.context_tokens
        saved_ps = self._saved_ps()
        if computed:
            saved_ps -= self._profile.vllm_extra_ps(step.decodes, context)
        duration_ps = self._profile.step_ps(computed, step.decodes, context)
        duration_ps -= saved_ps
        start_ps = self._clock.now_ps + self._delay_ps(prompts=bool(computed))
        end = partial(self._end_mixed, step, start_ps, context, saved_ps)
        self._clock.at(start_ps + duration_ps, END, self.index, end)

    def _end_mixed(self, step: Step, start_ps: int, context_tokens: int, saved_ps: int) -> None:
        self._book_mixed(step.chunks, start_ps, context_tokens, saved_ps, self._booking.shares)
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

    # Part 5 of the engine: steps that only decode.

    def _start_decode(self) -> None:
        """Start a series of decode steps with an unchanged batch.

        The series of decode steps ends when a sequence ends, when blocks run out, or when a waiting
        request may be admitted. If the cache reports evictions, the series also ends before a
        decode step that would evict a block.
        """
        batch, cache = self.batch, self.cache
        steps = batch.steps_to_finish()
        if self.limits.step_by_step or (len(self.waiting) and self._may_admit):
            steps = 1
        blocks = cache.blank if cache.tells_evictions else cache.free_blocks
        steps = 1 + self.running.steps_ahead(blocks, steps - 1)
        self._start_run(steps, self._saved_ps() - longest_ps(self._profile, batch))

    def _saved_ps(self) -> int:
        """Return the time (ps) that a step saves because decoding sequences share prefixes."""
        if self._profile.shared_read == 1:
            return 0
        decoding = self.batch.sequences
        apart = [sequence for sequence in self.running.sequences if sequence not in decoding]
        return self._profile.saved_ps(self.running.tables.shared_tokens(apart))

    def _next_boundary(self, run: DecodeRun) -> int:
        """Return the number of steps (0 or 1) until the step in progress ends.

        If requests were preempted for a step that begins at the current time, this step already
        counts as in progress.
        """
        return 1 if self._clock.now_ps == self._taken_ps else super()._next_boundary(run)

    def _provide(self, steps: int) -> None:
        self.running.provide(self.batch.steps + steps)

    # Replica interface

    @property
    def _may_admit(self) -> bool:
        return self._preempts or not self.running.is_full

    @property
    def saturated(self) -> bool:
        """Whether requests wait because no slot is free or because the last step lacked blocks."""
        return super().saturated or (self._short and len(self.waiting) > 0)

    @property
    def room(self) -> Room:
        cache, limits, running = self.cache, self.limits, self.running_count
        free = cache.free + cache.evictable
        return Room(limits.max_num_seqs - running, free, limits.max_num_batched_tokens - running)

    @property
    def running_count(self) -> int:
        return len(self.running)

    def _running(self) -> list[Sequence]:
        return self.running.sequences

    def fits(self, request: Request) -> bool:
        """Return whether the request could run alone on this worker.

        The last output token of a request needs no KV memory, because no further token is decoded.
        """
        tokens = request.input_tokens + request.max_new_tokens - 1
        return -(-tokens // self.limits.block_size) <= self.limits.blocks

    def sync(self) -> None:
        """Record the steps that have ended, and allocate memory for all begun steps."""
        if (run := self._run) is None:
            return
        over, _ = run.steps_before(self._clock.now_ps + self._clock.past(DECIDE, self.index))
        begun = over + 1
        provided = self.batch.steps + min(begun, run.steps)
        super().sync()
        self.running.provide(provided)

    def settle(self) -> None:
        """Write the remaining records, and undo the admissions of an unfinished step."""
        super().settle()
        for chunk in self._chunks:
            if chunk.first:
                self._booking.undo_admission(chunk.sequence, chunk.cached)


def longest_ps(profile: TimingProfile, batch: RunningBatch) -> int:
    """Return the time (ps) that the longest sequence adds to a decode step.

    Sequences are compared by the lengths that they had when they joined the batch.
    """
    if profile.vllm_attention is None or not batch.size:
        return 0
    longest = max(one.request.input_tokens + one.produced for one in batch.sequences)
    return profile.vllm_extra_ps(batch.size, batch.context_tokens, longest)


def empty_block_cache(limits: VLLMLimits, memory: ManagedMemory | None = None) -> BlockCache:
    """Return an empty KV pool; ``memory.policy``, if given, replaces vLLM's eviction policy."""
    blocks, size, caching = limits.blocks, limits.block_size, limits.enable_prefix_caching
    if memory is None:
        return BlockCache(blocks, size, prefix_caching=caching)
    return ClientBlockCache(blocks, size, memory.policy, memory.log, prefix_caching=caching)


class PromptsOnly(Booking):
    """The records of a prefill worker, whose output tokens are not sent to clients."""

    def shares(self, chunks: list[Prefill], gpu_ps: list[int]) -> dict[str, PrefillShare]:
        shares = super().shares(chunks, gpu_ps)
        for share in shares.values():
            share.output_tokens = 0
        return shares


class VLLMPrefillOnly(VLLMReplica):
    """A replica that only computes prompts; each of its requests produces a single token.

    A finished request keeps its memory until ``free_sent`` is called.
    """

    def __init__(
        self, parts: WorkerParts, limits: VLLMLimits, cache: BlockCache | None = None
    ) -> None:
        super().__init__(parts, limits, cache)
        self._booking = PromptsOnly()

    def _release(self, sequence: Sequence) -> None:
        self.running.remove_keeping_blocks(sequence)
        self._booking.finish(sequence)

    def free_sent(self, sequence: Sequence) -> None:
        """Free the memory of a request whose KV cache has been sent."""
        self.running.tables.give_back(sequence)
        self.wake_if_waiting()


@dataclass(slots=True)
class StepInFlight:
    """A step that vLLM has scheduled, but whose results are still unknown.

    ``decoding`` lists the sequences that decode, and ``ends`` lists the sequences that the step
    finishes. ``batch`` counts the clients' decoding requests. ``took_ps`` is the duration of the
    step. The part ``fixed_ps`` of a decode step's duration does not depend on the context length.
    """

    step: Step
    decoding: list[Sequence]
    context_tokens: int
    took_ps: int
    fixed_ps: int
    parts: StepParts
    shares: dict[str, PrefillShare]
    batch: InBatch
    start_ps: int = NEVER
    ends: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> list[Sequence]:
        """The sequences that get a token in this step."""
        return [*self.decoding, *(chunk.sequence for chunk in self.step.chunks if chunk.last)]


class AsyncVLLMReplica(VLLMReplica):
    """A vLLM replica that decides on each step when the previous step begins.

    While a step runs, vLLM already counts an output token for each request in the step. vLLM's
    asynchronous scheduling differs from its synchronous scheduling in four rules:

    - A request that arrives during a step cannot join the next step, which is already scheduled.
    - A request keeps its batch slot and KV blocks until the step that computes its last token has
      ended. A request that ends before ``max_new_tokens`` runs for one more step, whose token is
      discarded.
    - Output tokens and finished requests reach the scheduler one scheduling decision later than
      with synchronous scheduling.
    - A block of decoded tokens is cached one step later than with synchronous scheduling.

    The batch, the block tables and the running list already include the last scheduled step.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._now: StepInFlight | None = None
        self._next: StepInFlight | None = None
        # ``_stretch_batch`` is the number of each client's requests in the current series of decode
        # steps.
        self._stretch_batch = self.batch.by_client(0)

    def _start(self) -> bool:
        flight = self._next or self._plan()
        if flight is None:
            return False
        self._now, self._computes_prompts = flight, True
        self.running.pending = set(flight.tokens)
        flight.start_ps = self._clock.now_ps + self._delay_ps(prompts=bool(flight.step.chunks))
        end_ps = flight.start_ps + flight.took_ps
        self._clock.at(end_ps, END, self.index, partial(self._end, flight))
        self._next = self._plan()
        return True

    # Decisions

    def _plan(self) -> StepInFlight | None:
        """Decide on the next step, or return None if the step would be empty.

        If preemptions leave the step empty, vLLM decides again when the running step ends.
        """
        step = self._schedule() if self._now is None else self._fill()
        if not step.chunks and not step.decodes:
            return None
        for sequence in step.stalled:
            self.running.pause(sequence)
        flight = self._flight(step)
        self._count(flight)
        for sequence in step.stalled:
            self.running.decode(sequence)
        return flight

    def _flight(self, step: Step) -> StepInFlight:
        batch, profile = self.batch, self._profile
        computed, context = [chunk.chunk for chunk in step.chunks], batch.context_tokens
        saved_ps, fixed_ps = self._saved_ps(), self._step_ps(batch.size)
        if computed:
            saved_ps -= profile.vllm_extra_ps(step.decodes, context)
            took_ps = profile.step_ps(computed, step.decodes, context) - saved_ps
        else:
            saved_ps -= longest_ps(profile, batch)
            took_ps = fixed_ps + self._token_ps * context - saved_ps
        parts = StepParts([], {}, took_ps, fixed_ps)
        if computed or self.scheduler.on_gpu_time is not None:
            parts = step_parts(self._costs, took_ps, computed, batch.decoding(), saved_ps)
        shares = self._booking.shares(step.chunks, parts.chunks)
        members = list(batch.sequences)
        return StepInFlight(
            step, members, context, took_ps, fixed_ps, parts, shares, batch.by_client(0).copy()
        )

    def _count(self, flight: StepInFlight) -> None:
        """Count a step's tokens as soon as the step is scheduled, as vLLM does."""
        self.batch.step(1, flight.parts.decode_ps, flight.parts.decode_fixed_ps)
        for chunk in flight.step.chunks:
            chunk.sequence.filled += chunk.tokens
            if chunk.last:
                chunk.sequence.produced += 1
                self.running.decode(chunk.sequence)
        flight.ends = self.running.finished()
        for sequence in flight.ends:
            if sequence.output.length == sequence.request.max_new_tokens:
                self.running.end_ahead(sequence)

    # Steps

    def _end(self, flight: StepInFlight) -> None:
        self._now, self._computes_prompts = None, False
        self.running.pending = set()
        if self._next is not None:
            for sequence in self._next.step.stalled:
                self._store(sequence)
        self._report(flight)
        self._end_requests(flight.ends)

    def _report(self, flight: StepInFlight) -> None:
        scheduler, chunks, parts = self.scheduler, flight.step.chunks, flight.parts
        tokens = [one for one in flight.decoding if one.status != FINISHED]
        counts = Counter(one.request.client for one in tokens)
        if chunks or len(tokens) < len(flight.decoding):
            self._log_mixed(flight, counts)
        else:
            self._log_decode(flight)
        report_prompts(chunks, parts.chunks, scheduler)
        if (charge_time := scheduler.on_gpu_time) is not None:
            for client, gpu_ps in parts.clients.items():
                charge_time(client, gpu_ps)
        first = [chunk.sequence for chunk in chunks if chunk.last]
        for sequence in first:
            if sequence.first_token_ps == NEVER:
                sequence.first_token_ps = self.frontend.out_ps(self._clock.now_ps)
        counts.update(one.request.client for one in first)
        for client, count in counts.items():
            scheduler.on_tokens(client, count)
        if (charge_tokens := scheduler.on_request_tokens) is not None:
            for sequence in (*tokens, *first):
                charge_tokens(sequence.request, 1)

    def _log_mixed(self, flight: StepInFlight, counts: Mapping[str, int]) -> None:
        self._end_stretch()
        parts, shares = flight.parts, flight.shares
        clients = parts.clients
        if not flight.step.chunks and not clients:
            decoding = flight.batch.decoding()
            clients = step_parts(self._costs, flight.took_ps, (), decoding).clients
        for client, gpu_ps in clients.items():
            share = shares.setdefault(client, PrefillShare())
            share.output_tokens += counts.get(client, 0)
            share.gpu_ps += gpu_ps
        size = len(flight.step.chunks) + len(flight.decoding)
        now_ps = self._clock.now_ps
        self._log.prefill(self.index, flight.start_ps, now_ps, size, shares, flight.context_tokens)

    def _log_decode(self, flight: StepInFlight) -> None:
        """Record a decode step in the current series of decode steps, or begin a new series."""
        stretch, batch = self._stretch, flight.batch
        follows = stretch is not None and stretch.end_ps == flight.start_ps
        if not (follows and batch.equals(self._stretch_batch)):
            self._end_stretch()
            stretch = None
        if stretch is None:
            growth_ps = self._token_ps * len(flight.decoding)
            stretch = Stretch(flight.start_ps, growth_ps, flight.context_tokens, flight.fixed_ps)
            self._stretch, self._stretch_batch = stretch, batch
        stretch.steps += 1
        stretch.end_ps = self._clock.now_ps

    def _end_stretch(self) -> None:
        if self._stretch is not None:
            self._log.decode(self.index, self._stretch, self._stretch_batch)
            self._stretch = None

    # End of requests

    def _release(self, sequence: Sequence) -> None:
        """Remove a finished sequence from the running list, or a preempted one from the queue."""
        if sequence.request in self.waiting:
            self.waiting.withdraw(sequence.request)
        else:
            self._store(sequence)
            self.running.finish(sequence)
        sequence.produced = sequence.output.length
        self._booking.finish(sequence)

    def _store(self, sequence: Sequence) -> None:
        """Add the full blocks of a sequence to the prefix cache."""
        tokens = self.running.computed_tokens(sequence)
        most = sequence.request.input_tokens + sequence.output.length - 1
        self.running.tables.store_full(sequence, min(tokens, most))

    def settle(self) -> None:
        """Write the remaining records, without the admissions and tokens of unfinished steps."""
        super().settle()
        for flight in filter(None, (self._next, self._now)):
            for chunk in flight.step.chunks:
                if chunk.first and chunk.sequence in self.running.sequences:
                    self._booking.undo_admission(chunk.sequence, chunk.cached)
            for sequence in flight.tokens:
                sequence.produced -= sequence.status != FINISHED


W = TypeVar("W", bound=VLLMReplica)


class VLLMContract:
    """The ``EngineContract`` of vLLM, whose settings are ``VLLMParams``."""

    mixed_steps = True

    def __init__(self, settings: Mapping[str, Any], profile: TimingProfile) -> None:
        params = make_params("vllm", VLLMParams, settings)
        self.limits = vllm_limits(params, profile)
        self.pool_tokens = self.limits.blocks * self.limits.block_size
        self.most_running = self.limits.max_num_seqs
        self.chunk_tokens = self.limits.max_num_batched_tokens
        given = params.num_gpu_blocks_override
        own, pool = profile.pool.vllm, profile.pool
        fraction = pool.mem_fraction_static if own is None else own.gpu_memory_utilization
        self.mem_fraction_static = None if given else fraction

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        usable = max(1, tokens // self.limits.block_size)
        return {"vllm.num_gpu_blocks_override": usable + 1}

    def worker(self, parts: WorkerParts) -> VLLMReplica:
        if not self.limits.async_scheduling:
            return self.worker_as(VLLMReplica, parts)
        return self.worker_as(AsyncVLLMReplica, parts)

    def worker_as(self, form: type[W], parts: WorkerParts) -> W:
        cache = empty_block_cache(self.limits, parts.memory)
        cache.on_evict = parts.on_evict
        replica = form(parts, self.limits, cache)
        if parts.memory is not None and isinstance(cache, ClientBlockCache):
            replica.share = memory_share(parts.memory, cache, replica.waiting)
        return replica
