"""Test clients that run alone on a part of the cluster."""

from dataclasses import replace

import pytest

from fairbench.config.resolve import resolve
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.timing import slowed
from fairbench.metrics.records import Window
from fairbench.sim.alone import simulate_alone
from fairbench.sim.run import Simulation, simulate

TINY = {"workload": "chat", "num_programs": 4}


@pytest.mark.parametrize("profile_id", profile_ids())
def test_a_slowed_profile_takes_several_times_as_long(profile_id):
    profile = load_profile(profile_id)
    slow = slowed(profile, 3)
    chunks = [(0, 700), (2_000, 5), (16, 16)]
    assert slow.prefill_ps(chunks) == pytest.approx(3 * profile.prefill_ps(chunks), rel=1e-9)
    # Coefficients are whole picoseconds, and some GPUs need only a few per token of context.
    assert slow.decode_ps(40, 9_000) == pytest.approx(3 * profile.decode_ps(40, 9_000), rel=1e-5)
    assert slow.pool.host_gb_s == profile.pool.host_gb_s / 3
    assert replace(slow.pool, host_gb_s=profile.pool.host_gb_s) == profile.pool


@pytest.mark.slow
def test_a_slowed_cluster_takes_several_times_as_long():
    # With one program, calls wait only for the engine and for think times, which stay the same.
    spec = resolve({"workload": "tot", "num_programs": 1, "clients": 1, "scenario": "none"})
    (plan,) = spec.client_plans()

    def latency_s(slowdown):
        simulation = Simulation(spec, (plan,), None, slowdown=slowdown)
        assert simulation.run()
        log = simulation.result(True, None).summary
        return log["clients"][0]["p50_s"]

    assert latency_s(4) == pytest.approx(4 * latency_s(1), rel=1e-6)


def test_the_only_client_of_a_cluster_is_already_alone():
    flags = {"clients": 1, "scenario": "none", "num_programs": 30, "scheduler": "lpm"}
    spec = resolve({"workload": "judge", **flags})
    (row,) = simulate_alone(spec)
    (client,) = simulate(spec).summary["clients"]
    shown = ("client", "latency_n", "p50_s", "p95_s", "p99_s")
    assert {key: row[key] for key in shown} == {key: client[key] for key in shown}
    assert row["censored"] == []


def test_one_of_three_clients_alone_takes_three_times_as_long():
    # With one program, calls wait only for the engine.
    flags = {"workload": "judge", "scenario": "none", "num_programs": 1}
    whole, part = (simulate_alone(resolve(flags | {"clients": count}))[0] for count in (1, 3))
    assert part["client"] == whole["client"]
    assert part["p50_s"] == pytest.approx(3 * whole["p50_s"], rel=1e-6)


def test_heavy_clients_have_no_row_and_the_scheduler_does_not_matter():
    rows = simulate_alone(resolve({**TINY, "scheduler": "vtc"}))
    assert [row["client"] for row in rows] == ["client-0", "client-1"]
    assert rows == simulate_alone(resolve({**TINY, "scheduler": "preble"}))


@pytest.mark.parametrize("flags", [{}, {"duration_s": 30.0, "num_programs": None}])
def test_the_cohort_is_that_of_the_shared_run(flags):
    kept = {key: value for key, value in {**TINY, **flags, "dp": 2}.items() if value is not None}
    spec = resolve(kept)
    shared = {one["client"]: one["latency_n"] for one in simulate(spec).summary["clients"]}
    for row in simulate_alone(spec):
        assert row["latency_n"] == shared[row["client"]] > 0


def test_the_window_ends_with_the_last_arrival_of_any_client(monkeypatch):
    # Half of the arrivals are after twice the warm-up, so the window is not the whole run.
    flags = {"workload": "chat", "num_programs": 60, "warmup_s": 5.0, "request_rate": 1.0}
    spec = resolve(flags)
    windows = []

    def noted(requests, programs, facts):
        windows.append(facts.window)
        return original(requests, programs, facts)

    from fairbench.sim import alone

    original = alone.samples
    monkeypatch.setattr(alone, "samples", noted)
    simulate_alone(spec)
    summary = simulate(spec).summary
    expected = Window(summary["window_start_s"], summary["window_end_s"])
    assert expected.start_s == 5.0
    assert windows == [expected, expected]


def test_each_percentile_is_the_better_of_both_routers(monkeypatch):
    from fairbench.sim import alone

    spec = resolve({"workload": "long-qa", "num_programs": 6, "dp": 4})
    best = simulate_alone(spec)
    each = []
    for router in alone.ROUTERS:
        monkeypatch.setattr(alone, "ROUTERS", (router,))
        each.append(simulate_alone(spec))
    assert each[0] != each[1]
    for row, *single in zip(best, *each, strict=True):
        for key in ("p50_s", "p95_s", "p99_s"):
            assert row[key] == min(one[key] for one in single)


def test_a_client_that_does_not_fit_its_part_has_no_latency():
    # a third of the pool, which holds no document
    spec = resolve({"workload": "long-qa", "num_programs": 2}, {"engine.max_total_tokens": 45_000})
    rows = simulate_alone(spec)
    assert [row["p50_s"] for row in rows] == [None, None]
    assert simulate(spec).summary["clients"][1]["p50_s"] is not None


def test_an_interrupted_simulation_stops():
    assert simulate_alone(resolve(TINY), interrupted=lambda: True) == []
