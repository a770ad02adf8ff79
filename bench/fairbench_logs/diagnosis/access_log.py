"""An access log: its requests, the recorded waits, and the part to replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.metrics.floods import Flood
from fairbench.metrics.reasons import NO_GAPS
from fairbench.metrics.records import Client, Facts, Floats, Measurements, Service, Window
from fairbench.metrics.summary import stall_summary
from fairbench.metrics.tables import FiledService, Tables
from fairbench.metrics.traffic import Traffic, traffic_of, weighted_tokens
from fairbench.workloads.trace_workload import synthetic_parts
from fairbench.workloads.traces.read import MAX_CLIENTS, TraceParams, check_params
from fairbench.workloads.traces.table import TraceTable
from fairbench_logs.scoring.arrays import FIELDS, has_waits
from fairbench_logs.scoring.records import Scored, scored_of
from fairbench_logs.scoring.states import SIGNS
from fairbench_logs.traces.change import cut_trace
from fairbench_logs.traces.read import read_with_requests

# At most 12,000 requests of a log are replayed, because a longer replay would take too long.
MOST_REPLAYED = 12_000
# A replay begins half a flood length before the flood, and ends half a flood length after the
# flood.
AROUND = 0.5

UNKNOWN_STALLS: Mapping[str, Any] = {"clients": [], "notes": {"stalls": NO_GAPS}}
NO_ROWS = Service.from_columns(dict.fromkeys(FiledService.column_types(), ()))

# Kinds of waits in a log: NO_WAITS (none recorded), time to first token, or response time.
NO_WAITS, FIRST_TOKEN, RESPONSE = "", "time to first token", "response time"


@dataclass(frozen=True)
class AccessLog:
    """The requests of a log, as a ``table`` for the replay and as ``traffic`` for the analysis.

    - ``format`` is the format of the log file, and ``sha256`` is the hash of the log file.
    - ``synthetic`` names the fields that the log lacks, so that fairbench made up their values.
    - ``measured`` names the recorded quantity that is used as a request's wait; NO_WAITS means
      that the log has no waits.
    - ``offset_s`` is the arrival time in ``traffic`` of the first request in ``table``, in seconds.
    - ``nameless`` is a message if the log has no column of client names; otherwise "".
    - ``cached`` names the log's column of cached tokens, if any; the replay ignores this column.
    - ``counted`` is False for a log without token counts, whose requests count as equally large and
      cannot be replayed.
    - ``remarks`` are sentences about records that were corrected.
    - ``stalls`` has the metrics of stalls (pauses in an answer), with the keys of
      ``stall_summary``.
    """

    file: str
    format: str
    sha256: str
    synthetic: str
    table: TraceTable
    traffic: Traffic
    measured: str
    offset_s: float
    nameless: str
    cached: str
    counted: bool
    remarks: tuple[str, ...] = ()
    stalls: Mapping[str, Any] = field(default_factory=lambda: UNKNOWN_STALLS)

    @property
    def notes(self) -> list[str]:
        """Sentences about requests whose records were corrected."""
        return [f"The log holds {one}." for one in self.remarks if one[:1].isdigit()]


def read_log(params: TraceParams) -> AccessLog:
    """Read the requests of an access log, and the waits that the log records.

    Raises DataError or UsageError for a file that is not a trace.
    """
    check_params(params)
    read, requests = read_with_requests(params, FIELDS, tuple(SIGNS))
    table = read.trace.table(0, inf)
    synthetic = "; ".join(synthetic_parts(params, read.trace))
    scored = None
    if not synthetic and requests is not None and has_waits(requests.columns, counted=read.counted):
        scored = scored_of([requests], [Path(params.file)])
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
        stalls=UNKNOWN_STALLS if scored is None else _stalls_in(scored),
    )


def _stalls_in(scored: Scored) -> dict[str, Any]:
    facts = Facts(
        tuple(Client(name, misbehaving=False) for name in scored.clients),
        Window(0.0, scored.horizon_s),
        *(scored.horizon_s, 1, 0),
    )
    tables = Tables(list(scored.clients), scored.requests, scored.programs, NO_ROWS)
    clock = {} if scored.clock is None else {"began": scored.clock.iso}
    found = stall_summary(tables, facts, Measurements(token_gaps=scored.token_gaps))
    return {"duration": scored.horizon_s, **clock, **found}


def traffic_of_table(table: TraceTable, wait_s: Floats) -> Traffic:
    """Return the requests of a trace as ``Traffic``, with the waits ``wait_s`` in seconds."""
    tokens = weighted_tokens(table.input_tokens, table.output_tokens)
    return Traffic(table.clients, table.client, table.arrival_s, tokens, wait_s)


def part_to_replay(log: AccessLog, floods: Sequence[Flood]) -> tuple[TraceTable, float]:
    """Return the requests to replay, and the log's time (s) of the first replayed request.

    If a log has more than ``MOST_REPLAYED`` requests, only the time around the first flood is
    replayed or, without a flood, the busiest period. If the log has more than ``MAX_CLIENTS``
    clients, only the clients with the most requests are replayed.
    """
    table = log.table
    start_s, end_s = 0.0, inf
    if len(table) > MOST_REPLAYED and floods:
        around_s = AROUND * (floods[0].end_s - floods[0].start_s)
        start_s = max(0.0, floods[0].start_s - log.offset_s - around_s)
        end_s = floods[0].end_s - log.offset_s + around_s
    elif len(table) > MOST_REPLAYED:
        # The busiest period is the shortest period with ``MOST_REPLAYED`` requests.
        last_s = table.arrival_s[MOST_REPLAYED - 1 :]
        spans = last_s - table.arrival_s[: len(last_s)]
        first = int(np.argmin(spans))
        start_s = float(table.arrival_s[first])
        end_s = float(np.nextafter(start_s + spans[first], inf))
    kept = table.arrival_s >= start_s
    first_s = float(table.arrival_s[kept][0])
    part = cut_trace(table, start_s=start_s, end_s=end_s, head=MOST_REPLAYED)
    if len(part.clients) > MAX_CLIENTS:
        part = cut_trace(part, largest=MAX_CLIENTS)
    return part, first_s + log.offset_s
