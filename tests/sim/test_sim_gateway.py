"""Test a gateway before the simulated cluster: its records and its requests."""

import numpy as np
import pyarrow as pa
import pytest

from fairbench.core import Request, Segment
from fairbench.results.run_facts import cluster_bound
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.routing.round_robin import RoundRobin
from fairbench.sim.alone import simulate_alone
from fairbench.sim.front import SimFleet
from fairbench.sim.run import Simulation, recover, simulate
from fairbench_rivals.gateway.thunderagent import ThunderAgent
from tests.invariants import check_all
from tests.sim.sim_helpers import small_spec

BUSY = {"num_programs": 3, "request_rate": 50.0}
TIGHT = {"concurrency__requests": 2}


def busy(gateway, saturation="concurrency", *, dp=2, flags=None, **settings):
    given = BUSY | {"gateway": gateway, "saturation": saturation} | (flags or {})
    return small_spec("fcfs", "chat", dp=dp, flags=given, **settings)


def columns(result):
    table = result.requests
    return {
        name: column.to_pylist() if isinstance(column, pa.Array) else np.asarray(column)
        for name, column in table.items()
    }


def assert_same(one, other):
    for name, column in one.items():
        assert np.array_equal(column, other[name], equal_nan=name.endswith("_s")), name


@pytest.mark.parametrize("gateway", ["fcfs", "drr", "program-aware", "dlpm"])
def test_every_request_is_served_and_waits_before_the_cluster(gateway):
    result = simulate(busy(gateway, **TIGHT))
    check_all(result)
    summary, table = result.summary, columns(result)
    assert (summary["gateway"], summary["saturation"]) == (gateway, "concurrency")
    assert summary["completed"] == summary["num_requests"] > 20
    held_s = table["routed_s"] - table["arrival_s"]
    assert (held_s >= 0).all()
    assert (table["admitted_s"] >= table["routed_s"]).all()
    assert held_s.max() > 1.0
    # At no time are more than 2 x 2 in flight.
    ups = [(at, 1) for at in table["routed_s"]] + [(at, -1) for at in table["finish_s"]]
    assert np.cumsum([step for _, step in sorted(ups)]).max() == 4


def test_the_same_seed_gives_the_same_records():
    one, other = (columns(simulate(busy("wfq", "utilization"))) for _ in range(2))
    assert_same(one, other)


def test_without_a_gateway_no_record_mentions_one():
    result = simulate(small_spec("fcfs", "chat"))
    assert "routed_s" not in result.requests
    assert "gateway" not in result.summary


def test_a_gateway_that_never_holds_requests_changes_nothing():
    plain = small_spec("fcfs", "chat", dp=2, flags=BUSY)
    one, other = columns(simulate(plain)), columns(simulate(busy("drr", "none")))
    assert np.array_equal(other.pop("routed_s"), other["arrival_s"])
    assert_same(one, other)


def test_requests_that_wait_too_long_are_refused_before_the_cluster():
    result = simulate(busy("drr", gateway__ttl_s=3.0, **TIGHT))
    check_all(result)
    table = columns(result)
    refused = np.array([status == "refused" for status in table["status"]])
    assert result.summary["refused"] == refused.sum() > 0
    assert (table["worker"][refused] == -1).all()
    assert np.isnan(table["routed_s"][refused]).all()
    assert (table["routed_s"] - table["arrival_s"])[~refused].max() <= 3.0


def test_utilization_is_late_and_lets_several_requests_through():
    limits = {"engine__max_running_requests": 4, "utilization__poll_s": 0.1}
    spec = busy("fcfs", "utilization", dp=1, **limits)
    made = Simulation(spec, spec.client_plans(), spec.source())
    worker = made.cluster.workers[0]
    longest = 0
    step = made.clock.step

    def watched():
        nonlocal longest
        step()
        longest = max(longest, len(worker.waiting))

    made.clock.step = watched
    assert made.run()
    table = columns(made.result(True, None))
    assert longest > 5  # the detector's limit, which the gateway sees 100 ms late
    held = table["routed_s"] > table["arrival_s"]
    assert held.any()
    polls = np.round(table["routed_s"][held] / 0.1, 9)
    assert np.allclose(polls, np.round(polls))  # held requests are released at polls


def test_a_gateway_before_vllm_serves_all_requests_too():
    result = simulate(busy("drr", flags={"engine": "vllm"}, **TIGHT))
    assert result.summary["completed"] == result.summary["num_requests"]
    assert (columns(result)["routed_s"] > columns(result)["arrival_s"]).any()


def test_the_longest_prefix_at_some_worker_matches_the_caches():
    spec = busy("fcfs", gateway__order="longest-prefix", **TIGHT)
    made = Simulation(spec, spec.client_plans(), spec.source())
    assert made.run()
    fleet = SimFleet(made.cluster.workers)
    cache = made.cluster.workers[1].cache
    prompt = (Segment("nobody's", 50), Segment("either", 50))
    request = Request(0, "client-0", 0, 0, prompt, 100, 10)
    assert fleet.matched_tokens(request) == 0
    cache.evict(cache.evictable)
    cache.allocate(50)
    cache.insert(cache.root, prompt, (0, 0), 50)
    assert fleet.matched_tokens(request) == 50


def test_a_killed_run_is_recovered_with_queued_requests(tmp_path):
    spec = busy("drr", **TIGHT)
    whole = columns(simulate(spec, folder=tmp_path))
    found = columns(recover(spec, tmp_path))
    assert np.array_equal(found["routed_s"], whole["routed_s"])


def test_clients_alone_have_no_gateway():
    flags = {"num_programs": 2}
    with_one = busy("drr", dp=1, flags=flags, concurrency__requests=1)
    assert simulate_alone(with_one) == simulate_alone(
        small_spec("fcfs", "chat", flags=BUSY | flags)
    )


def test_behind_a_gateway_no_bound_is_claimed():
    local, router = VTC(VTC.Params()), RoundRobin(RoundRobin.Params(), 1)
    assert cluster_bound(router, local, 1)[0] is not None
    bound, reason = cluster_bound(router, local, 1, "drr")
    assert bound is None
    assert reason == "drr queues requests, where vtc does not see them"


@pytest.mark.parametrize("engine", ["sglang", "vllm", "lightllm"])
def test_a_session_gate_sees_the_answers_that_stream(engine, monkeypatch):
    seen = []

    def tick(gate, now_s):
        gate.count_streams()
        seen.extend(gate._turns[one].streams[one] for one in gate._turns)
        return False

    monkeypatch.setattr(ThunderAgent, "tick", tick)
    monkeypatch.setattr(ThunderAgent, "tick_s", 0.05)
    result = simulate(busy("thunderagent", "none", flags={"engine": engine}))
    longest = max(columns(result)["output_tokens"])
    assert 0 < max(seen) <= longest
    assert {count % ThunderAgent.STREAM_STEP for count in seen} == {0}
