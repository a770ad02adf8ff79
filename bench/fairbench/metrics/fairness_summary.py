"""The fairness part of a run's summary, by JSON key."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairbench.metrics.bounds import largest_input, largest_remaining_output, theorem_bound
from fairbench.metrics.catalogue import CLIENTS, Notes, Part
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
from fairbench.metrics.records import Facts, Floats, Requests
from fairbench.metrics.service import View, booked_in
from fairbench.metrics.tables import ServiceLog, Tables
from fairbench.metrics.totals import ratio
from fairbench.metrics.waiting import Backlog, unqueued_share

DEMAND_LIMITED_ABOVE = 0.05  # part of the window without queued requests
NAN = float("nan")


def fairness(tables: Tables, facts: Facts, got: Shares, notes: Notes) -> dict[str, float]:
    """Return the fairness metrics, given the shares in the window.

    Rates are (weighted) tokens per second of the cluster. ``queue_empty_share`` is the part of the
    window in which no request waited anywhere; ``demand_limited`` if that is above 5%, so that
    rates compare loads rather than schedulers. If admissions are unknown, both are estimated. The
    gap and its bound cover the whole run, not only the window. The paper's window is the one of
    [DLPM] §6.1. Jain's index, gap and bound refer to service over the client's weight.
    """
    requests, log, weight = tables.requests, tables.service, facts.client_weights
    backlog = Backlog.of(requests, facts)
    gap = max_service_gap(backlog, log, facts) if backlog.shared else None
    seen = with_admissions(requests)
    empty = unqueued_share(seen, facts.horizon_s, got.window)
    if seen is not requests:
        notes.remark("queue_empty_share", QUEUE_ESTIMATED)
    bound = _bound(requests, log, facts, got, notes)
    entitled, why = got.entitled_ratios, got.not_judged
    window = all_active_window(tables.programs, facts)
    paper = np.empty(0)
    if window:
        paper = booked_in(log, window, len(facts.clients)).seen(View.CLIENT, facts.weights)
    start, end = window or (NAN, NAN)
    amounts = {
        "service_rate_tok_s": got.service,
        "actual_service_tok_s": got.actual,
        "output_rate_tok_s": got.booked.output,
        "extend_rate_tok_s": got.booked.extend,
    }
    length_s = got.window.length_s
    return {
        **notes.values({key: ratio(float(one.sum()), length_s) for key, one in amounts.items()}),
        **notes.values({"queue_empty_share": empty}),
        "demand_limited": not empty <= DEMAND_LIMITED_ABOVE,
        **notes.values(
            {
                "jain_index": jain(got.service / weight),
                "jain_index_actual": jain(got.actual / weight),
                "jain_index_maxmin": jain(got.entitlement / weight),
            }
        ),
        "jain_index_entitlement": notes.value("jain_index_entitlement", jain(entitled), why),
        "min_entitlement_ratio": notes.value("min_entitlement_ratio", _least(entitled), why),
        "max_service_gap": notes.value("max_service_gap", gap.tokens if gap else NAN),
        **bound,
        **notes.values({"service_rate_paper_window_tok_s": ratio(float(paper.sum()), end - start)}),
        "jain_index_paper_window": notes.value(
            "jain_index_paper_window",
            jain(paper / weight if window else paper),
            NO_SERVICE if window else NOT_ALL_ACTIVE,
        ),
        **notes.values({"paper_window_start_s": start, "paper_window_end_s": end}),
    }


def _bound(
    requests: Requests, log: ServiceLog, facts: Facts, got: Shares, notes: Notes
) -> dict[str, float]:
    """Return the theorem's bound in weighted tokens, and in seconds of the window's rate."""
    if facts.bound is None:
        keys, why = ("service_gap_bound", "service_gap_bound_s"), facts.bound_unavailable
        return {key: notes.value(key, NAN, why) for key in keys}
    remaining = largest_remaining_output(requests, log, facts)
    longest = largest_input(requests)
    weights = facts.client_weights
    bound = theorem_bound(facts.bound, longest, facts.pool_tokens, weights, remaining)
    view = View.CLIENT if facts.bound.view == "client" else View.CHARGED
    service = got.booked.seen(view, facts.weights)
    seconds = ratio(bound * got.window.length_s, float(service.sum()))
    key = "service_gap_bound_s"
    return {"service_gap_bound": bound, key: notes.value(key, seconds, NO_SERVICE)}


BACKLOGGED = "backlogged_share"


def over_time(
    tables: Tables, facts: Facts, got: Shares, notes: Notes
) -> tuple[Part, list[dict[str, Any]]]:
    """Return fairness over time in the window of ``got``, and the rows of ``worst_windows``.

    The requests of ``tables`` must have known admissions. Values are undefined if no client was
    short of service.
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
    run = {f"min_{key}": _least(column[~np.isnan(column)]) for key, column in columns.items()}
    run = {key: notes.value(key, value, why) for key, value in run.items()}
    of_clients = [
        {
            key: notes.value(f"{CLIENTS}{client.name}.{key}", float(column[index]), why)
            for key, column in columns.items()
        }
        for index, client in enumerate(facts.clients)
    ]
    return Part(run, of_clients), rows


def key_of(length_s: float) -> str:
    """Return the JSON key of a client's share in its worst window of this length."""
    return f"share_{length_s:.0f}s"


def _row(worst: WorstWindow, facts: Facts) -> dict[str, Any]:
    return {
        "start_s": worst.start_s,
        "end_s": worst.end_s,
        "share": worst.share,
        "client": facts.clients[worst.client].name,
        "heavy_client": facts.clients[worst.heavy].name if worst.heavy >= 0 else None,
    }


def _least(values: Floats) -> float:
    return float(values.min()) if len(values) else NAN
