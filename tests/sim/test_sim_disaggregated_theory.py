"""Test the bound of a prefill worker (docs/appendix/theory.md) on its queue and log."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench.metrics.gap import max_service_gap
from fairbench.metrics.records import Requests, Service
from fairbench.metrics.waiting import Backlog
from fairbench.schedulers.registry import build_local
from fairbench.sim.run import simulate, simulate_tables
from tests.sim.disaggregated_helpers import small


def of_prefill_worker(spec, worker=0):
    """Return the requests, service and facts of one prefill worker, as if it were a cluster."""
    tables, facts = simulate_tables(spec)
    requests, service = tables.requests, Service(**_columns(tables.service))
    mine = requests.worker == worker
    arrived = requests.reserved_s if spec.settings["disaggregation.reserve"] == "arrival" else None
    if arrived is not None:
        mine &= ~np.isnan(arrived)
    columns = requests.to_columns()
    columns |= {"arrival_s": requests.arrival_s if arrived is None else arrived}
    columns |= {"worker": np.zeros(len(requests), np.int64), "decode_worker": None}
    table = Requests(**{name: None if c is None else c[mine] for name, c in columns.items()})
    bound = build_local(spec.local, spec.settings).service_bound()
    facts = replace(facts, workers=1, prefill_workers=None, bound=bound)
    return table, service.take(service.worker == worker), facts


def _columns(service):
    (part,) = service.parts()
    return part.to_columns()


def most_in_a_pass(requests):
    """Return K, the most prompts of one client that a worker has admitted and not yet computed."""
    found = [0]
    for client in np.unique(requests.client):
        mine = requests.take(requests.client == client)
        start, end = mine.admitted_s, mine.computed_s
        found += [int(((start <= at) & (end >= at)).sum()) for at in start]
    return max(found)


@pytest.mark.parametrize("reserve", ["arrival", "admission"])
@pytest.mark.parametrize("local", ["vtc", "dlpm"])
@pytest.mark.parametrize("seed", range(3))
def test_two_backlogged_clients_of_a_prefill_worker_differ_by_at_most_its_bound(
    local, reserve, seed
):
    spec = small(
        "chat", "fcfs", local=local, seed=seed, prefill=1, decode=3, request_rate=200.0,
        num_programs=8, disaggregation__reserve=reserve, dlpm__quantum=500,
    )  # fmt: skip
    requests, service, facts = of_prefill_worker(spec)
    gap = max_service_gap(Backlog.of_requests(requests, facts), service, facts)
    unit = requests.input_tokens.max() + 2 * most_in_a_pass(requests)
    assert 0 < gap.tokens <= 2 * (unit + facts.bound.quantum_tokens)


def test_the_whole_cluster_has_no_bound_and_the_reason_is_printed():
    summary = simulate(small("chat", "vtc")).summary
    assert (summary["service_gap_bound"], summary["bound_source"]) == (None, None)
    assert "prefill side alone" in summary["notes"]["service_gap_bound"]
