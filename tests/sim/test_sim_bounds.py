"""A bound beside a run is the theorem's: settings drawn at random never exceed one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_helpers import small_spec

from fairbench.schedulers.registry import split_pair
from fairbench.sim.run import simulate

VTC = {
    "vtc__charge": st.sampled_from(["extend", "input"]),
    "vtc__input_weight": st.sampled_from([1, 1, 1, 7]),
    "vtc__output_weight": st.sampled_from([2, 2, 2, 40]),
    "vtc__lift": st.sampled_from(["paper", "paper", "none"]),
    "vtc__form": st.sampled_from(["paper", "paper", "artifact"]),
    "vtc__weights": st.sampled_from([{}, {}, {"client-0": 3.0}]),
}
DLPM = {
    "dlpm__quantum": st.sampled_from([50, 2_000, 10_000]),
    "dlpm__no_room": st.sampled_from(["stop", "skip"]),
    "dlpm__refill": st.sampled_from(["strict", "strict", "relaxed"]),
    "dlpm__rejoin": st.sampled_from(["keep", "min0", "paper_zero"]),
    "dlpm__charge_recompute": st.booleans(),
    "dlpm__extend_weight": st.sampled_from([1, 1, 1, 1000]),
    "dlpm__output_weight": st.sampled_from([2, 2, 2, 30]),
}
ENGINE = {
    "engine__full_reservation": st.booleans(),
    "engine__max_running_requests": st.sampled_from([8, 2_048]),
    "engine__chunked_prefill_size": st.sampled_from([512, 8_192]),
}


@st.composite
def specs(draw):
    local = draw(st.sampled_from(["vtc", "dlpm"]))
    router = draw(st.sampled_from(["round-robin", "client-round-robin", "d2lpm", "least-loaded"]))
    chosen = {key: draw(one) for key, one in ((VTC if local == "vtc" else DLPM) | ENGINE).items()}
    dp = draw(st.sampled_from([1, 1, 2]))
    flags = {"num_programs": 8, "request_rate": 40.0 * dp, "router": router, "local": local}
    workload = draw(st.sampled_from(["chat", "mix"]))
    pool = draw(st.sampled_from([9_000, 20_000]))
    return small_spec(
        "fcfs", workload, dp=dp, pool=pool, seed=draw(st.integers(0, 9)), flags=flags, **chosen
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(specs())
def test_no_gap_exceeds_the_bound_that_is_printed_beside_it(spec):
    summary = simulate(spec).summary
    bound, gap = summary["service_gap_bound"], summary["max_service_gap"]
    if bound is None:
        assert summary["notes"]["service_gap_bound"]
        assert summary["bound_source"] is None
    elif gap is not None:
        assert gap <= bound, (gap, bound, spec.settings)


def summary_of(scheduler, dp=1, **settings):
    flags = {"num_programs": 4, "request_rate": 20.0}
    return simulate(
        small_spec(scheduler, "mix", dp=dp, pool=10_000, flags=flags, **settings)
    ).summary


def test_a_scheduler_that_charges_otherwise_has_no_bound_on_what_we_count():
    summary = summary_of("dlpm", dlpm__extend_weight=1000)
    assert summary["service_gap_bound"] is None
    assert summary["notes"]["service_gap_bound"] == (
        "dlpm charges 1000 a token of extend and 2 a token of output, while service counts 1 and 2"
    )
    assert summary_of("dlpm")["service_gap_bound"] > 0


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
def test_a_theorem_on_a_cluster_is_of_a_router_and_a_local_scheduler(scheduler, source):
    router, local = split_pair(scheduler)
    flags = {"num_programs": 2, "request_rate": 4.0, "router": router, "local": local}
    summary = simulate(small_spec("fcfs", "chat", dp=2, flags=flags)).summary
    assert summary["bound_source"] == source
    if source is None:
        assert summary["notes"]["bound_source"] == (
            f"no theorem covers {local} behind {router} on several workers"
        )
