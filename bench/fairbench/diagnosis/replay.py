"""The log replayed in the simulator under several schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import experiment
from fairbench.diagnosis import FCFS
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure
from fairbench.execute.expected.check import machine_of
from fairbench.execute.expected.load import Call, gpu_s
from fairbench.execute.interruption import Interruption
from fairbench.files.times import Clock
from fairbench.metrics.records import Floats, Ints
from fairbench.metrics.traffic import Traffic
from fairbench.sim.run import simulate
from fairbench.workloads.trace_workload import plain_names
from fairbench.workloads.traces.facts import shared
from fairbench.workloads.traces.table import Table
from fairbench.workloads.traces.write import write_trace

USUAL_LOAD = 0.7  # part of the replicas' capacity, without the floods
SAMPLE = 3_000  # requests of which the GPU time is computed


@dataclass(frozen=True)
class Replay:
    """The common parts of all replays: the trace file, its flags, and heavy clients.

    ``flags`` are those of ``run``. ``start_s`` is the start of the replayed requests in the log's
    times, whose dates are those of ``clock``; ``names`` maps client names of the replay to names of
    the log.
    """

    file: Path
    flags: Mapping[str, Any]
    start_s: float
    names: Mapping[str, str]
    clock: Clock | None

    def spec(self, scheduler: str, dp: int) -> ExperimentSpec:
        """Return the experiment of a scheduler on ``dp`` replicas. Raises UsageError."""
        return experiment(self.all_flags(scheduler=scheduler, dp=dp), {})

    def all_flags(self, **more: Any) -> dict[str, Any]:
        """Return the flags of an experiment that replays the file."""
        return {"trace": str(self.file), **self.flags, **more}


class Replayed(NamedTuple):
    """A replay under one scheduler: its traffic, with waits, on the log's clock."""

    scheduler: str
    traffic: Traffic
    summary: dict[str, Any]


def prepared(
    folder: Path,
    part: Table,
    start_s: float,
    heavy: Sequence[str],
    flags: Mapping[str, Any],
    clock: Clock | None,
    name: str,
) -> Replay:
    """Write the requests to replay into a folder; return the common parts."""
    file = folder / f"{Path(name).name.partition('.')[0] or 'access'}.jsonl"
    write_trace(part, file)
    plain = plain_names(part.clients)
    names = dict(zip(plain, part.clients, strict=True))
    own = [name for name, original in names.items() if original in heavy]
    return Replay(file, {**flags, "misbehaving": own or None}, start_s, names, clock)


def usual_replicas(replay: Replay, part: Table, usual: Ints) -> int:
    """Return the fewest replicas that serve these rows at ``USUAL_LOAD``.

    The estimate uses the GPU time of a sample of the rows, with the hits of a cache that never
    evicts.

    Args:
        replay: Common parts of the replays.
        part: Requests to replay.
        usual: Row numbers in ``part`` of requests outside the floods, shape (n_usual,).
    """
    if not len(usual) or part.span_s <= 0:
        return 1
    machine = machine_of(replay.spec(FCFS, 1))
    hit_rate = shared(part)["infinite_hit_rate"]
    rows = usual[:: ceil(len(usual) / SAMPLE)]
    calls = [
        Call(size, int(hit_rate * size), output, output)
        for size, output in zip(
            part.input_tokens[rows].tolist(), part.output_tokens[rows].tolist(), strict=True
        )
    ]
    needed_s = gpu_s(calls, machine, cached=True) * len(usual) / len(rows)
    return max(1, ceil(needed_s / part.span_s / USUAL_LOAD))


def replayed(
    replay: Replay, schedulers: Sequence[str], dp: int, context: RunContext
) -> Iterator[Replayed]:
    """Simulate the log under each scheduler in parallel; yield the finished results.

    After a signal no more replays begin, and unfinished ones are left out. Raises UsageError for
    parts that cannot be simulated.
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
    """The columns of a run that a diagnosis reads, small enough to be sent between processes."""

    clients: list[str]
    client: Ints
    arrival_s: Floats
    tokens: Floats
    wait_s: Floats
    summary: dict[str, Any]


def _simulated(spec: ExperimentSpec, interrupted: Interruption) -> _Simulated:
    """Run one simulation in its own process, and keep only the waits."""
    result = simulate(spec, interrupted=interrupted)
    columns, clients = result.requests, result.requests["client"]
    arrival_s, first_s = columns["arrival_s"], columns["first_token_s"]
    end_s = result.summary["duration"]
    return _Simulated(
        clients.dictionary.to_pylist(),
        clients.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        arrival_s,
        (columns["input_tokens"] + 2 * columns["max_new_tokens"]).astype(np.float64),
        np.where(np.isnan(first_s), end_s, first_s) - arrival_s,
        result.summary,
    )


def _by_log(replay: Replay, scheduler: str, run: _Simulated) -> Replayed:
    order = np.argsort(run.arrival_s, kind="stable")
    names = tuple(replay.names[name] for name in run.clients)
    arrival_s = run.arrival_s[order] + replay.start_s
    traffic = Traffic(
        *(names, run.client[order], arrival_s, run.tokens[order], run.wait_s[order]), replay.clock
    )
    return Replayed(scheduler, traffic, run.summary)
