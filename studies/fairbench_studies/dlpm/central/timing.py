"""The measured cost of a central DLPM scheduler ([DLPM] §5.1, Fig. 4).

The scheduler's CPU time and the time for messages between processes are measured on this machine.
The workers' caches are simulated. Figure 4 compares the scheduler's time with the duration of a
decode step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from statistics import quantiles
from time import perf_counter, process_time
from typing import NamedTuple

from fairbench.core import Request
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.local.dlpm import DLPM
from fairbench_studies.dlpm.central.arrivals import (
    CONTEXT_TOKENS,
    OUTPUT_TOKENS,
    TreeOfThoughtArrivals,
)
from fairbench_studies.dlpm.central.central_dlpm import CentralDLPM
from fairbench_studies.dlpm.central.workers import CentralWorkers

BATCH_SIZE = 25  # requests in the decode step of [DLPM] Fig. 4
POOL_TOKENS = 100_000  # size of a worker's KV cache, in tokens
# A worker frees ``FREED_TOKENS`` tokens between two batches. SGLang forms a new batch every 10
# decode steps. In 10 decode steps, about one of 25 requests with 256 output tokens each finishes.
FREED_TOKENS = 1_000
WARMUP_ROUNDS = 50  # untimed first rounds, which fill the caches so that workers evict
WARMUP_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The times that a central scheduler needs for one scheduling round over all workers.

    ``waiting`` is the number of queued requests. ``synchronisation_ms`` is the wall time until all
    workers have reported to the scheduler and have received requests from it. ``update_ms`` is the
    scheduler's CPU time to update its copies of the prefix trees. ``match_ms`` is the CPU time to
    match every request in every tree. ``dispatch_ms`` is the CPU time to sort and dispatch.
    Measured times are lowest deciles over many rounds, because other work on the machine can only
    lengthen a round.
    """

    workers: int
    waiting: int
    synchronisation_ms: float
    update_ms: float
    match_ms: float
    dispatch_ms: float
    decode_step_ms: float

    @property
    def overhead_pct(self) -> float:
        """The time for synchronisation, matching and dispatch, in percent of a decode step."""
        overhead_ms = self.synchronisation_ms + self.match_ms + self.dispatch_ms
        return 100 * overhead_ms / self.decode_step_ms


def time_rounds(
    workers: int, waiting: int, profile: TimingProfile, *, rounds: int = 30, seed: int = 0
) -> RoundCost:
    """Measure the cost of a scheduling round with ``waiting`` requests, over ``rounds`` rounds.

    Each worker is a spawned process, so the caller's main module must be importable.
    """
    central = CentralDLPM(DLPM.Params(), workers)
    arrivals = TreeOfThoughtArrivals(Random(seed))
    timed = []
    with CentralWorkers(workers, POOL_TOKENS) as processes:
        for number in range(WARMUP_ROUNDS + rounds):
            while len(central.queue) < waiting:
                central.on_arrival(arrivals.take())
            warming = number < WARMUP_ROUNDS
            turn = _round(central, processes, WARMUP_TOKENS if warming else FREED_TOKENS)
            if not warming:
                timed.append(turn.seconds)
            _finish(turn.dispatched, central, arrivals)
    lowest = _Seconds(
        *(quantiles(part, n=10, method="inclusive")[0] for part in zip(*timed, strict=True))
    )
    decode_ps = profile.decode_ps(BATCH_SIZE, BATCH_SIZE * CONTEXT_TOKENS)
    return RoundCost(
        workers=workers,
        waiting=waiting,
        synchronisation_ms=1000 * lowest.synchronisation,
        update_ms=1000 * lowest.update,
        match_ms=1000 * lowest.match,
        dispatch_ms=1000 * lowest.dispatch,
        decode_step_ms=decode_ps / PS_PER_MS,
    )


class _Seconds(NamedTuple):
    """The duration of each part of a scheduling round in seconds."""

    synchronisation: float
    update: float
    match: float
    dispatch: float


class _Round(NamedTuple):
    seconds: _Seconds
    dispatched: list[Request]


def _round(central: CentralDLPM, processes: CentralWorkers, free_tokens: int) -> _Round:
    update_s = match_s = dispatch_s = 0.0
    dispatched: list[Request] = []
    processes.wait()
    start_s = perf_counter()
    deltas = processes.collect()
    synchronisation_s = perf_counter() - start_s
    for worker, delta in enumerate(deltas):
        began_s = process_time()
        central.update(worker, delta)
        updated_s = process_time()
        matched = central.match(worker)
        matched_s = process_time()
        batch = central.dispatch(matched, free_tokens)
        done_s = process_time()
        update_s += updated_s - began_s
        match_s += matched_s - updated_s
        dispatch_s += done_s - matched_s
        dispatched += batch
        start_s = perf_counter()
        processes.send(worker, [request.prompt for request in batch])
        synchronisation_s += perf_counter() - start_s
    return _Round(_Seconds(synchronisation_s, update_s, match_s, dispatch_s), dispatched)


def _finish(
    dispatched: Iterable[Request], central: CentralDLPM, arrivals: TreeOfThoughtArrivals
) -> None:
    for request in dispatched:
        central.on_tokens(request.client, OUTPUT_TOKENS)
        central.on_finish(request)
        arrivals.on_finish(request)
