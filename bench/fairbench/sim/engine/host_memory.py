"""KV of preempted requests in host memory.

Copies are blocking: the worker computes nothing while they are made. vLLM's V0 engine also made
them before the step; engines that overlap them with computation wait less.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.sim.sequence import Sequence


@dataclass(slots=True)
class HostMemory:
    """Room for a number of tokens, each of which takes ``token_ps`` to copy in either direction.

    Without ``token_ps`` there is no room.
    """

    capacity: int
    token_ps: int
    used: int = 0
    copied: int = 0  # tokens copied since the last call of ``delay_ps``

    def has_room(self, tokens: int) -> bool:
        """Return whether a copy of ``tokens`` tokens fits."""
        return self.token_ps > 0 and self.used + tokens <= self.capacity

    def store(self, sequence: Sequence, tokens: int) -> None:
        """Copy the first ``tokens`` of a request to the host, which must have room."""
        sequence.host_tokens = tokens
        sequence.swapped_tokens += tokens
        self.used += tokens
        self.copied += tokens

    def behind(self, sequence: Sequence, cached: int) -> int:
        """Return how many tokens after ``cached`` a waiting request has in host memory."""
        behind = sequence.host_tokens - cached
        return behind if behind > 0 else 0

    def load(self, sequence: Sequence, cached: int) -> None:
        """Copy the tokens after the ``cached`` ones back, and free the room."""
        tokens = self.behind(sequence, cached)
        sequence.swapped_tokens += tokens
        self.copied += tokens
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        self.used -= sequence.host_tokens
        sequence.host_tokens = 0

    def delay_ps(self) -> int:
        """Return the time (ps) of the copies made since the last call."""
        delay_ps, self.copied = self.copied * self.token_ps, 0
        return delay_ps
