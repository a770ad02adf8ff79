"""The running (decode) batch of a worker, with running sums, and its runs of decode steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from math import sqrt

from fairbench.core import Request, Segment
from fairbench.hardware.gpu_time import Decoding
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.views import ClientLoad, Running, client_load
from fairbench.sim.records.stretches import InBatch, Stretch
from fairbench.sim.sequence import NEVER, DecodeTime, Sequence

CLIP_MAX_NEW_TOKENS = 4096  # SGLang reserves at most this many output tokens per request


class RunningBatch:
    """Sequences that decode together. A decode step gives each sequence one token.

    ``steps`` counts decode steps; a sequence's outputs are its ``produced`` at joining plus the
    steps since then. Sums over the batch are kept as (sum at step 0, size) pairs. ``index`` numbers
    the clients as the log of the batch does.
    """

    def __init__(self, index: dict[str, int] | None = None) -> None:
        self.steps = 0
        self.size = 0  # size of the batch, kept because every step needs it
        # sequences, each with its position in SGLang's batch
        self.sequences: dict[Sequence, int] = {}
        self._in_batch = InBatch({} if index is None else index)
        self.per_client = self._in_batch.per_client  # number of requests by client
        self._context_base = 0
        self._reserve_base = 0
        # sequences whose remaining outputs may exceed SGLang's reservation
        self._long: dict[Sequence, None] = {}
        # Sequences by the step after which they end, the earliest first; an entry that
        # ``Sequence.due`` contradicts is outdated.
        self.due: list[tuple[int, int, Sequence]] = []
        self._joined = 0  # the last position that was assigned
        self.times_requests = True  # whether ``Sequence.gpu_ps`` is counted
        self._time = DecodeTime()

    def __len__(self) -> int:
        return self.size

    @property
    def context_tokens(self) -> int:
        """Sum of the context lengths in the next decode step."""
        return self._context_base + self.size * self.steps

    def by_client(self, steps_ago: int) -> InBatch:
        """Return each client's part of the batch ``steps_ago`` steps ago, to be read at once."""
        self._in_batch.step = self.steps - steps_ago
        return self._in_batch

    def decoding(self, steps_ago: int = 0) -> dict[str, Decoding]:
        """Return each client's part in the step ``steps_ago`` steps ago (batch unchanged)."""
        return self.by_client(steps_ago).decoding()

    def reserved_tokens(self) -> int:
        """Sum over the batch of min(max_new - produced, 4096)."""
        total = self._reserve_base - self.size * self.steps
        if not self._long:
            return total
        for sequence in list(self._long):
            excess = sequence.request.max_new_tokens - self.produced(sequence) - CLIP_MAX_NEW_TOKENS
            if excess > 0:
                total -= excess
            else:
                del self._long[sequence]
        return total

    def produced(self, sequence: Sequence) -> int:
        """Return the output tokens of a running sequence so far."""
        return sequence.produced + self.steps - sequence.joined_step

    def private(self, sequence: Sequence) -> int:
        """Return the KV tokens that a sequence decoded since it joined (not in the tree)."""
        return self.steps - sequence.joined_step

    def step(self, steps: int, took_ps: int, fixed_ps: int) -> None:
        """Book ``steps`` decode steps; ``fixed_ps`` of each does not depend on context."""
        if self.times_requests and (size := self.size):
            first, context = self.steps, self.context_tokens
            self._time.add(took_ps, fixed_ps * steps, size, context, first, steps)
        self.steps += steps

    def report(self, steps: int, scheduler: LocalScheduler) -> None:
        """Report ``steps`` decode steps to the scheduler, one token per sequence and step."""
        scheduler.on_steps(steps, self.per_client)
        if scheduler.per_request_tokens:
            for sequence in self.sequences:
                scheduler.on_request_tokens(sequence.request, steps)

    def report_time(self, stretch: Stretch, scheduler: LocalScheduler) -> None:
        """Report a stretch's unreported time by client to a scheduler with ``times_steps``."""
        for client, gpu_ps in stretch.untold_ps(self.decoding(stretch.steps)):
            scheduler.on_gpu_time(client, gpu_ps)

    def join(self, sequence: Sequence) -> None:
        request = sequence.request
        sequence.joined_step = self.steps
        if self.times_requests:
            sequence.joined_time = self._time.sums()
        self._joined += 1
        self.sequences[sequence] = self._joined
        self.size += 1
        base = request.input_tokens + sequence.produced - self.steps
        self._in_batch.add(request.client, base)
        self._context_base += base
        to_go = request.max_new_tokens - sequence.produced
        self._reserve_base += to_go + self.steps
        if to_go > CLIP_MAX_NEW_TOKENS:
            self._long[sequence] = None
        sequence.due = self.steps + sequence.output.length - sequence.produced
        heappush(self.due, (sequence.due, request.request_id, sequence))

    def leave(self, sequence: Sequence) -> int:
        """Remove a sequence from the batch; return the tokens that only it uses."""
        request = sequence.request
        joined, private = sequence.joined_step, self.steps - sequence.joined_step
        base = request.input_tokens + sequence.produced - joined
        self._context_base -= base
        self._in_batch.remove(request.client, base)
        if self.times_requests:
            sequence.gpu_ps += self._time.of(base, sequence.joined_time)
        self._reserve_base -= request.max_new_tokens - sequence.produced + joined
        sequence.produced += private
        del self.sequences[sequence]
        self.size -= 1
        sequence.due = NEVER
        if self._long:
            self._long.pop(sequence, None)
        return private

    def cut(self, sequence: Sequence, steps: int) -> None:
        """Let a running sequence end ``steps`` steps from now, before its own end."""
        sequence.output = Segment(sequence.output.key, self.produced(sequence) + steps)
        sequence.due = self.steps + steps
        heappush(self.due, (sequence.due, sequence.request.request_id, sequence))

    def steps_to_finish(self) -> int:
        """Return the decode steps until the first sequence ends. Precondition: not empty."""
        due = self.due
        while due[0][0] != due[0][2].due:  # a retracted sequence leaves an entry behind
            heappop(due)
        return due[0][0] - self.steps

    def finished(self) -> list[Sequence]:
        """Return the sequences of the batch that the last step finished, in batch order."""
        due, steps = self.due, self.steps
        done: list[Sequence] = []
        while due and due[0][0] <= steps:
            step, _, sequence = heappop(due)
            # A retracted sequence may have two equal entries in succession.
            if step == sequence.due and not (done and done[-1] is sequence):
                done.append(sequence)
        if len(done) > 1:
            done.sort(key=self.sequences.__getitem__)
        return done

    def retraction_order(self) -> list[Sequence]:
        """Return the sequences in order of retraction, the next to be retracted last."""
        return sorted(
            self.sequences, key=lambda s: (self.produced(s), -s.request.input_tokens), reverse=True
        )

    def rearrange(self, order: list[Sequence]) -> None:
        """Sort the batch into ``order``, which has the same sequences."""
        assert len(order) == len(self.sequences)
        self.sequences = {sequence: place for place, sequence in enumerate(order, start=1)}
        self._joined = len(order)


