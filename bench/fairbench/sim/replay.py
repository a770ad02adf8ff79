"""Replays runs that were measured on a real server: same arrivals, same lengths, simulated time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.errors import DataError
from fairbench.schedulers.base import LocalScheduler
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.lightllm import LightLLMLimits, LightLLMWorker
from fairbench.sim.sequence import NEVER, REFUSED, Sequence
from fairbench.sim.service_log import ServiceLog
from fairbench.sim.timing import TimingProfile

Numbers = NDArray[np.float64]
COLUMNS = (
    "client",
    "prompt_len",
    "output_len",
    "req_time",
    "first_token_latency",
    "request_latency",
)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests of one run, one entry each. Times in s; a refused request has NaN latencies."""

    client: Numbers
    prompt_len: Numbers
    output_len: Numbers
    req_time: Numbers
    first_token_latency: Numbers
    request_latency: Numbers

    @property
    def refused(self) -> int:
        """Requests that the rate limit refused."""
        return int(np.isnan(self.request_latency).sum())

    def __len__(self) -> int:
        return len(self.client)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """A measured run: ``name`` is the scheduler and scenario as its file is called."""

    name: str
    trace: Trace


def load_measured(path: Path) -> list[MeasuredRun]:
    """Measured runs from JSON lines (``.gz`` or not), one run a line.

    Each has ``path`` and equally long lists under the names of ``Trace``; a request latency of -1
    means refused. Raises DataError naming file, line and field.
    """
    runs = []
    for number, text in _lines(path):
        where = f"{path}, line {number}"
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not JSON: {error.msg}") from None
        runs.append(_measured(record, where))
    if not runs:
        raise DataError(f"{path}: no records")
    return sorted(runs, key=lambda run: run.name)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
        with opened as lines:
            yield from enumerate(lines, start=1)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read: {reason}") from None


def _measured(record: Any, where: str) -> MeasuredRun:
    if not isinstance(record, dict) or not isinstance(record.get("path"), str):
        raise DataError(f"{where}: missing field 'path'")
    columns: dict[str, Numbers] = {}
    for name in COLUMNS:
        try:
            columns[name] = np.asarray(record[name], dtype=np.float64)
        except KeyError:
            raise DataError(f"{where}: missing field {name!r}") from None
        except (TypeError, ValueError):
            raise DataError(f"{where}: field {name!r} must be a list of numbers") from None
        if columns[name].shape != columns["client"].shape:
            raise DataError(f"{where}: field {name!r} is not as long as 'client'")
    refused = columns["request_latency"] < 0
    for name in ("first_token_latency", "request_latency"):
        columns[name] = np.where(refused, np.nan, columns[name])
    parts = Path(record["path"]).with_suffix("").parts
    name = "/".join(parts[1:]).replace("all_results_", "")
    return MeasuredRun(name, Trace(**columns))


def replay(
    trace: Trace, scheduler: LocalScheduler, profile: TimingProfile, limits: LightLLMLimits
) -> Trace:
    """The trace with simulated latencies in place of the measured ones."""
    clock = Clock()
    clients = [str(int(client)) for client in np.unique(trace.client)]
    log = ServiceLog(clients)
    worker = LightLLMWorker(clock, scheduler, profile, limits, log)
    ended: dict[int, Sequence] = {}

    def done(sequence: Sequence) -> None:
        ended[sequence.request.request_id] = sequence

    def arrival(index: int) -> None:
        output = int(trace.output_len[index])
        tokens = int(trace.prompt_len[index]) + 1
        key, client = f"r{index}", str(int(trace.client[index]))
        request = Request(index, client, index, 0, (Segment(key, tokens),), tokens, output)
        worker.submit(Sequence(request, Segment(f"{key}/out", output), clock.now_ps, done))

    start_s = float(trace.req_time.min())
    for index, time_s in enumerate(trace.req_time):
        at_ps = round((float(time_s) - start_s) * PS_PER_S)
        clock.at(at_ps, ARRIVE, 0, partial(arrival, index))
    while clock.next_ps() is not None:
        clock.step()
    sequences = [ended[index] for index in range(len(trace))]
    return Trace(
        trace.client,
        trace.prompt_len,
        trace.output_len,
        trace.req_time,
        _latencies([s.first_token_ps for s in sequences], sequences),
        _latencies([s.finish_ps for s in sequences], sequences),
    )


def _latencies(times_ps: list[int], sequences: list[Sequence]) -> Numbers:
    return np.array(
        [
            np.nan if s.status == REFUSED or at == NEVER else (at - s.arrival_ps) / PS_PER_S
            for at, s in zip(times_ps, sequences, strict=True)
        ]
    )
