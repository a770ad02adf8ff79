"""Replays of a log in the simulator, under several schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbench.api.logs import FCFS
from fairbench.config import ExperimentSpec
from fairbench.config.resolve import experiment
from fairbench.execute.tasks import Failure, Interruption, RunContext
from fairbench.execute.workload_check import MeanCall, gpu_s, machine_of
from fairbench.files.times import ClockTime
from fairbench.metrics.records import Floats, Ints
from fairbench.metrics.traffic import Traffic, weighted_tokens
from fairbench.sim.run import simulate
from fairbench.workloads.trace_workload import plain_names
from fairbench.workloads.traces.table import TraceTable
from fairbench_logs.traces.change import write_trace
from fairbench_logs.traces.facts import shared_prefixes

# The load outside floods may use at most 70% of the replicas' capacity.
USUAL_LOAD = 0.7
SAMPLE = 3_000  # maximum number of requests from which the GPU time is estimated


@dataclass(frozen=True)
class LogReplay:
    """The data that all replays of a log share.

    - ``file`` is the trace to replay, and ``flags`` are flags of ``fairbench run``.
    - ``start_s`` is the first arrival of a replayed request, in seconds from the start of the log.
    - ``names`` maps the names of clients in the replay to the names in the log.
    - ``clock`` converts the log's times to timestamps; None means that the log has no timestamps.
    """

    file: Path
    flags: Mapping[str, Any]
    start_s: float
    names: Mapping[str, str]
    clock: ClockTime | None

    def spec(self, scheduler: str, dp: int) -> ExperimentSpec:
        """Return the experiment that replays the log under a scheduler on ``dp`` replicas.

        Raises UsageError if the flags contradict each other.
        """
        return experiment(self.all_flags(scheduler=scheduler, dp=dp), {})

    def all_flags(self, **more: Any) -> dict[str, Any]:
        """Return the flags of an experiment that replays the log, including the flags ``more``."""
        return {"trace": str(self.file), **self.flags, **more}


class ReplayedRun(NamedTuple):
    """The result of a replay: the scheduler, the summary, and the traffic at the log's times."""

    scheduler: str
    traffic: Traffic
    summary: dict[str, Any]


def prepared(
    folder: Path,
    part: TraceTable,
    start_s: float,
    heavy: Sequence[str],
    flags: Mapping[str, Any],
    clock: ClockTime | None,
    name: str,
) -> LogReplay:
    """Write the requests to replay to a trace file, and return the data common to all replays.

    Args:
        folder: The folder in which the trace file is written.
        part: The logged requests that are replayed.
        start_s: The first arrival of the requests to replay, in seconds from the start of the log.
        heavy: The names of the heavy clients in the log.
        flags: Flags of ``fairbench run`` for the replay.
        clock: The conversion of times to the timestamps of the log, or None.
        name: Name of the log file, which tables show.
    """
    file = folder / f"{Path(name).name.partition('.')[0] or 'access'}.jsonl"
    write_trace(part, file)
    plain = plain_names(part.clients)
    names = dict(zip(plain, part.clients, strict=True))
    own = [name for name, original in names.items() if original in heavy]
    return LogReplay(file, {**flags, "misbehaving": own or None}, start_s, names, clock)


def usual_replicas(replay: LogReplay, part: TraceTable, usual: Ints) -> int:
    """Return the smallest number of replicas that the requests outside floods do not saturate.

    Requests outside floods demand at most the fraction ``USUAL_LOAD`` of the replicas' GPU time.
    The demanded GPU time is estimated from a sample of requests and from the hit rate of a cache
    that never evicts.

    Args:
        replay: The flags and the trace file that all replays of the log share.
        part: The logged requests that are replayed.
        usual: The indices in ``part`` of the requests outside floods, shape (n_usual,).
    """
    if not len(usual) or part.span_s <= 0:
        return 1
    machine = machine_of(replay.spec(FCFS, 1))
    hit_rate = shared_prefixes(part)["infinite_hit_rate"]
    rows = usual[:: ceil(len(usual) / SAMPLE)]
    calls = [
        MeanCall(size, int(hit_rate * size), output, output)
        for size, output in zip(
            part.input_tokens[rows].tolist(), part.output_tokens[rows].tolist(), strict=True
        )
    ]
    needed_s = gpu_s(calls, machine, cached=True) * len(usual) / len(rows)
    return max(1, ceil(needed_s / part.span_s / USUAL_LOAD))


def replayed(
    replay: LogReplay, schedulers: Sequence[str], dp: int, context: RunContext
) -> Iterator[ReplayedRun]:
    """Simulate the log under each scheduler in parallel, and yield each finished replay.

    After a signal such as Ctrl-C, no more replays start, and unfinished replays are left out.
    Raises UsageError for a part of the log that cannot be simulated.
    """
    specs = [replay.spec(scheduler, dp) for scheduler in schedulers]
    tasks = [partial(_simulated, spec) for spec in specs]
    for number, (index, result) in enumerate(context.run(tasks), start=1):
        if isinstance(result, Failure):
            if not context.interrupted():
                raise result.error
        elif result.summary["complete"]:
            scheduler = schedulers[index]
            context.progress.ended(f"replayed under {scheduler}", number, len(tasks))
            yield _by_log(replay, scheduler, result)


class _Simulated(NamedTuple):
    """Per-request arrays and the summary of a simulated run; a worker process returns them."""

    clients: list[str]
    client: Ints
    arrival_s: Floats
    tokens: Floats
    wait_s: Floats
    summary: dict[str, Any]


def _simulated(spec: ExperimentSpec, interrupted: Interruption) -> _Simulated:
    result = simulate(spec, interrupted=interrupted)
    columns, clients = result.requests, result.requests["client"]
    arrival_s, first_s = columns["arrival_s"], columns["first_token_s"]
    end_s = result.summary["duration"]
    return _Simulated(
        clients.dictionary.to_pylist(),
        clients.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        arrival_s,
        weighted_tokens(columns["input_tokens"], columns["max_new_tokens"]),
        np.where(np.isnan(first_s), end_s, first_s) - arrival_s,
        result.summary,
    )


def _by_log(replay: LogReplay, scheduler: str, run: _Simulated) -> ReplayedRun:
    order = np.argsort(run.arrival_s, kind="stable")
    names = tuple(replay.names[name] for name in run.clients)
    arrival_s = run.arrival_s[order] + replay.start_s
    traffic = Traffic(
        *(names, run.client[order], arrival_s, run.tokens[order], run.wait_s[order]), replay.clock
    )
    return ReplayedRun(scheduler, traffic, run.summary)
