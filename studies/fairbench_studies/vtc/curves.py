"""Figures 3 to 14 of the VTC paper as numbers: panels of curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.records import Floats
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.artifact import (
    accumulated_difference,
    even_points,
    response_times,
    service_rates,
)
from fairbench_studies.vtc.experiments import ARENA, RPM_LIMITS

POINTS = 60  # points per curve
# ``ARENA_RANKS`` has the ranks, by number of requests, of the clients in the figures ([VTC] §5.3).
ARENA_RANKS = (12, 13, 25, 26)


class Curve(NamedTuple):
    """A line of a panel. Points with an undefined value have the ``value`` NaN."""

    name: str
    at: Floats
    value: Floats


class Panel(NamedTuple):
    """A panel of a figure, with a title, axis labels and curves."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]


Traces = Mapping[str, Trace]
TIME, SERVICE = "time (s)", "service rate (tokens/s)"
RESPONSE, DIFFERENCE = "time to first token (s)", "difference in service (tokens)"


def _end_s(trace: Trace) -> float:
    return float(trace.req_time_s.max())


def _clients(trace: Trace, values: Floats, at: Floats, chosen: Sequence[int]) -> list[Curve]:
    return [Curve(f"client {trace.clients[row]}", at, values[row]) for row in chosen]


def service_panel(trace: Trace, title: str) -> Panel:
    """Return a panel with each client's service rate over time."""
    at = even_points(_end_s(trace), POINTS)
    rows = range(len(trace.clients))
    return Panel(title, TIME, SERVICE, _clients(trace, service_rates(trace, at), at, rows))


def response_panel(trace: Trace, title: str, chosen: Sequence[int] | None = None) -> Panel:
    """Return a panel with the response times of all clients, or of the clients in ``chosen``."""
    at = even_points(_end_s(trace), POINTS)
    rows = range(len(trace.clients)) if chosen is None else chosen
    return Panel(title, TIME, RESPONSE, _clients(trace, response_times(trace, at), at, rows))


def difference_panel(traces: Mapping[str, Trace], title: str) -> Panel:
    """Return a panel with the accumulated service difference of clients in each run."""
    curves = []
    for name, trace in traces.items():
        at = even_points(_end_s(trace))
        curves.append(Curve(name, at, accumulated_difference(trace, at)))
    return Panel(title, TIME, DIFFERENCE, curves)


def output_rate(trace: Trace) -> float:
    """Return the output tokens per second over the whole run."""
    return float(trace.output_tokens[trace.finished].sum() / trace.duration_s)


def busiest(trace: Trace) -> list[int]:
    """Return the clients that the paper draws: two of middle rank, and the two busiest."""
    counts = [int(np.count_nonzero(trace.client == client)) for client in trace.clients]
    order = sorted(range(len(counts)), key=counts.__getitem__)
    return [order[rank] for rank in ARENA_RANKS if rank < len(order)]


def _overload(runs: Traces) -> list[Panel]:
    """Return the panels of the overload experiment, with MDRR as an additional scheduler."""
    named = {"VTC": "vtc", "FCFS": "fcfs", "MDRR": "mdrr"}
    traces = {shown: runs[f"vtc-overload {name}"] for shown, name in named.items()}
    return [difference_panel(traces, "VTC, FCFS and MDRR"), service_panel(traces["VTC"], "VTC")]


def _both(runs: Traces, workload: str) -> dict[str, Trace]:
    return {"VTC": runs[f"{workload} vtc"], "FCFS": runs[f"{workload} fcfs"]}


def _service_and(runs: Traces, workload: str, second: Callable[[Trace, str], Panel]) -> list[Panel]:
    trace = runs[f"{workload} vtc"]
    return [service_panel(trace, "VTC"), second(trace, "VTC")]


def _service_and_difference(runs: Traces, workload: str) -> list[Panel]:
    return [
        difference_panel(_both(runs, workload), "VTC and FCFS"),
        service_panel(runs[f"{workload} vtc"], "VTC"),
    ]


def _arena(runs: Traces) -> list[Panel]:
    rows = busiest(runs[f"{ARENA} vtc"])
    return [response_panel(runs[f"{ARENA} {one}"], one.upper(), rows) for one in ("fcfs", "vtc")]


def _limits(runs: Traces) -> list[Panel]:
    rows = busiest(runs[f"{ARENA} vtc"])
    return [
        response_panel(runs[f"{ARENA} rpm {limit}"], f"RPM {limit}", rows)
        for limit in RPM_LIMITS[:4]
    ]


def _throughput(runs: Traces) -> list[Panel]:
    at = np.array(RPM_LIMITS, dtype=float)
    limited = np.array([output_rate(runs[f"{ARENA} rpm {limit}"]) for limit in RPM_LIMITS])
    vtc = np.full(len(at), output_rate(runs[f"{ARENA} vtc"]))
    curves = [Curve("RPM", at, limited), Curve("VTC", at, vtc)]
    return [Panel("VTC and RPM", "requests a minute", "output tokens/s", curves)]


def _ablation(runs: Traces) -> list[Panel]:
    pools = {f"pool {pool}": runs[f"vtc-memory-pool {pool}"] for pool in ("35,000", "65,000")}
    lengths = {f"{length} tokens": runs[f"vtc-length {length}"] for length in (256, 512, 768)}
    return [
        difference_panel(pools, "512 tokens in and out"),
        difference_panel(lengths, "pool 35,000"),
    ]


FIGURES: Mapping[int, tuple[str, Callable[[Traces], list[Panel]]]] = {
    3: ("both overloaded", _overload),
    4: ("one overloaded", lambda runs: _service_and(runs, "vtc-proportional", response_panel)),
    5: ("on and off", lambda runs: _service_and(runs, "vtc-on-off-less", response_panel)),
    6: (
        "on and off, backlogged",
        lambda runs: _service_and(runs, "vtc-on-off-overload", response_panel),
    ),
    7: ("short and long", lambda runs: _service_and_difference(runs, "vtc-poisson-short-long")),
    8: (
        "long prompts and long outputs",
        lambda runs: _service_and_difference(runs, "vtc-poisson-short-long-2"),
    ),
    9: ("a rising rate", lambda runs: _service_and(runs, "vtc-increasing", response_panel)),
    10: (
        "a shift",
        lambda runs: [
            service_panel(runs[f"vtc-shift {one}"], one.upper()) for one in ("vtc", "lcf")
        ],
    ),
    11: ("Arena trace", _arena),
    12: ("Arena trace under rate limits", _limits),
    13: ("throughput under rate limits", _throughput),
    14: ("memory pool and request length", _ablation),
}
"""The subject of each figure and a function that returns its panels, by figure number."""


def panels_of(number: int, runs: Traces) -> list[Panel] | None:
    """Return the panels of a figure, or None if a run is missing."""
    try:
        return FIGURES[number][1](runs)
    except KeyError:
        return None


def rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return a table row for each point of each curve."""
    return [row for panel in panels for row in _rows(panel)]


def _rows(panel: Panel) -> Iterator[dict[str, Any]]:
    for curve in panel.curves:
        for at, value in zip(curve.at.tolist(), curve.value.tolist(), strict=True):
            shown = "" if np.isnan(value) else value
            yield {
                "panel": panel.title,
                "curve": curve.name,
                "x": panel.x,
                "at": at,
                "y": panel.y,
                "value": shown,
            }
