"""A simulated vLLM worker with asynchronous scheduling, vLLM's default on GPUs.

vLLM decides a step while the previous step runs: it counts a token for every request of that step
without knowing the token. Four decisions differ from those of synchronous scheduling:

- Requests that arrive during a step join the step after the next one.
- A request keeps its slot and its blocks while the step with its last token runs, and for one
  more step in which it is computed in vain if it ends before ``max_new_tokens``.
- Charges for outputs, and ends of requests, reach the scheduler after the next decision.
- A block of decoded tokens is found in the cache one step later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairbench.hardware.gpu_time import StepParts, step_parts
from fairbench.sim.clock import END
from fairbench.sim.engine.prefill import report_prompts
from fairbench.sim.engine.vllm.running import Step
from fairbench.sim.engine.vllm.worker import VLLMWorker
from fairbench.sim.records.service_log import PrefillShare
from fairbench.sim.records.stretches import InBatch, Stretch
from fairbench.sim.sequence import FINISHED, NEVER, Sequence


@dataclass(slots=True)
class Flight:
    """A step from its decision to its results.

    ``decoding`` are the sequences that decode, ``ends`` those for which the step is the last one.
    ``batch`` is the composition of the decode batch. The step takes ``took_ps``, of which
    ``fixed_ps`` do not depend on context if the step only decodes.
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
        """The sequences that get a token."""
        return [*self.decoding, *(chunk.sequence for chunk in self.step.chunks if chunk.last)]


class AsyncVLLMWorker(VLLMWorker):
    """A vLLM replica that decides each step when the previous step begins.

    Batch, tables and running list are as after the last decided step.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._now: Flight | None = None  # the step that runs
        self._next: Flight | None = None  # the step that was decided meanwhile
        self._stretch_batch = self.batch.by_client(0)  # the batch of the stretch in progress

    def _start(self) -> bool:
        flight = self._next or self._plan()
        if flight is None:
            return False
        self._begin(flight)
        self._next = self._plan()
        return True

    # The decision on a step.

    def _plan(self) -> Flight | None:
        """Decide on a step; return None if there is nothing to compute.

        If preemptions left the step empty, vLLM decides again after the step that runs.
        """
        step = self._schedule() if self._now is None else self._fill()[0]
        if not step.chunks and not step.decodes:
            return None
        for sequence in step.stalled:
            self.running.pause(sequence)
        flight = self._flight(step)
        self._count(flight)
        for sequence in step.stalled:
            self.running.decode(sequence)
        return flight

    def _flight(self, step: Step) -> Flight:
        batch, profile = self.batch, self._profile
        computed, context = [chunk.chunk for chunk in step.chunks], batch.context_tokens
        saved_ps, fixed_ps = self._saved_ps(), self._step_ps(batch.size)
        if computed:
            saved_ps -= profile.vllm_extra_ps(step.decodes, context)
            took_ps = profile.step_ps(computed, step.decodes, context) - saved_ps
        else:
            saved_ps -= self._tail_ps()
            took_ps = fixed_ps + self._token_ps * context - saved_ps
        parts = StepParts([], {}, took_ps, fixed_ps)
        if computed or self.scheduler.times_steps:
            parts = step_parts(self._costs, took_ps, computed, batch.decoding(), saved_ps)
        shares = self._booking.shares(step.chunks, parts.chunks)
        members = list(batch.sequences)
        return Flight(
            step, members, context, took_ps, fixed_ps, parts, shares, batch.by_client(0).copy()
        )

    def _count(self, flight: Flight) -> None:
        """Count the tokens of a decided step, as vLLM does before it knows them."""
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

    # The run of a step.

    def _begin(self, flight: Flight) -> None:
        self._now, self._computes_prompts = flight, True
        self.running.pending = set(flight.tokens)
        copying_ps = self.host.delay_ps() if self.host.copied else 0
        flight.start_ps = self._clock.now_ps + copying_ps + self.waiting.matching_ps()
        end_ps = flight.start_ps + flight.took_ps
        self._clock.at(end_ps, END, self.index, partial(self._end, flight))

    def _end(self, flight: Flight) -> None:
        self._now, self._computes_prompts = None, False
        self.running.pending = set()
        if self._next is not None:
            for sequence in self._next.step.stalled:
                self._store(sequence)
        self._report(flight)
        self._end_requests(flight.ends)

    def _report(self, flight: Flight) -> None:
        """Log the step, and charge its tokens."""
        scheduler, chunks, parts = self.scheduler, flight.step.chunks, flight.parts
        tokens = [one for one in flight.decoding if one.status != FINISHED]
        counts = Counter(one.request.client for one in tokens)
        if chunks or len(tokens) < len(flight.decoding):
            self._log_mixed(flight, counts)
        else:
            self._log_decode(flight)
        report_prompts(chunks, parts.chunks, scheduler)
        if scheduler.times_steps:
            for client, gpu_ps in parts.clients.items():
                scheduler.on_gpu_time(client, gpu_ps)
        first = [chunk.sequence for chunk in chunks if chunk.last]
        for sequence in first:
            if sequence.first_token_ps == NEVER:
                sequence.first_token_ps = self.frontend.out_ps(self._clock.now_ps)
        counts.update(one.request.client for one in first)
        for client, count in counts.items():
            scheduler.on_tokens(client, count)
        if scheduler.per_request_tokens:
            for sequence in (*tokens, *first):
                scheduler.on_request_tokens(sequence.request, 1)

    def _log_mixed(self, flight: Flight, counts: Mapping[str, int]) -> None:
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

    def _log_decode(self, flight: Flight) -> None:
        """Add the step to the stretch of the same batch, or begin a stretch."""
        stretch, batch = self._stretch, flight.batch
        if stretch is not None and not self._follows(stretch, flight):
            self._end_stretch()
            stretch = None
        if stretch is None:
            growth_ps = self._token_ps * len(flight.decoding)
            stretch = Stretch(flight.start_ps, growth_ps, flight.context_tokens, flight.fixed_ps)
            self._stretch, self._stretch_batch = stretch, batch
        stretch.steps += 1
        stretch.end_ps = self._clock.now_ps

    def _follows(self, stretch: Stretch, flight: Flight) -> bool:
        return stretch.end_ps == flight.start_ps and flight.batch.same(self._stretch_batch)

    def _end_stretch(self) -> None:
        if self._stretch is not None:
            self._log.decode(self.index, self._stretch, self._stretch_batch)
            self._stretch = None

    # The end of requests.

    def _release(self, sequence: Sequence) -> None:
        """Take out a sequence whose last token has come, also if it was preempted meanwhile."""
        if sequence.request in self.waiting:
            self.waiting.withdraw(sequence.request)
        else:
            self._store(sequence)
            self.running.finish(sequence)
        sequence.produced = sequence.output.length
        self._booking.finish(sequence)

    def _store(self, sequence: Sequence) -> None:
        """Store the full blocks of the tokens that have been computed, all of them known now."""
        tokens = self.running.computed_tokens(sequence)
        most = sequence.request.input_tokens + sequence.output.length - 1
        self.running.tables.store_full(sequence, min(tokens, most))

    def settle(self) -> None:
        """Settle, and undo what was counted for the steps that did not end."""
        super().settle()
        for flight in filter(None, (self._next, self._now)):
            for chunk in flight.step.chunks:
                if chunk.first and chunk.sequence in self.running.sequences:
                    self._booking.take_back(chunk.sequence, chunk.cached)
            for sequence in flight.tokens:
                sequence.produced -= sequence.status != FINISHED
