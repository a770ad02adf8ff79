"""An access log: its requests with recorded waits, and the part to replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from fairbench.metrics.floods import Flood
from fairbench.metrics.records import Floats
from fairbench.metrics.traffic import Traffic, traffic_of
from fairbench.records.requests import Requests
from fairbench.scoring.arrays import FIELDS, has_waits
from fairbench.scoring.records import Scored, scored_of
from fairbench.scoring.states import SIGNS
from fairbench.workloads.trace_workload import synthetic_parts
from fairbench.workloads.traces.change import cut
from fairbench.workloads.traces.read import (
    MAX_CLIENTS,
    TraceParams,
    check_params,
    read_with_requests,
)
from fairbench.workloads.traces.table import Table

MOST_REPLAYED = 12_000  # limit on requests: a longer replay takes too long
AROUND = 0.5  # part of a flood's length that is replayed before and after it
NO_WAITS, FIRST_TOKEN, RESPONSE = "", "time to first token", "response time"


@dataclass(frozen=True)
class AccessLog:
    """The requests of a file, as a ``table`` to replay and as ``traffic``.

    ``measured`` describes its waits, NO_WAITS if the file has none. ``offset_s`` is the time of the
    table's first request, by the clock of the traffic. ``nameless`` is true if no column has
    clients; ``cached`` names the column of cached tokens that are not replayed. ``counted`` is
    false for a log without token counts, whose requests count alike and cannot be replayed.
    ``remarks`` name records that were changed.
    """

    file: str
    format: str
    sha256: str
    synthetic: str
    table: Table
    traffic: Traffic
    measured: str
    offset_s: float
    nameless: str
    cached: str
    counted: bool
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences on the requests whose records were changed."""
        return [f"The log holds {one}." for one in self.remarks if one[:1].isdigit()]


def read_log(params: TraceParams) -> AccessLog:
    """Read a file as ``run --trace`` does, with waits as ``score`` finds them.

    Raises DataError or UsageError for a file that is no trace.
    """
    check_params(params)
    read, requests = read_with_requests(params, FIELDS, tuple(SIGNS))
    table = read.trace.table(0, inf)
    synthetic = "; ".join(synthetic_parts(params, read.trace))
    scored = None if synthetic or requests is None else _scored(params, requests, read.counted)
    if scored is not None:
        traffic = traffic_of(scored.clients, scored.requests, scored.horizon_s)
        answered = np.isfinite(traffic.wait_s)
        offset_s = float(traffic.arrival_s[answered].min()) if answered.any() else 0.0
        measured = FIRST_TOKEN
    else:
        response_s = table.end_s - table.arrival_s
        traffic = traffic_of_table(table, response_s)
        offset_s, measured = 0.0, RESPONSE if traffic.knows_waits else NO_WAITS
    traffic = traffic._replace(clock=read.clock if scored is None else scored.clock)
    return AccessLog(
        *(params.file, read.format, read.sha256, synthetic, table, traffic, measured, offset_s),
        *(read.nameless, read.cached, read.counted, () if scored is None else scored.remarks),
    )


def traffic_of_table(table: Table, wait_s: Floats) -> Traffic:
    """Return the requests of a trace as traffic."""
    tokens = (table.input_tokens + 2 * table.output_tokens).astype(np.float64)
    return Traffic(table.clients, table.client, table.arrival_s, tokens, wait_s)


def _scored(params: TraceParams, requests: Requests, counted: bool) -> Scored | None:
    """Return the file as records with first tokens; None if it has no such columns.

    Raises DataError for a record with an impossible value.
    """
    if not has_waits(requests.columns, counted=counted):
        return None
    return scored_of([requests], [Path(params.file)])


def part_to_replay(log: AccessLog, floods: Sequence[Flood]) -> tuple[Table, float]:
    """Return the requests to replay, and their start on the traffic's clock.

    The part is the whole log if it has at most ``MOST_REPLAYED`` requests; else the first flood
    with some time around it, or the busiest time. Above ``MAX_CLIENTS`` clients, those with the
    most requests are kept.
    """
    table = log.table
    start_s, end_s = 0.0, None
    if len(table) > MOST_REPLAYED:
        start_s, end_s = _busiest(table.arrival_s)
        if floods:
            around_s = AROUND * (floods[0].end_s - floods[0].start_s)
            start_s = max(0.0, floods[0].start_s - log.offset_s - around_s)
            end_s = floods[0].end_s - log.offset_s + around_s
    kept = table.arrival_s >= start_s
    first_s = float(table.arrival_s[kept][0])
    part = cut(table, start_s=start_s, end_s=end_s, head=MOST_REPLAYED)
    if len(part.clients) > MAX_CLIENTS:
        part = cut(part, largest=MAX_CLIENTS)
    return part, first_s + log.offset_s


def _busiest(arrival_s: Floats) -> tuple[float, float | None]:
    """Return the shortest time that contains as many requests as are replayed."""
    spans = arrival_s[MOST_REPLAYED - 1 :] - arrival_s[: len(arrival_s) - MOST_REPLAYED + 1]
    first = int(np.argmin(spans))
    return float(arrival_s[first]), float(np.nextafter(arrival_s[first] + spans[first], inf))
