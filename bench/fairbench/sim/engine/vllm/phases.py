"""An index of decoding sequences that need a new block in a step, without a scan."""

from __future__ import annotations

from fairbench.sim.sequence import Sequence


class Phases:
    """Decoding sequences by the step (modulo the block size) at which they begin a block."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._groups: list[dict[Sequence, int]] = [{} for _ in range(block_size)]
        self._phase: dict[Sequence, int] = {}

    def join(self, sequence: Sequence, step: int, context: int, seat: int) -> None:
        """Add a sequence that decodes from ``step`` on, with length ``context`` in that step.

        ``seat`` is the sequence's place in the running list.
        """
        phase = (step + 1 - context) % self._size
        self._phase[sequence] = phase
        self._groups[phase][sequence] = seat

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence that no longer decodes."""
        del self._groups[self._phase.pop(sequence)][sequence]

    def beginning(self, step: int) -> list[Sequence]:
        """Return the sequences whose token of this step starts a new block, in running order."""
        group = self._groups[step % self._size]
        return sorted(group, key=group.__getitem__)

    def filling(self, step: int) -> list[Sequence]:
        """Return sequences whose token of this step fills a block, in running order."""
        return self.beginning(step + 1)

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
