"""The running list of a vLLM worker and the first part of a step: tokens and blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from fairbench.core import Request
from fairbench.hardware.vllm_params import VLLMLimits
from fairbench.schedulers.load_cap import LoadCap
from fairbench.schedulers.prefix_tree import Place
from fairbench.schedulers.views import ClientLoad, Running, client_load
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.engine.prefill import Prefill
from fairbench.sim.engine.vllm.block_cache import BlockCache
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.tables import BlockTables
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.sequence import Sequence


class Phases:
    """Decoding sequences by the step (modulo the block size) at which they begin a block."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._groups: list[dict[Sequence, int]] = [{} for _ in range(block_size)]
        self._phase: dict[Sequence, int] = {}

    def join(self, sequence: Sequence, step: int, context: int, seat: int) -> None:
        """Add a sequence that decodes from ``step`` on at length ``context``, in its ``seat``."""
        phase = (step + 1 - context) % self._size
        self._phase[sequence] = phase
        self._groups[phase][sequence] = seat

    def leave(self, sequence: Sequence) -> None:
        del self._groups[self._phase.pop(sequence)][sequence]

    def at_blocks(self, step: int) -> Iterator[tuple[Sequence, bool, bool]]:
        """Yield sequences in running order, and whether they begin or fill a block in this step."""
        begin, fill = (self._groups[one % self._size] for one in (step, step + 1))
        either = begin | fill
        for sequence in sorted(either, key=either.__getitem__):
            yield sequence, sequence in begin, sequence in fill

    def count(self, step: int) -> int:
        """Return how many sequences begin a block in this step."""
        return len(self._groups[step % self._size])

    def steps_within(self, step: int, blocks: int, most: int) -> int:
        """Return how many steps from ``step`` need only ``blocks`` new blocks, up to ``most``."""
        each_round = len(self._phase)
        if not each_round:
            return most
        rounds, blocks = divmod(blocks, each_round)
        steps = rounds * self._size
        while steps < most and (needed := self.count(step + steps)) <= blocks:
            blocks -= needed
            steps += 1
        return min(steps, most)


@dataclass(slots=True)
class Step:
    """The work of a step. ``budget`` is the number of tokens left for the step.

    ``stalled`` are decoding sequences that get no token. A sequence before them in the list was
    itself preempted for lack of memory. A scheduler's retraction order makes this case possible.
    """

    budget: int
    chunks: list[Prefill] = field(default_factory=list)
    decodes: int = 0
    preempted: bool = False
    stalled: list[Sequence] = field(default_factory=list)


