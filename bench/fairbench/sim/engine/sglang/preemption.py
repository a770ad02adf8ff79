"""The memory that a preempting scheduler takes from running requests during a pass."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fairbench.core import Request
from fairbench.schedulers.drive import Preempt
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS, RunningBatch
from fairbench.sim.engine.host_memory import HostMemory
from fairbench.sim.engine.sglang.admission import PrefillPass
from fairbench.sim.engine.sglang.retraction import NewTokenRatio, Retraction
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


class Preemption:
    """Preemptions of a pass. ``end_stretch`` books the decode steps before a change."""

    def __init__(
        self,
        batch: RunningBatch,
        waiting: WaitingQueue[KVNode],
        host: HostMemory,
        ratio: NewTokenRatio,
        retraction: Retraction,
        cap: LoadCap,
        end_stretch: Callable[[], None],
    ) -> None:
        self._batch = batch
        self._waiting = waiting
        self._host = host
        self._ratio = ratio
        self._retraction = retraction
        self._cap = cap
        self._end_stretch = end_stretch
        self._pass: PrefillPass | None = None
        self._taken: list[Sequence] = []

    def begin(self, attempt: PrefillPass) -> None:
        """Set the pass in which memory is taken and fit is tested from now on."""
        self._pass = attempt

    def would_fit(self, request: Request, without: Collection[Sequence]) -> bool:
        """Return whether a waiting request would fit in this pass without some running ones."""
        assert self._pass is not None
        if not self._cap.has_room(request, [sequence.request for sequence in without]):
            return False
        gone = []
        for sequence in without:
            assert sequence.node is not None
            gone.append((sequence.node, self._batch.private(sequence), self._kept(sequence)))
        return self._pass.would_fit(self._waiting.sequence_of(request), self._waiting, gone)

    def _kept(self, sequence: Sequence) -> float:
        """Return the tokens that an admission reserves for a running request's outputs."""
        to_go = sequence.request.max_new_tokens - self._batch.produced(sequence)
        return min(to_go, CLIP_MAX_NEW_TOKENS) * self._ratio.at(self._batch.steps)

    def take(self, wish: Preempt) -> bool:
        """Preempt a running request, as its scheduler orders: free the request's memory.

        False: it does not run, or cannot be copied to the host.
        """
        assert self._pass is not None
        request = wish.request
        sequence = next((one for one in self._batch.sequences if one.request is request), None)
        if sequence is None:
            return False
        produced = self._batch.produced(sequence)
        held = request.input_tokens + produced - 1  # the last token has no KV yet
        if wish.swap and not self._host.has_room(held):
            return False
        self._end_stretch()
        self._pass.give_back(self._kept(sequence))
        self._retraction.preempt(sequence)
        if wish.swap:
            self._host.store(sequence, held)
        self._taken.append(sequence)
        return True

    def requeue(self) -> bool:
        """Requeue the requests preempted in this pass. Return whether there were any."""
        taken, self._taken = self._taken, []
        for sequence in taken:
            self._retraction.wait_again(sequence)
        return bool(taken)
