"""The running (decode) batch of a replica, and the prefill chunks of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from math import sqrt
from typing import NamedTuple

from fairbench.core import Request, Segment
from fairbench.engine.logs import InBatch, PrefillShare, Stretch
from fairbench.engine.sequence import NEVER, DecodeTime, Sequence
from fairbench.hardware.gpu_time import Chunk, Decoding
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.views import CLIP_MAX_NEW_TOKENS, ClientLoad, Running, client_load


class RunningBatch:
    """The sequences that decode together on a worker, one token each in a step.

    ``steps`` counts the decode steps of the batch. To save time, a decode step increases only
    ``steps``; ``produced`` computes a sequence's number of output tokens. ``index`` maps clients to
    their numbers in the service log.
    """

    def __init__(self, index: dict[str, int] | None = None) -> None:
        self.steps = 0
        self.size = 0
        # ``sequences`` maps each sequence of the batch to its position in SGLang's batch.
        self.sequences: dict[Sequence, int] = {}
        self._in_batch = InBatch({} if index is None else index)
        self.per_client = self._in_batch.per_client
        self._context_base = 0
        self._reserve_base = 0
        # ``_long`` holds the sequences that may produce more outputs than SGLang reserves memory
        # for.
        self._long: dict[Sequence, None] = {}
        # ``due`` is a heap of sequences, ordered by the decode step after which each sequence ends.
        # A heap entry is outdated if its step differs from ``Sequence.due``.
        self.due: list[tuple[int, int, Sequence]] = []
        self._joined = 0
        # If ``times_requests`` is true, ``Sequence.gpu_ps`` sums each request's part of the GPU
        # time.
        self.times_requests = True
        self._time = DecodeTime()

    def __len__(self) -> int:
        return self.size

    @property
    def context_tokens(self) -> int:
        """The sum of the context lengths in the next decode step, in tokens."""
        return self._context_base + self.size * self.steps

    def by_client(self, steps_ago: int) -> InBatch:
        """Return each client's requests and context as they were ``steps_ago`` steps ago.

        The next call of ``by_client`` changes the returned object.
        """
        self._in_batch.step = self.steps - steps_ago
        return self._in_batch

    def decoding(self, steps_ago: int = 0) -> dict[str, Decoding]:
        """Return each client's requests and context as they were ``steps_ago`` steps ago.

        Precondition: no sequence joined or left the batch in the last ``steps_ago`` steps.
        """
        return self.by_client(steps_ago).decoding()

    def reserved_tokens(self) -> int:
        """Return SGLang's reservation, the sum of min(max_new_tokens - produced, 4096)."""
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
        """Return the number of output tokens that a running sequence has produced."""
        return sequence.produced + self.steps - sequence.joined_step

    def private(self, sequence: Sequence) -> int:
        """Return the number of decoded tokens of a sequence that are not in the prefix tree yet."""
        return self.steps - sequence.joined_step

    def step(self, steps: int, took_ps: int, fixed_ps: int) -> None:
        """Record ``steps`` decode steps that together took ``took_ps`` picoseconds.

        ``fixed_ps`` is the part of a step's time that does not depend on the context.
        """
        if self.times_requests and (size := self.size):
            first, context = self.steps, self.context_tokens
            self._time.add(took_ps, fixed_ps * steps, size, context, first, steps)
        self.steps += steps

    def report(self, steps: int, scheduler: LocalScheduler) -> None:
        """Report ``steps`` decode steps to the scheduler."""
        if (charge_steps := scheduler.on_steps) is not None:
            charge_steps(steps, self.per_client)
        elif type(scheduler).on_tokens is not LocalScheduler.on_tokens:
            for client, count in self.per_client.items():
                scheduler.on_tokens(client, steps * count)
        if (charge_tokens := scheduler.on_request_tokens) is not None:
            for sequence in self.sequences:
                charge_tokens(sequence.request, steps)

    def report_time(self, stretch: Stretch, charge: Callable[[str, int], None]) -> None:
        """Pass each client's GPU time (ps) since the last report to the function ``charge``."""
        for client, gpu_ps in stretch.unreported_ps(self.decoding(stretch.steps)):
            charge(client, gpu_ps)

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

    def remove_sequence(self, sequence: Sequence) -> int:
        """Remove a sequence from the batch; return the tokens that only this sequence uses."""
        request = sequence.request
        joined, private = sequence.joined_step, self.steps - sequence.joined_step
        base = request.input_tokens + sequence.produced - joined
        self._context_base -= base
        self._in_batch.remove(request.client, base)
        if self.times_requests:
            sequence.gpu_ps += self._time.request_ps(base, sequence.joined_time)
        self._reserve_base -= request.max_new_tokens - sequence.produced + joined
        sequence.produced += private
        del self.sequences[sequence]
        self.size -= 1
        sequence.due = NEVER
        if self._long:
            self._long.pop(sequence, None)
        return private

    def shorten_output(self, sequence: Sequence, steps: int) -> None:
        """Shorten the output of a running sequence, so that it ends after ``steps`` more steps."""
        sequence.output = Segment(sequence.output.key, self.produced(sequence) + steps)
        sequence.due = self.steps + steps
        heappush(self.due, (sequence.due, sequence.request.request_id, sequence))

    def steps_to_finish(self) -> int:
        """Return the number of decode steps until the first sequence of the batch ends."""
        due = self.due
        # After a retraction, the heap still contains an old entry of the retracted sequence.
        while due[0][0] != due[0][2].due:
            heappop(due)
        return due[0][0] - self.steps

    def finished(self) -> list[Sequence]:
        """Return the sequences that ended with the last step, in the order of the batch."""
        due, steps = self.due, self.steps
        done: list[Sequence] = []
        while due and due[0][0] <= steps:
            step, _, sequence = heappop(due)
            # A sequence that was retracted may have two equal entries in the heap.
            if step == sequence.due and not (done and done[-1] is sequence):
                done.append(sequence)
        if len(done) > 1:
            done.sort(key=self.sequences.__getitem__)
        return done

    def retraction_order(self) -> list[Sequence]:
        """Return the sequences of the batch; the last sequence is retracted first."""
        return sorted(
            self.sequences, key=lambda s: (self.produced(s), -s.request.input_tokens), reverse=True
        )

    def rearrange(self, order: list[Sequence]) -> None:
        """Put the sequences of the batch into the given order."""
        assert len(order) == len(self.sequences)
        self.sequences = {sequence: place for place, sequence in enumerate(order, start=1)}
        self._joined = len(order)


