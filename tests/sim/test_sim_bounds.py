"""Test that runs with random settings never exceed the theorem's bound that is printed."""

import random

import pytest

from fairbench.schedulers.registry import split_pair
from fairbench.sim.run import simulate
from tests.sim.sim_helpers import small_spec

VTC = {
    "vtc__charge": ["extend", "input"],
    "vtc__input_weight": [1, 1, 1, 1, 1, 7],
    "vtc__output_weight": [2, 2, 2, 2, 2, 40],
    "vtc__lift": ["paper", "paper", "paper", "paper", "none"],
}
DLPM = {
    "dlpm__quantum": [50, 500, 2_000],
    "dlpm__no_room": ["stop", "skip"],
    "dlpm__refill": ["strict", "strict", "strict", "relaxed"],
    "dlpm__rejoin": ["keep", "keep", "min0", "paper_zero"],
    "dlpm__charge_recompute": [False, False, False, True],
    "dlpm__extend_weight": [1, 1, 1, 1, 1000],
    "dlpm__output_weight": [2, 2, 2, 2, 30],
}
D2LPM = {
    "d2lpm__worker_quantum": [500, 40_000],
    "d2lpm__charge": ["input", "uncached"],
    "d2lpm__insert_on_finish": [False, True],
}
ENGINE = {
    "engine__full_reservation": [False, True],
    "engine__max_running_requests": [8, 2_048],
    "engine__chunked_prefill_size": [512, 8_192],
}
# for clusters, only pairs for which there is a theorem
PAIRS = [("round-robin", "vtc", 1), ("round-robin", "dlpm", 1), ("least-loaded", "dlpm", 1)]
PAIRS += [("client-round-robin", "vtc", 2), ("d2lpm", "dlpm", 2), ("d2lpm", "dlpm", 1)]


def drawn(seed):
    """Draw an overloaded small experiment with random settings."""
    rng = random.Random(seed)
    router, local, dp = rng.choice(PAIRS)
    sets = (VTC if local == "vtc" else DLPM) | ENGINE | (D2LPM if router == "d2lpm" else {})
    chosen = {key: rng.choice(values) for key, values in sets.items()}
    flags = {"num_programs": 10, "request_rate": 100.0 * dp, "router": router, "local": local}
    workload, pool = rng.choice(["chat", "mix", "mix"]), rng.choice([9_000, 14_000])
    weights = rng.choice([{}, {"client-0": 3.0}, {"client-1": 0.3, "client-2": 1 / 7}])
    flags |= {"weights": weights}
    return small_spec("fcfs", workload, dp=dp, pool=pool, seed=seed, flags=flags, **chosen)


@pytest.mark.slow
def test_no_gap_exceeds_the_printed_bound():
    near = []
    for seed in range(30):
        spec = drawn(seed)
        summary = simulate(spec).summary
        bound, gap = summary["service_gap_bound"], summary["max_service_gap"]
        if bound is None:
            assert summary["notes"]["service_gap_bound"]
            assert summary["bound_source"] is None
        elif gap is not None:
            assert gap <= bound, (gap, bound, spec.settings)
            near.append(gap / bound)
    assert len(near) >= 6  # otherwise, the test would prove nothing
    assert max(near) > 0.1


def summary_of(scheduler, dp=1, **settings):
    flags = {"num_programs": 40, "request_rate": 20.0}
    return simulate(
        small_spec(scheduler, "mix", dp=dp, pool=10_000, flags=flags, **settings)
    ).summary


def test_a_scheduler_with_other_charges_has_no_bound_on_service():
    summary = summary_of("dlpm", dlpm__extend_weight=1000)
    assert summary["service_gap_bound"] is None
    assert summary["notes"]["service_gap_bound"] == (
        "dlpm charges 1000 a token of extend and 2 a token of output, while service counts 1 and 2"
    )
    usual = summary_of("dlpm")
    assert usual["max_service_gap"] <= usual["service_gap_bound"] < summary["max_service_gap"]


@pytest.mark.parametrize(
    ("scheduler", "source"),
    [
        ("d2lpm+vtc", None),
        ("client-round-robin+dlpm", None),
        ("client-round-robin+vtc", "VTC Theorem A.6"),
        ("d2lpm+dlpm", "D2LPM Theorem 5.1"),
        ("round-robin+dlpm", None),
    ],
)
def test_a_theorem_for_a_cluster_needs_a_router_and_a_local_scheduler(scheduler, source):
    router, local = split_pair(scheduler)
    flags = {"num_programs": 2, "request_rate": 4.0, "router": router, "local": local}
    summary = simulate(small_spec("fcfs", "chat", dp=2, flags=flags)).summary
    assert summary["bound_source"] == source
    if source is None:
        assert summary["notes"]["bound_source"] == (
            f"no theorem covers {local} behind {router} on several workers"
        )