class RunningList:
    """vLLM's running list in order of admission, including prefilling requests.

    Only the last sequence may be prefilling: an incomplete prompt takes the rest of every budget,
    so nothing else is admitted. All other sequences decode, in ``batch``. Under asynchronous
    scheduling, ``batch`` is as after the step that runs, which gives ``pending`` sequences a token,
    and those in ``ending`` their last one.
    """

    def __init__(self, cache: BlockCache, limits: VLLMLimits, index: dict[str, int]) -> None:
        self.sequences: list[Sequence] = []
        self.batch = RunningBatch(index)
        self.tables = BlockTables(
            cache,
            reserve_full=limits.scheduler_reserve_full_isl,
            watermark_blocks=limits.watermark_blocks,
        )
        self._most = limits.max_num_seqs
        self._goes_on = limits.goes_on_after_self
        self._cache = cache
        self._phases = Phases(cache.block_size)
        self._seats: dict[Sequence, int] = {}
        self._admitted = 0
        self._memory_step = 0  # steps before this one have their blocks
        self._ahead = limits.async_scheduling
        self.pending: set[Sequence] = set()
        self.ending: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def is_full(self) -> bool:
        return len(self.sequences) >= self._most

    # Members.

    def admit(self, sequence: Sequence, node: BlockNode, place: Place, tokens: int) -> bool:
        """Admit a sequence with blocks for ``tokens``, cached to ``node``; False without room."""
        alone = not self.sequences
        if not self.tables.admit(sequence, node, place, tokens, alone=alone):
            return False
        self._admitted += 1
        self._seats[sequence] = self._admitted
        self.sequences.append(sequence)
        return True

    def decode(self, sequence: Sequence) -> None:
        """Start decoding a sequence with a complete prompt from the next step on."""
        batch = self.batch
        batch.join(sequence)
        context = sequence.request.input_tokens + sequence.produced
        self._phases.join(sequence, batch.steps, context, self._seats[sequence])

    def pause(self, sequence: Sequence) -> None:
        """Stop decoding a sequence, perhaps for one step; ``decode`` resumes it."""
        self.batch.leave(sequence)
        self._phases.leave(sequence)

    def finished(self) -> list[Sequence]:
        """Return the sequences finished by the step that ended, in running order."""
        return sorted(self.batch.finished(), key=self._seats.__getitem__)

    def end_ahead(self, sequence: Sequence) -> None:
        """Stop decoding a sequence that gets its last token from a step in flight."""
        self.pause(sequence)
        self.ending.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Remove a finished sequence; its tokens may stay cached for its client."""
        self.tables.retain(sequence)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished or preempted sequence and free its blocks."""
        self.leave(sequence)
        self.tables.give_back(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence that keeps its blocks."""
        if sequence in self.batch.sequences:
            self.pause(sequence)
        self.sequences.remove(sequence)
        self.ending.discard(sequence)
        del self._seats[sequence]

    # A step.

    def schedule(self, step: Step, preempt: Callable[[], Sequence]) -> None:
        """Give running sequences tokens and blocks; ``preempt`` removes and returns a sequence."""
        batch = self.batch
        new = batch.steps == self._memory_step  # not if the step is decided a second time
        beginning = self._phases.count(batch.steps) if new else 0
        budget = step.budget - len(batch)
        prefills = len(self.sequences) > len(batch) + len(self.ending)
        last = self.sequences[-1] if prefills else None
        tokens = 0
        if last is not None:
            tokens = min(last.total - last.filled, budget)
            beginning += self.tables.missing(last, last.filled + tokens)
        if beginning > self._cache.free_blocks:
            self._schedule_in_need(step, preempt)
            return
        self.provide(batch.steps + 1)
        step.budget, step.decodes = budget, len(batch)
        if last is not None and tokens:
            self._extend(step, last, tokens)

    def provide(self, steps: int) -> None:
        """Give the decoding sequences the blocks of all steps before this one."""
        for step in range(self._memory_step, steps):
            for sequence, begins, fills in self._phases.at_blocks(step):
                if begins:
                    self.tables.add_block(sequence)
                if begins and self._ahead:  # the last token of the block before is known now
                    self.tables.store_full(sequence)
                if fills and not self._ahead:
                    self.tables.store_block(sequence)
        self._memory_step = max(self._memory_step, steps)

    def steps_ahead(self, blocks: int, most: int) -> int:
        """Return how many steps beyond those provided for need at most ``blocks`` blocks."""
        return self._phases.steps_within(self._memory_step, blocks, most)

    def _extend(self, step: Step, sequence: Sequence, tokens: int) -> None:
        assert self.tables.grow(sequence, sequence.filled + tokens, sequence.filled + tokens)
        last = sequence.filled + tokens == sequence.total
        step.chunks.append(Prefill(sequence, sequence.filled, tokens, first=False, last=last))
        step.budget -= tokens

    def _schedule_in_need(self, step: Step, preempt: Callable[[], Sequence]) -> None:
        """Schedule sequences one by one because resources do not suffice for all."""
        scheduled: dict[Sequence, int] = {}
        index = 0
        while index < len(self.sequences) and step.budget > 0:
            sequence = self.sequences[index]
            if sequence in self.ending:
                index += 1
                continue
            has, needs = self._needs(sequence)
            tokens = min(needs, step.budget)
            known = has if self._ahead and sequence in self.batch.sequences else has + tokens
            while not self.tables.grow(sequence, has + tokens, known):
                victim = preempt()
                step.preempted = True
                step.budget += scheduled.pop(victim, 0)
                if victim is sequence:
                    break
                index = self.sequences.index(sequence)
            if sequence not in self._seats:
                if not self._goes_on:
                    break
                continue  # the next sequence has taken its position
            scheduled[sequence] = tokens
            step.budget -= tokens
            index = self.sequences.index(sequence) + 1
        if scheduled:  # otherwise the step is empty, and decided again
            self._memory_step = self.batch.steps + 1
        for sequence, tokens in scheduled.items():
            if sequence in self.batch.sequences:
                step.decodes += 1
            else:
                step.budget += tokens
                self._extend(step, sequence, tokens)
        step.stalled = [s for s in self.batch.sequences if s not in scheduled]

    def computed_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of a running sequence have KV in memory."""
        if sequence in self.batch.sequences:
            return sequence.request.input_tokens + self.batch.produced(sequence) - 1
        if sequence in self.ending:
            return sequence.request.input_tokens + sequence.produced - 1
        return sequence.filled

    def decodes(self, sequence: Sequence) -> bool:
        """Return whether the prompt of a running sequence is complete."""
        return sequence in self.batch.sequences or sequence in self.ending

    def _needs(self, sequence: Sequence) -> tuple[int, int]:
        """Return how many tokens of a sequence are computed and how many are still missing."""
        has = self.computed_tokens(sequence)
        return has, 1 if sequence in self.batch.sequences else sequence.total - has


@dataclass(slots=True)
class RunningListView:
    """A RunningView of the running list. No memory is reserved for future outputs."""

    running: RunningList
    waiting: WaitingQueue[BlockNode]
    cache: BlockCache
    cap: LoadCap

    @property
    def free_tokens(self) -> int:
        return self.cache.free + self.cache.evictable

    def __len__(self) -> int:
        return len(self.running)

    def __iter__(self) -> Iterator[Running]:
        running = self.running
        for sequence in list(running.sequences):
            if sequence in running.batch.sequences:
                produced = running.batch.produced(sequence)
                held = sequence.request.input_tokens + produced
            elif sequence in running.sequences:
                produced, held = sequence.produced, sequence.filled
            else:
                continue  # preempted during this walk
            if sequence in running.pending:
                produced -= 1
                held = sequence.request.input_tokens + produced
            yield Running(sequence.request, produced, held, 0)

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        if not self.cap.has_room(request, without):
            return False
        sequence = self.waiting.sequence_of(request)
        node, _ = self.waiting.match(request)
        gone = [one for one in self.running.sequences if one.request in without]
        alone = len(gone) == len(self.running)
        return self.running.tables.would_fit(sequence, node, gone, alone=alone)
