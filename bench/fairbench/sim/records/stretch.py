"""A stretch of decode steps, which the service log has a row a client of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairbench.hardware.gpu_time import Decoding, decode_parts


@dataclass(slots=True)
class Stretch:
    """Decode steps of one unchanged batch: each lasts ``growth_ps`` longer than the one before.

    ``fixed_ps`` of a step would be the same without any context.
    """

    start_ps: int
    growth_ps: int
    context_tokens: int  # at the first step
    fixed_ps: int
    steps: int = 0
    end_ps: int = 0
    told_ps: dict[str, int] | None = None

    def untold_ps(self, first: Mapping[str, Decoding]) -> Iterator[tuple[str, int]]:
        """Yield each client's part of the time not yet reported, and mark it as reported."""
        before, self.told_ps = self.told_ps or {}, self.gpu_ps(first)
        for client, gpu_ps in self.told_ps.items():
            yield client, gpu_ps - before.get(client, 0)

    def gpu_ps(self, first: Mapping[str, Decoding]) -> dict[str, int]:
        """Return each client's part of the time; ``first`` is its part in the first step."""
        took_ps = self.end_ps - self.start_ps
        return decode_parts(took_ps, self.fixed_ps * self.steps, first, self.steps)
