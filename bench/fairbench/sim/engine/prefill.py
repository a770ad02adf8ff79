"""The parts of prefill work in an iteration of the engine."""

from __future__ import annotations

from typing import NamedTuple

from fairbench.hardware.gpu_time import Chunk
from fairbench.schedulers.base import LocalScheduler
from fairbench.sim.sequence import Sequence


class Prefill(NamedTuple):
    """A sequence's part of an iteration; with ``last`` the prompt is complete afterwards.

    The ``tokens`` are computed behind ``cached`` tokens. The last ``loaded`` of the cached tokens
    come from the host's memory.
    """

    sequence: Sequence
    cached: int
    tokens: int
    first: bool
    last: bool
    loaded: int = 0

    @property
    def chunk(self) -> Chunk:
        """The computed chunk, in the format of timing profiles."""
        return self.cached, self.tokens


def report_prompts(prefills: list[Prefill], gpu_ps: list[int], scheduler: LocalScheduler) -> None:
    """Book the time of each prompt in an iteration, and report it to the scheduler.

    Args:
        prefills: The iteration's parts of prefill work.
        gpu_ps: GPU time of each part, in picoseconds.
        scheduler: Scheduler to report to, if it times steps.
    """
    for prefill, took_ps in zip(prefills, gpu_ps, strict=True):
        prefill.sequence.gpu_ps += took_ps
        if scheduler.times_steps:
            scheduler.on_prompt_time(prefill.sequence.request, took_ps, prefill.last)
