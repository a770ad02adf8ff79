"""The summary of a run: the metrics in the catalogue, computed from the run's records."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, chosen_metrics
from fairbench.metrics.fairness_over_time import worst_window_rows
from fairbench.metrics.goodput import padding_row
from fairbench.metrics.limit import why_no_limit
from fairbench.metrics.metric import Metric, Value
from fairbench.metrics.optional_entries import STALLS
from fairbench.metrics.reasons import NO_GAPS, Noted
from fairbench.metrics.recorded_gaps import RequestNames, cause_rows, causes_of
from fairbench.metrics.records import NO_MORE, PLAIN, Facts, Measurements
from fairbench.metrics.run_data import RunData
from fairbench.metrics.sessions import SESSION_WINDOW_S
from fairbench.metrics.shown_percentiles import KEY, written_percentiles
from fairbench.metrics.tables import Tables
from fairbench.metrics.waiting_causes import WaitingCauses


def summarize(tables: Tables, facts: Facts, measured: Measurements = NO_MORE) -> dict[str, Any]:
    """Return every metric of a run by JSON key; undefined numbers are null.

    If a run stopped early, its measurement window ends when the run stopped. ``clients`` has the
    metrics of all clients. ``notes`` gives the reason for each null, by key; the key of a client's
    metric is ``clients.NAME.key``. ``censored`` lists the keys of latencies that are lower bounds;
    such latencies are printed as "> x s".
    """
    run = RunData(tables, facts, measured)
    chosen = (one for one in chosen_metrics(facts.percentiles) if one.key not in CATALOGUE)
    values = _Values(run)
    for metric in (*CATALOGUE.values(), *chosen):
        if metric.when(run):
            values.add_metric(metric)
    summary = {
        **values.run,
        **_descriptions(run),
        "clients": _client_rows(run, values),
        "worst_windows": _worst_windows(run),
        "censored": values.censored,
        "notes": values.notes,
    }
    return {key: _as_json(value) for key, value in summary.items()}


def stall_summary(tables: Tables, facts: Facts, measured: Measurements) -> dict[str, Any]:
    """Return a summary that has only the stall metrics, with the keys that ``summarize`` uses."""
    run = RunData(tables, facts, measured)
    values = _Values(run)
    for metric in STALLS:
        if metric.when(run):
            values.add_metric(metric)
    clients = _client_rows(run, values)
    summary = {**values.run, **_stalls_of(run), "clients": clients, "notes": values.notes}
    return {key: _as_json(value) for key, value in summary.items()}


class _Values:
    def __init__(self, run: RunData) -> None:
        self._run = run
        self._prefixes = [f"{CLIENTS}{client.name}." for client in run.facts.clients]
        self.run: dict[str, float] = {}
        self.clients: list[dict[str, float]] = [{} for _ in run.facts.clients]
        self.notes: dict[str, str] = {}
        self.censored: list[str] = []
        if run.facts.bound is None:
            self.notes["bound_source"] = run.facts.bound_unavailable
        if reason := why_no_limit(run.tables, run.facts):
            self.notes["limit"] = reason
        if run.stalls is None:
            self.notes["stalls"] = NO_GAPS

    def add_metric(self, metric: Metric) -> None:
        if metric.compute:
            self.run[metric.key] = self._noted_value(metric.key, metric, metric.compute(self._run))
        if metric.by_client is None:
            return
        column = metric.by_client(self._run)
        if isinstance(column, np.ndarray):
            column = column.tolist()
        for prefix, row, value in zip(self._prefixes, self.clients, column, strict=True):
            if value is not None:
                row[metric.key] = self._noted_value(prefix, metric, value, inside=True)

    def _noted_value(
        self, key: str, metric: Metric, value: Value, *, inside: bool = False
    ) -> float:
        """Return a metric's value; record whether the value is a bound, or why it is undefined."""
        found = value if isinstance(value, Noted) else Noted(value)
        if inside and (found.bound or found.remark or not isfinite(found.value)):
            key += metric.key
        if found.bound:
            self.censored.append(key)
        if not isfinite(found.value):
            self.notes[key] = found.reason or metric.undefined
        elif found.remark:
            self.notes[key] = found.remark
        return found.value


