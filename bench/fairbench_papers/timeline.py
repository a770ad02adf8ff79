"""Timelines: the service of clients over time, from the tables of a stored run."""

from __future__ import annotations

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.records import Floats
from fairbench.metrics.service import View, cumulative
from fairbench.results.run_facts import read_service
from fairbench.results.store import StoredRun


def client_names(run: StoredRun) -> list[str]:
    """Return the names of a run's clients, including clients that received no service."""
    return [client["client"] for client in run.summary["clients"]]


def service_rates(run: StoredRun, view: View, edges_s: Floats) -> Floats:
    """Return each client's service in tokens per second, for each interval between ``edges_s``."""
    clients = len(client_names(run))
    booked = cumulative(read_service(run), view, edges_s, clients, ServiceWeights())
    rates: Floats = np.diff(booked, axis=1) / np.diff(edges_s)
    return rates


def response_times(run: StoredRun, edges_s: Floats) -> Floats:
    """Return the mean response time (s) of the requests that arrived in each interval.

    The result has the shape (clients, intervals); NaN marks intervals without a finished request.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table, names = run.table("requests"), client_names(run)
    clients = pc.index_in(table["client"].cast(pa.string()), value_set=pa.array(names))
    arrival_s = table["arrival_s"].to_numpy()
    response_s = table["finish_s"].to_numpy() - arrival_s
    served = ~np.isnan(response_s) & (arrival_s < edges_s[-1])
    bins = len(edges_s) - 1
    interval = np.searchsorted(edges_s, arrival_s[served], "right") - 1
    cell = clients.to_numpy().astype(np.int64)[served] * bins + interval
    sums = np.bincount(cell, weights=response_s[served], minlength=len(names) * bins)
    counts = np.bincount(cell, minlength=len(names) * bins)
    means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    by_client: Floats = means.reshape(len(names), bins)
    return by_client


def busy_share(run: StoredRun, workers: int, edges_s: Floats) -> Floats:
    """Return the busy fraction of the workers' time in each interval, shape (intervals,)."""
    log = read_service(run)
    # The service log has one row for each client in a batch, but the batch's time counts only once.
    stretch = np.unique(np.column_stack([log.worker, log.start_s, log.end_s]), axis=0)
    _, start_s, end_s = stretch.T
    busy_s = np.array([(np.minimum(end_s, t) - np.minimum(start_s, t)).sum() for t in edges_s])
    shares: Floats = np.diff(busy_s) / (np.diff(edges_s) * workers)
    return shares
