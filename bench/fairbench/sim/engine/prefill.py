"""The parts of prefill work in an iteration of the engine, and the records of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fairbench.hardware.gpu_time import Chunk
from fairbench.schedulers.base import LocalScheduler
from fairbench.sim.records.service_log import PrefillShare
from fairbench.sim.sequence import NEVER, Sequence


class Prefill(NamedTuple):
    """A sequence's part of an iteration; with ``last`` the prompt is complete afterwards.

    The ``tokens`` are computed after ``cached`` tokens. The last ``loaded`` of the cached tokens
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
    """Book the GPU time of each prompt in an iteration; report it if the scheduler times steps."""
    for prefill, took_ps in zip(prefills, gpu_ps, strict=True):
        prefill.sequence.gpu_ps += took_ps
        if scheduler.times_steps:
            scheduler.on_prompt_time(prefill.sequence.request, took_ps, prefill.last)


def book_admission(
    sequence: Sequence, scheduler: LocalScheduler, now_ps: int, fresh: int = 0
) -> None:
    """Record an admission and charge it; ``fresh`` tokens are computed for the first time."""
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
    """Return an iteration's shares by client.

    Args:
        prefills: Parts of prefill work of the iteration.
        gpu_ps: Time of each part, in picoseconds.
        fresh_of: Function from a retracted sequence, its cached tokens and the tokens computed
            behind them to how many of the latter are computed for the first time.
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
