"""Test that one pass over the tables gives the same result as a pass for each client."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench.metrics.censored_latency import samples
from fairbench.metrics.fairness import all_active_window
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED, Requests, Window
from fairbench.metrics.waiting import EVERYWHERE, Backlog, merged, waits
from tests.metrics.gap_pairwise import intersection
from tests.metrics.metrics_helpers import (
    NAN,
    backlog_of,
    facts,
    log,
    programs,
    requests,
    summary_of,
)

CLIENTS, WORKERS = 7, 3


def window_one_by_one(table, known):
    starts, ends = [], []
    for client in range(len(known.clients)):
        own = table.take(table.client == client)
        done = own.finish_s[own.status == FINISHED]
        pending = np.any(own.status == UNFINISHED)
        if not pending and done.size == 0:
            return None
        starts.append(own.arrival_s.min())
        ends.append(known.horizon_s if pending else done.max())
    return Window(max(starts), min(ends)) if max(starts) < min(ends) else None


def backlog_one_by_one(table, known, client):
    queued = waits(table, known.horizon_s)
    common = None
    for worker in range(known.workers):
        here = (queued.client == client) & np.isin(queued.worker, (worker, EVERYWHERE))
        queue = merged(queued.start[here], queued.end[here])
        common = queue if common is None else intersection(common, queue)
    return common


@pytest.mark.parametrize("seed", range(40))
def test_the_window_in_which_all_are_active_equals_one_pass_per_client(seed):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(rng.integers(5, 40)):
        status, arrival = rng.choice(3, p=[0.8, 0.1, 0.1]), rng.uniform(0, 50)
        finish = arrival + rng.exponential(30) if status == FINISHED else NAN
        client = rng.integers(CLIENTS)
        rows.append({"client": client, "arrival_s": arrival, "finish_s": finish, "status": status})
    known = facts(clients=CLIENTS)
    assert all_active_window(programs(*rows), known) == window_one_by_one(programs(*rows), known)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_backlogs_of_all_clients_equal_one_pass_per_client(seed, held):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(rng.integers(10, 120)):
        arrival = rng.uniform(0, 50)
        times = {"arrival_s": arrival, "admitted_s": arrival + rng.exponential(20)}
        rows.append({"client": rng.integers(CLIENTS), "worker": rng.integers(WORKERS)} | times)
    table, known = requests(*rows), facts(clients=CLIENTS, workers=WORKERS)
    if held:
        routed_s = table.arrival_s + rng.exponential(5, len(table))
        table = Requests.from_columns(table.to_columns() | {"routed_s": routed_s})
    every = Backlog.of_requests(table, known)
    for client in range(CLIENTS):
        found = backlog_of(every, client)
        expected = backlog_one_by_one(table, known, client)
        assert [column.tolist() for column in found] == [column.tolist() for column in expected]


def in_window(table, known, client):
    window = known.window
    inside = (table.arrival_s >= window.start_s) & (table.arrival_s < window.end_s)
    return table.take(inside & (table.client == client))


def programs_one_by_one(calls, table, known, client):
    """Return each program's duration, its least duration, and the number of refused programs."""
    own = in_window(table, known, client)
    latency_s = own.finish_s - own.arrival_s
    more_than_s = known.horizon_s - own.arrival_s[own.status == UNFINISHED]
    return latency_s[own.status == FINISHED], more_than_s, np.sum(own.status == REFUSED)


def first_tokens_one_by_one(calls, table, known, client):
    """Return the times to first token of the programs' requests, sent or not."""
    programs = in_window(table, known, client)
    own = calls.take(np.isin(calls.program_id, programs.program_id))
    answered = ~np.isnan(own.first_token_s)
    refused = ~answered & (own.status == REFUSED)
    cut = programs.take(programs.status == UNFINISHED)
    unmade = np.maximum(0, cut.demand_requests - cut.requests).sum()
    more_than_s = known.horizon_s - own.arrival_s[~answered & ~refused]
    ttft_s = (own.first_token_s - own.arrival_s)[answered]
    return ttft_s, np.append(more_than_s, np.zeros(unmade)), np.sum(refused)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("latency", ["ttft", "program"])
@pytest.mark.parametrize("seed", range(20))
def test_the_latencies_of_all_clients_equal_one_pass_per_client(seed, latency, repeated):
    rng = np.random.default_rng(seed)
    ids = rng.integers(12, size=20) if repeated else rng.permutation(30)[: rng.integers(5, 25)]
    own = [
        {"program_id": one, "client": rng.integers(CLIENTS), "arrival_s": rng.uniform(0, 120)}
        | {"status": rng.choice(3), "demand_requests": 4, "requests": rng.integers(1, 4)}
        for one in ids
    ]
    calls = [
        {"program_id": rng.integers(30), "client": rng.integers(CLIENTS), "status": rng.choice(3)}
        | {"arrival_s": rng.uniform(0, 50), "first_token_s": rng.choice([NAN, 60.0])}
        for _ in range(100)
    ]
    tables, known = (requests(*calls), programs(*own)), facts(clients=CLIENTS, latency=latency)
    for client, found in enumerate(samples(*tables, known)):
        one_by_one = first_tokens_one_by_one if latency == "ttft" else programs_one_by_one
        known_s, more_than_s, refused = one_by_one(*tables, known, client)
        assert found.known_s.tobytes() == known_s.tobytes()
        assert found.more_than_s.tobytes() == more_than_s.tobytes()
        assert found.refused == refused


def rows_one_by_one(tables, known, client):
    """Return programs, requests, hit rate, GPU time and demotions of one client."""
    calls, own, log = tables
    mine = calls.client == client
    admitted = calls.take(mine & ~np.isnan(calls.admitted_s))
    cached, extended = admitted.cached_tokens.sum(), admitted.extend_tokens.sum()
    rate = cached / (cached + extended) if cached + extended else None
    gpu_s = float(log.gpu_s[log.client == client].sum())
    demoted = calls.demoted[mine].sum()
    return np.count_nonzero(own.client == client), np.count_nonzero(mine), rate, gpu_s, demoted


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_of_all_clients_equal_one_pass_per_client(seed):
    rng = np.random.default_rng(seed)
    calls = requests(
        *(
            {"client": rng.integers(CLIENTS), "admitted_s": rng.choice([NAN, 5.0])}
            | {"cached_tokens": rng.integers(3), "extend_tokens": rng.integers(3)}
            for _ in range(rng.integers(1, 30))
        )
    )
    calls = replace(calls, demoted=rng.integers(2, size=len(calls)))
    own = programs(*({"client": rng.integers(CLIENTS)} for _ in range(rng.integers(1, 12))))
    rows = log(*({"client": rng.integers(CLIENTS)} for _ in range(rng.integers(1, 200))))
    rows = replace(rows, gpu_s=rng.exponential(size=len(rows)))
    known = facts(clients=CLIENTS)
    found = summary_of(calls, own, rows, known)["clients"]
    for client, row in enumerate(found):
        keys = ("programs", "requests", "cache_hit_rate", "gpu_s", "demoted")
        assert tuple(map(row.get, keys)) == rows_one_by_one((calls, own, rows), known, client)
