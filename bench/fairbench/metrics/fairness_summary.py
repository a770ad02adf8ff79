"""The fairness part of a run's summary; field names are the JSON keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.bounds import (
    largest_input,
    largest_remaining_output,
    theorem_bound,
)
from fairbench.metrics.catalogue import CLIENTS, Notes
from fairbench.metrics.contention import with_admissions
from fairbench.metrics.fairness import Shares, all_active_window, jain
from fairbench.metrics.fairness_over_time import (
    WINDOWS_S,
    WorstWindow,
    backlogged_shares,
    least_by_client,
    timeline,
    worst_window,
)
from fairbench.metrics.gap import max_service_gap
from fairbench.metrics.metric import NO_SERVICE, NOT_ALL_ACTIVE, QUEUE_ESTIMATED, TOO_FEW_REQUESTS
from fairbench.metrics.records import Facts, Floats, Requests, Window
from fairbench.metrics.service import View, booked_in
from fairbench.metrics.tables import ServiceLog, Tables
from fairbench.metrics.totals import ratio
from fairbench.metrics.waiting import unqueued_share

DEMAND_LIMITED_ABOVE = 0.05  # of the window with nothing queued


@dataclass(frozen=True, slots=True)
class Fairness:
    """Fairness metrics. Rates are (weighted) tokens per second of the cluster in the window.

    ``queue_empty_share`` is the part of the window in which no request waited anywhere;
    ``demand_limited`` if that is above 5%, so that rates compare loads rather than schedulers.
    Where admissions are not known both are estimated. The index per entitlement and the least ratio
    are undefined where no client was short of service. ``jain_index_maxmin`` is what a perfect
    scheduler would have scored. The gap and its bound are in weighted tokens,
    ``service_gap_bound_s`` in seconds of cluster service; they are not confined to the window. The
    paper's window is that of [DLPM] §6.1. Jain's index, gap and bound are of service over the
    client's weight.
    """

    service_rate_tok_s: float
    actual_service_tok_s: float
    output_rate_tok_s: float
    extend_rate_tok_s: float
    queue_empty_share: float
    demand_limited: bool
    jain_index: float
    jain_index_actual: float
    jain_index_maxmin: float
    jain_index_entitlement: float
    min_entitlement_ratio: float
    max_service_gap: float
    service_gap_bound: float
    service_gap_bound_s: float
    service_rate_paper_window_tok_s: float
    jain_index_paper_window: float
    paper_window_start_s: float
    paper_window_end_s: float


def fairness(tables: Tables, facts: Facts, got: Shares, notes: Notes) -> Fairness:
    """Return the fairness metrics, given the shares in the window."""
    requests, log, weight = tables.requests, tables.service, facts.client_weights
    gap = max_service_gap(requests, log, facts)
    seen = with_admissions(requests)
    empty = unqueued_share(seen, facts.horizon_s, got.window)
    if seen is not requests:
        notes.remark("queue_empty_share", QUEUE_ESTIMATED)
    bound, bound_s = _bound(requests, log, facts, got, notes)
    output, extend = got.booked.output, got.booked.extend
    entitled, why = got.entitled_ratios, got.not_judged
    window = all_active_window(tables.programs, facts)
    paper = _client_service(log, facts, window) if window else np.empty(0)
    weighted = paper / weight if window else paper
    start, end = window or (float("nan"), float("nan"))
    value = notes.value
    return Fairness(
        service_rate_tok_s=_rate("service_rate_tok_s", float(got.service.sum()), got, notes),
        actual_service_tok_s=_rate("actual_service_tok_s", float(got.actual.sum()), got, notes),
        output_rate_tok_s=_rate("output_rate_tok_s", float(output.sum()), got, notes),
        extend_rate_tok_s=_rate("extend_rate_tok_s", float(extend.sum()), got, notes),
        queue_empty_share=value("queue_empty_share", empty),
        demand_limited=not empty <= DEMAND_LIMITED_ABOVE,
        jain_index=value("jain_index", jain(got.service / weight)),
        jain_index_actual=value("jain_index_actual", jain(got.actual / weight)),
        jain_index_maxmin=value("jain_index_maxmin", jain(got.entitlement / weight)),
        jain_index_entitlement=value("jain_index_entitlement", jain(entitled), why),
        min_entitlement_ratio=value(
            "min_entitlement_ratio", float(entitled.min()) if len(entitled) else float("nan"), why
        ),
        max_service_gap=value("max_service_gap", gap.tokens if gap else float("nan")),
        service_gap_bound=bound,
        service_gap_bound_s=bound_s,
        service_rate_paper_window_tok_s=value(
            "service_rate_paper_window_tok_s", ratio(float(paper.sum()), end - start)
        ),
        jain_index_paper_window=value(
            "jain_index_paper_window", jain(weighted), NO_SERVICE if window else NOT_ALL_ACTIVE
        ),
        paper_window_start_s=value("paper_window_start_s", start),
        paper_window_end_s=value("paper_window_end_s", end),
    )


def _client_service(log: ServiceLog, facts: Facts, window: Window) -> Floats:
    return booked_in(log, window, len(facts.clients)).seen(View.CLIENT, facts.weights)


def _rate(key: str, amount: float, got: Shares, notes: Notes) -> float:
    return notes.value(key, ratio(amount, got.window.length_s))


def _bound(
    requests: Requests, log: ServiceLog, facts: Facts, got: Shares, notes: Notes
) -> tuple[float, float]:
    """Return the theorem's bound in weighted tokens, and in seconds of the window's rate."""
    if facts.bound is None:
        undefined, why = float("nan"), facts.bound_unavailable
        notes.value("service_gap_bound", undefined, why)
        return undefined, notes.value("service_gap_bound_s", undefined, why)
    remaining = largest_remaining_output(requests, log, facts)
    longest = largest_input(requests)
    weights = facts.client_weights
    bound = theorem_bound(facts.bound, longest, facts.pool_tokens, weights, remaining)
    view = View.CLIENT if facts.bound.view == "client" else View.CHARGED
    service = got.booked.seen(view, facts.weights)
    seconds = ratio(bound * got.window.length_s, float(service.sum()))
    return bound, notes.value("service_gap_bound_s", seconds, NO_SERVICE)


BACKLOGGED = "backlogged_share"


class OverTime(NamedTuple):
    """Metrics of the run and of each client by JSON key, and rows of ``worst_windows``."""

    run: Mapping[str, float]
    clients: tuple[Mapping[str, float], ...]
    rows: list[dict[str, Any]]


def over_time(tables: Tables, facts: Facts, got: Shares, notes: Notes) -> OverTime:
    """Return fairness over time in the window of ``got``; undefined without a shortage.

    The parameters are those of ``fairness``, with known admissions in the requests of ``tables``.
    """
    clients = len(facts.clients)
    why = got.not_judged or TOO_FEW_REQUESTS
    columns = dict.fromkeys((*map(key_of, WINDOWS_S), BACKLOGGED), np.full(clients, np.nan))
    rows: list[dict[str, Any]] = []
    if clients and got.window.length_s and got.contended:
        line = timeline(tables.requests, tables.programs, tables.service, facts, got.window)
        columns = {key_of(length_s): least_by_client(line, length_s) for length_s in WINDOWS_S}
        columns[BACKLOGGED] = backlogged_shares(line)
        found = [worst_window(line, length_s) for length_s in WINDOWS_S]
        rows = [_row(one, facts) for one in found if one]
    run = {f"min_{key}": _least(column) for key, column in columns.items()}
    return OverTime(
        {key: notes.value(key, value, why) for key, value in run.items()},
        tuple(
            {
                key: notes.value(f"{CLIENTS}{client.name}.{key}", float(column[index]), why)
                for key, column in columns.items()
            }
            for index, client in enumerate(facts.clients)
        ),
        rows,
    )


def key_of(length_s: float) -> str:
    """Return the JSON key of a client's share in its worst window of this length."""
    return f"share_{length_s:.0f}s"


def _row(worst: WorstWindow, facts: Facts) -> dict[str, Any]:
    """Return a worst window with the names of its clients."""
    return {
        "start_s": worst.start_s,
        "end_s": worst.end_s,
        "share": worst.share,
        "client": facts.clients[worst.client].name,
        "heavy_client": facts.clients[worst.heavy].name if worst.heavy >= 0 else None,
    }


def _least(column: Floats) -> float:
    """Return the least number of a column, NaN if it has none."""
    known = column[~np.isnan(column)]
    return float(known.min()) if len(known) else float("nan")
