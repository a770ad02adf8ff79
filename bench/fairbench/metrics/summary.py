"""A run's summary, computed from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, isfinite, nextafter
from typing import Any

import numpy as np

from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, Notes, Part
from fairbench.metrics.censored_latency import Ranked, samples
from fairbench.metrics.client_summary import WellBehaved, chosen_of_clients, client_rows
from fairbench.metrics.contention import with_admissions
from fairbench.metrics.fairness import shares, tenant_shares
from fairbench.metrics.fairness_summary import fairness, over_time
from fairbench.metrics.goodput import goodput
from fairbench.metrics.memory import memory_summary
from fairbench.metrics.records import PLAIN, Facts, Requests, Window
from fairbench.metrics.sessions import session_summary
from fairbench.metrics.shown_percentiles import KEY, written_percentiles
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import (
    lost_as,
    request_latency_ms,
    sides_summary,
    time_to_finish,
    totals,
)
from fairbench.metrics.useful_service import useful_service
from fairbench.targets import NO_TARGETS


def summarize(tables: Tables, facts: Facts) -> dict[str, Any]:
    """Return every metric of a run by JSON key; undefined numbers are null.

    A run that stopped early ends the window. ``clients`` has a row for each client, ``notes`` the
    reason for each null by key (``clients.NAME.key`` inside ``clients``). ``censored`` lists the
    latencies that are lower bounds, to be printed as "> x s" and never rounded up.
    """
    notes, requests, programs = Notes(), tables.requests, tables.programs
    # Requests that end with the run are included: their last tokens come at the horizon.
    horizon_s = nextafter(facts.horizon_s, inf)
    window = Window(facts.window.start_s, min(facts.window.end_s, horizon_s))
    seen, cut = with_admissions(requests), replace(facts, window=window)
    got = shares(seen, programs, tables.service, facts, window)
    cohorts = Ranked(samples(requests, programs, facts))
    run: dict[str, Any] = totals(tables, facts, notes)
    lost = lost_as(run)
    good = WellBehaved(programs, cohorts, facts, lost)
    run |= notes.values(request_latency_ms(requests, facts.percentiles))
    for percent in (50, 90, 100):
        time_s = time_to_finish(programs, facts.window, percent)
        run |= notes.values({f"time_to_{percent}pct_s": time_s})
    run |= {"window_start_s": window.start_s, "window_end_s": window.end_s}
    fair = fairness(tables, facts, got, notes)
    windows, worst = over_time(replace(tables, requests=seen), facts, got, notes)
    run |= {**windows.run, **fair, **good.summary(notes)}
    rows = Part(clients=list(client_rows(tables, facts, got, cohorts, lost, notes)))
    computed, promised, useful = _computed(tables, cut, notes), Part(), Part()
    if any(client.targets != NO_TARGETS for client in facts.clients):
        promised = goodput(tables, cut, notes)
    tenants = tenant_shares(got, facts, notes)
    demoted = _demoted(requests, len(facts.clients))
    chosen = Part(_chosen(good, facts, notes), list(chosen_of_clients(cohorts, facts, lost, notes)))
    if any(client.padding != PLAIN for client in facts.clients):
        useful = Part(clients=useful_service(tables, cut, notes))
    for part in (computed, promised, demoted, chosen, tenants):
        run |= part.run
    parts = (rows, computed, promised, demoted, chosen, useful, windows, tenants)
    if facts.bound is None:
        notes.remark("bound_source", facts.bound_unavailable)
    of_some_runs = [Part(sides_summary(tables, facts, notes))]
    if tables.memory is not None:
        of_some_runs.append(memory_summary(tables, tables.memory, facts, notes))
    if facts.sessions:
        of_some_runs.append(session_summary(tables, facts, notes))
    summary = {
        **run,
        "clients": _together([*parts, *of_some_runs], len(facts.clients)),
        "worst_windows": worst,
        "censored": notes.censored,
        "notes": notes.reasons,
    }
    for part in of_some_runs:
        summary |= part.run
    return {key: _as_json(value) for key, value in summary.items()}


def _together(parts: Iterable[Part], clients: int) -> list[dict[str, Any]]:
    """Return one row per client, with the values of all parts in their order."""
    rows: list[dict[str, Any]] = [{} for _ in range(clients)]
    for part in parts:
        for row, more in zip(rows, part.clients, strict=False):
            row |= more
    return rows


def _demoted(requests: Requests, clients: int) -> Part:
    """Return the number of demoted requests; nothing without admission control."""
    if requests.demoted is None:
        return Part()
    counts = np.bincount(requests.client, weights=requests.demoted, minlength=clients)
    own = [{"demoted": int(count)} for count in counts.tolist()]
    return Part({"demoted": int(requests.demoted.sum())}, own)


def _chosen(good: WellBehaved, facts: Facts, notes: Notes) -> dict[str, Any]:
    """Return the user's percentiles of well-behaved clients; empty without a choice."""
    if not facts.percentiles:
        return {}
    return {KEY: written_percentiles(facts.percentiles)} | {
        f"victim_p{one}_s": good.percentile(one, notes) for one in facts.percentiles
    }


def _computed(tables: Tables, facts: Facts, notes: Notes) -> Part:
    """Return the metrics that catalogue entries compute, and clients' weights other than 1."""
    entries = CATALOGUE.items()
    run = {key: one.compute(tables, facts) for key, one in entries if one.compute}
    columns = {
        key: one.compute_clients(tables, facts).tolist()
        for key, one in entries
        if one.compute_clients
    }
    weighted = any(client.weight != 1 for client in facts.clients)
    notes.values(run)
    clients: list[Mapping[str, float]] = []
    for index, client in enumerate(facts.clients):
        own = {key: column[index] for key, column in columns.items()}
        notes.values(own, f"{CLIENTS}{client.name}.")
        clients.append({"weight": client.weight, **own} if weighted else own)
    return Part(run, clients)


def _as_json(value: Any) -> Any:
    """Return a value with null for every number that JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