class BatchView:
    """A scheduler's view of the running batch (``RunningView``).

    The function ``free_tokens`` returns the KV memory, in tokens, that a request could get. The
    function ``would_fit`` returns whether a waiting request would fit after preemptions. The
    default function always returns False, so no request is preempted.
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
                # Skip a request that the scheduler preempted during this loop.
                continue
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
    """A series of decode steps with an unchanged batch, which begins at ``start_ps``.

    The first step takes ``first_ps`` picoseconds, and each later step takes ``growth_ps`` more than
    the step before.
    """

    __slots__ = ("first_ps", "growth_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, first_ps: int, growth_ps: int, steps: int) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps

    def end_ps(self, steps: int) -> int:
        """Return the time (ps) at which the first ``steps`` steps end."""
        growth = self.growth_ps * (steps * (steps - 1) // 2)
        return self.start_ps + steps * self.first_ps + growth

    def steps_before(self, time_ps: int) -> tuple[int, int]:
        """Return how many steps end before ``time_ps``, and the end (ps) of the last such step."""
        span, first, growth = time_ps - self.start_ps, self.first_ps, self.growth_ps
        if span <= first:
            return 0, self.start_ps
        # The number n of steps in ``span`` solves growth/2 n^2 + (first - growth/2) n = span.
        # ``guess`` is the floating-point solution; the two loops below correct its rounding error.
        if growth:
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
        """Remove the first ``steps`` steps of the series, the last of which ended at ``end_ps``."""
        self.start_ps = end_ps
        self.first_ps += steps * self.growth_ps
        self.steps -= steps


class Prefill(NamedTuple):
    """A chunk of a prompt that an iteration computes.

    The chunk has ``tokens`` tokens and follows ``cached`` cached tokens, of which the last
    ``loaded`` tokens come from CPU memory. ``first`` marks the first chunk after an admission, and
    ``last`` marks the chunk that completes the prompt.
    """

    sequence: Sequence
    cached: int
    tokens: int
    first: bool
    last: bool
    loaded: int = 0

    @property
    def chunk(self) -> Chunk:
        """The numbers of cached and of computed tokens, in the form that timing profiles expect."""
        return self.cached, self.tokens


def report_prompts(prefills: list[Prefill], gpu_ps: list[int], scheduler: LocalScheduler) -> None:
    """Record each prompt chunk's GPU time (ps); report it to a scheduler that charges GPU time."""
    charge = scheduler.on_prompt_time
    for prefill, took_ps in zip(prefills, gpu_ps, strict=True):
        prefill.sequence.gpu_ps += took_ps
        if charge is not None:
            charge(prefill.sequence.request, took_ps, prefill.last)


def book_admission(
    sequence: Sequence, scheduler: LocalScheduler, now_ps: int, fresh: int = 0
) -> None:
    """Record and charge an admission; ``fresh`` tokens are computed for the first time."""
    extend = sequence.total - sequence.filled
    recompute = sequence.admitted_ps != NEVER
    if recompute:
        sequence.readmitted_ps = now_ps
        sequence.recompute_tokens += extend - fresh
    else:
        sequence.admitted_ps = now_ps
        sequence.cached_tokens, sequence.extend_tokens = sequence.filled, extend
    scheduler.on_admitted(sequence.request, extend, recompute)


def _nothing_fresh(sequence: Sequence, cached: int, tokens: int) -> int:
    return 0


def shares_of(
    prefills: list[Prefill],
    gpu_ps: list[int],
    fresh_of: Callable[[Sequence, int, int], int] = _nothing_fresh,
) -> dict[str, PrefillShare]:
    """Return each client's part of the prefill work in an iteration.

    Args:
        prefills: The chunks of prompts in the iteration.
        gpu_ps: GPU time of each chunk, in picoseconds.
        fresh_of: Function of a retracted sequence, its number of cached tokens and the length of a
            chunk in tokens. The function returns how many of the chunk's tokens are computed for
            the first time.
    """
    shares: dict[str, PrefillShare] = {}
    for (sequence, cached, tokens, first, last, _), took_ps in zip(prefills, gpu_ps, strict=True):
        client = sequence.request.client
        if (share := shares.get(client)) is None:
            share = shares[client] = PrefillShare()
        if sequence.retractions:
            fresh = fresh_of(sequence, cached, tokens)
            share.extend_tokens += fresh
            share.recompute_tokens += tokens - fresh
        else:
            share.extend_tokens += tokens
            if first:
                share.input_tokens += sequence.request.input_tokens
                share.extend_charged_tokens += sequence.extend_tokens
        share.output_tokens += last
        share.gpu_ps += took_ps
    return shares
