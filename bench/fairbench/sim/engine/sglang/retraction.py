"""Memory taken from running requests, which wait again and are recomputed.

The engine retracts requests when memory runs out. A preempting scheduler takes memory from some
requests in a pass.
"""

from __future__ import annotations

from collections.abc import Collection

from fairbench.core import PS_PER_S, Request
from fairbench.hardware.engine_params import Splits
from fairbench.schedulers.drive import Preempt
from fairbench.schedulers.prefix_tree import place_at
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS, RunningBatch
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.sglang.admission_budget import PrefillPass
from fairbench.sim.engine.waiting import retraction_order
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


def store_prompt(
    cache: KVCache, sequence: Sequence, tokens: int, splits: Splits = "prefilled"
) -> None:
    """Store and lock ``tokens`` more computed prompt tokens in the tree.

    Tokens that another sequence has stored in the meantime are freed. By ``splits``, outputs that
    were prefilled again after a retraction get their own node.
    """
    node, request = sequence.node, sequence.request
    assert node is not None
    sequence.filled += tokens
    end, cached = cache.insert(node, sequence.prompt, sequence.place, sequence.filled, lock=True)
    if cached:
        cache.release_of(request.client, cached)
    if cache.knows_clients:
        cache.claim(end, request)
    sequence.node, sequence.private = end, 0
    complete = sequence.filled == sequence.total
    sequence.place = (
        (len(sequence.prompt), 0) if complete else place_at(sequence.prompt, sequence.filled)
    )
    if sequence.filled > request.input_tokens and splits == "prefilled":
        cache.match(request.prompt, request.input_tokens)  # their node starts here


def store_outputs(cache: KVCache, sequence: Sequence, splits: Splits = "prefilled") -> None:
    """Store a finished sequence's outputs but the last one, split as above; unlock its path."""
    node, request = sequence.node, sequence.request
    assert node is not None
    kept = sequence.produced - 1
    end = node
    if request.input_tokens + kept > node.depth:
        prompt = (*request.prompt, sequence.output)
        place = len(request.prompt), node.depth - request.input_tokens
        end, cached = cache.insert(node, prompt, place, request.input_tokens + kept)
        if cached:
            cache.release_of(request.client, cached)
    if sequence.retractions and kept and splits == "finished":
        cache.match(request.prompt, request.input_tokens)
    if cache.knows_clients:
        cache.retain(end, request)
    cache.unlock(node)
    sequence.node = None


def give_back(cache: KVCache, sequence: Sequence, private: int) -> None:
    """Free a retracted sequence's private tokens and unlock its path."""
    assert sequence.node is not None
    cache.release_of(sequence.request.client, private)
    cache.unlock(sequence.node)


INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_DECODE_STEPS = 20


class NewTokenRatio:
    """A ratio from min(0.7 * conservativeness, 1) down to 14% of that over 600 decode steps.

    The ratio is stored as a value and its step, so that a run of decode steps costs nothing.
    """

    def __init__(self, conservativeness: float, full_reservation: bool) -> None:
        self._full = full_reservation
        self._init = min(INIT * conservativeness, 1.0)
        self._min = self._init * MIN_FACTOR
        self._decay = (self._init - self._min) / DECAY_STEPS
        self._base, self._since = self._init, 0

    def at(self, step: int) -> float:
        """Return the ratio after ``step`` decode steps of the worker."""
        if self._full:
            return 1.0
        since = step - self._since
        ratio = self._base - since * self._decay if since > 0 else self._base
        return ratio if ratio > self._min else self._min

    def reset(self, step: int) -> None:
        self._base, self._since = self._init, step

    def after_retraction(self, batch: RunningBatch) -> None:
        """Set the ratio after a retraction; the step about to run does not decay the value."""
        decoded = sum(batch.produced(s) for s in batch.sequences)
        allowed = sum(s.request.max_new_tokens for s in batch.sequences)
        ratio = (decoded + RETRACT_DECODE_STEPS * len(batch)) / (allowed + 1)
        self._base, self._since = min(1.0, ratio), batch.steps + 1