class BatchView:
    """A RunningView. ``free_tokens`` returns the KV memory that a request could get.

    ``would_fit`` is the view's test; without it no request is preempted.
    """

    def __init__(
        self,
        batch: RunningBatch,
        free_tokens: Callable[[], int],
        would_fit: Callable[[Request, Collection[Sequence]], bool] = lambda *_: False,
    ) -> None:
        self._batch = batch
        self._free_tokens = free_tokens
        self._would_fit = would_fit

    @property
    def free_tokens(self) -> int:
        return self._free_tokens()

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[Running]:
        for sequence in list(self._batch.sequences):
            if sequence not in self._batch.sequences:
                continue  # preempted during this walk
            request, produced = sequence.request, self._batch.produced(sequence)
            reserved = min(request.max_new_tokens - produced, CLIP_MAX_NEW_TOKENS)
            yield Running(request, produced, request.input_tokens + produced, reserved)

    def load(self, client: str) -> ClientLoad:
        if client not in self._batch.per_client:
            return ClientLoad(0, 0, 0, 0)
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        gone = [sequence for sequence in self._batch.sequences if sequence.request in without]
        return self._would_fit(request, gone)


class DecodeRun:
    """``steps`` steps from ``start_ps``: the first takes ``first_ps``, each ``growth_ps`` more."""

    __slots__ = ("first_ps", "growth_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, first_ps: int, growth_ps: int, steps: int) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps

    def end_ps(self, steps: int) -> int:
        """Return when the first ``steps`` steps are done, in picoseconds."""
        growth = self.growth_ps * (steps * (steps - 1) // 2)
        return self.start_ps + steps * self.first_ps + growth

    def steps_before(self, time_ps: int) -> tuple[int, int]:
        """Return how many steps end strictly before ``time_ps`` and when the last one ends."""
        span, first, growth = time_ps - self.start_ps, self.first_ps, self.growth_ps
        if span <= first:
            return 0, self.start_ps
        if growth:  # the root of growth/2 n^2 + (first - growth/2) n = span, corrected below
            twice = float(2 * first - growth)
            guess = int((sqrt(twice * twice + 8.0 * growth * span) - twice) / (2 * growth))
        else:
            guess = span // first
        done = guess if guess < self.steps else self.steps
        end_ps = self.end_ps(done)
        while done and end_ps >= time_ps:
            done -= 1
            end_ps -= first + growth * done
        while done < self.steps and (next_ps := end_ps + first + growth * done) < time_ps:
            done, end_ps = done + 1, next_ps
        return done, end_ps

    def advance(self, steps: int, end_ps: int) -> None:
        """Drop the first ``steps`` steps, which ended at ``end_ps``."""
        self.start_ps = end_ps
        self.first_ps += steps * self.growth_ps
        self.steps -= steps