def _worst_windows(run: RunData) -> list[dict[str, Any]]:
    if run.timeline is None:
        return []
    causes = WaitingCauses(run.seen, run.facts, run.window)
    return worst_window_rows(run.timeline, run.facts, causes)


def _descriptions(run: RunData) -> dict[str, Any]:
    """Return the fields of a summary that are not metrics, such as tenants and evictions."""
    found: dict[str, Any] = {}
    if run.facts.percentiles:
        found[KEY] = written_percentiles(run.facts.percentiles)
    if run.has_targets and (classes := run.goodput.classes(run.facts)):
        found["goodput_classes"] = classes
    if run.tenants:
        found["tenants"] = run.tenants.tenants
    if run.limit_values:
        found["limit_cause"] = run.limit_values["limit_cause"]
    found |= _stalls_of(run)
    if run.facts.sessions:
        found["worst_sessions"] = _worst_sessions(run)
    names = [client.name for client in run.facts.clients]
    if run.tables.memory is not None:
        found["evictions"] = [
            {"client": names[lost], "by": names[by], "tokens": float(run.evicted_tokens[lost, by])}
            for lost, by in np.argwhere(run.evicted_tokens > 0).tolist()
        ]
    return found


def _worst_sessions(run: RunData) -> list[dict[str, Any]]:
    own, shares, names = run.own_sessions, run.session_shares, run.facts.clients
    return [
        {
            "session": run.measured.session(int(run.programs.program_id[row])),
            "client": names[int(run.programs.client[row])].name,
            "turns": int(own.turns[row]),
            "longest_wait_s": float(own.longest_wait_s[row]),
            "wait_s": float(own.wait_s[row]),
            "slowdown": float(own.slowdown[row]),
            "turns_per_min": 60 * ratio(float(own.turns[row]), float(own.active_s[row])),
            **{key: float(shares[length_s][row]) for key, length_s in SHARES.items()},
        }
        for row in own.worst()
    ]


# ``SHARES`` maps each share of a session to the length (s) of sliding windows; 0 means the whole
# measurement window.
SHARES = {"share": 0.0, "share_60s": SESSION_WINDOW_S}


def _stalls_of(run: RunData) -> dict[str, Any]:
    """Return how long clients stall each other, and whose prompts caused the longest stalls."""
    found: dict[str, Any] = {}
    names = [client.name for client in run.facts.clients]
    if run.stalls is not None and run.stalls.matrix_s is not None:
        found["stalled"] = [
            {"client": names[own], "by": names[by], "s": float(run.stalls.matrix_s[own, by])}
            for own, by in np.argwhere(run.stalls.matrix_s > 0).tolist()
        ]
    if (gaps := run.measured.token_gaps) is not None:
        causes = causes_of(run.requests, gaps, run.facts)
        found["stall_causes"] = cause_rows(causes, run.requests, RequestNames(names, gaps.names))
    return found


def _client_rows(run: RunData, values: _Values) -> list[dict[str, Any]]:
    owners = run.tenants.owners if run.tenants else [""] * run.clients
    rows = []
    for client, metrics, owner in zip(run.facts.clients, values.clients, owners, strict=True):
        row = {"client": client.name, "misbehaving": client.misbehaving, **metrics}
        if client.targets:
            row["goodput_targets"] = str(client.targets)
        if client.targets and client.service_class:
            row["goodput_class"] = client.service_class
        if client.padding != PLAIN:
            row |= padding_row(client.padding._asdict())
        rows.append(row | ({"owner": owner} if owner else {}))
    return rows


def _as_json(value: Any) -> Any:
    """Return a value with null for each infinite number or NaN, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