class Retraction:
    """SGLang's retract_decode on a worker, and the preemptions of a pass."""

    def __init__(self, worker: EngineLoop[KVNode], cache: KVCache, ratio: NewTokenRatio) -> None:
        self.kept: list[Sequence] = []  # sequences that have finished and are still in the batch
        self._worker = worker
        self._cache = cache
        self._ratio = ratio
        self._pass: PrefillPass | None = None
        self._taken: list[Sequence] = []  # requests preempted in the present pass

    def until_a_step_fits(self) -> None:
        """Retract one request after the other until the next decode step has memory.

        SGLang's test for room evicts everything first; after each retraction it evicts more, until
        the remaining requests have memory for 20 steps each. At least one request always stays.
        """
        batch, cache = self._worker.batch, self._cache
        order = self._order()
        cache.evict(len(batch) - cache.free, batch.per_client)
        while len(batch) > cache.free + cache.evictable and len(order) > 1:
            sequence = order.pop()
            self._take_back(sequence)
            room = RETRACT_DECODE_STEPS * len(order)
            cache.evict(room - cache.free, batch.per_client)
            self._wait_again(sequence)
        batch.rearrange(order)

    def _order(self) -> list[Sequence]:
        """Return the running sequences; the last sequence loses its memory first."""
        worker = self._worker
        if not worker.scheduler.orders_retraction:
            return worker.batch.retraction_order()
        running, now_s = worker.batch.sequences, worker._clock.now_ps / PS_PER_S
        return retraction_order(worker.scheduler, worker.waiting, running, now_s)[::-1]

    def _take_back(self, sequence: Sequence) -> None:
        """Free the memory of a running request, which leaves the batch."""
        worker = self._worker
        give_back(self._cache, sequence, worker.batch.leave(sequence))
        worker.cap.leave(sequence.request)
        sequence.retract(worker._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        """Put a retracted sequence at the tail of the waiting queue."""
        worker = self._worker
        now_s = worker._clock.now_ps / PS_PER_S
        worker.scheduler.on_retract(sequence.request, worker.waiting, now_s)
        worker.waiting.enter(sequence)

    # Preemption in a pass.

    def begin(self, attempt: PrefillPass) -> None:
        """Set the pass in which memory is taken and fit is tested from now on."""
        self._pass = attempt

    def would_fit(self, request: Request, without: Collection[Sequence]) -> bool:
        """Return whether a waiting request would fit in this pass without some running ones."""
        worker = self._worker
        assert self._pass is not None
        if not worker.cap.has_room(request, [sequence.request for sequence in without]):
            return False
        gone = []
        for sequence in without:
            assert sequence.node is not None
            gone.append((sequence.node, worker.batch.private(sequence), self._reserved(sequence)))
        return self._pass.would_fit(worker.waiting.sequence_of(request), worker.waiting, gone)

    def _reserved(self, sequence: Sequence) -> float:
        """Return the tokens that an admission reserves for a running request's outputs."""
        batch = self._worker.batch
        to_go = sequence.request.max_new_tokens - batch.produced(sequence)
        return min(to_go, CLIP_MAX_NEW_TOKENS) * self._ratio.at(batch.steps)

    def preempt(self, wish: Preempt) -> bool:
        """Free the memory of a running request; return False if it does not run or fit the host.

        As in SGLang, other requests get memory for 20 steps.
        """
        worker, request = self._worker, wish.request
        batch, cache = worker.batch, self._cache
        assert self._pass is not None
        sequence = next((one for one in batch.sequences if one.request is request), None)
        if sequence is None:
            return False
        held = request.input_tokens + batch.produced(sequence) - 1  # the last token has no KV yet
        if wish.swap and not worker.host.has_room(held):
            return False
        worker._end_stretch()
        self._pass.give_back(self._reserved(sequence))
        self._take_back(sequence)
        room = RETRACT_DECODE_STEPS * (len(batch) + len(self.kept))
        cache.evict(room - cache.free, batch.per_client)
        if wish.swap:
            worker.host.store(sequence, held)
        self._taken.append(sequence)
        return True

    def requeue(self) -> bool:
        """Requeue the requests preempted in this pass. Return whether there were any."""
        taken, self._taken = self._taken, []
        for sequence in taken:
            self._wait_again(sequence)
        return bool(taken)
