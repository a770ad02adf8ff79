"""Test --prefill and --decode: their resolution, storage and refusals."""

import pytest

from fairbench.config import identity, to_toml
from fairbench.config.resolve import experiment, resolve
from fairbench.config.sweep import points, sweep_of
from fairbench.errors import UsageError
from fairbench.execute.comparison import plan_comparison
from fairbench.workloads.plan import expected_programs
from tests.config.config_helpers import message, reread

SIDES = {"prefill": 1, "decode": 3}
PART = "disaggregation"


def test_dp_counts_all_replicas_and_the_router_uses_the_prefill_workers():
    spec = resolve(SIDES)
    assert (spec.dp, spec.prefill, spec.decode, spec.routed_workers) == (4, 1, 3, 1)
    colocated = resolve({"dp": 4})
    assert colocated.routed_workers == 4
    sent = [[expected_programs(plan) for plan in one.client_plans()] for one in (spec, colocated)]
    assert sent[0] == sent[1]


def test_only_disaggregated_experiments_have_its_settings():
    spec = resolve(SIDES, {f"{PART}.latency_ms": 2.0})
    assert spec.settings[f"{PART}.latency_ms"] == 2.0
    assert spec.settings[f"{PART}.reserve"] == "arrival"
    colocated = resolve({"dp": 4}, {f"{PART}.latency_ms": 2.0})
    assert not [key for key in colocated.settings if key.startswith(PART)]
    assert "\nprefill = " not in to_toml(colocated)


def test_a_stored_experiment_is_the_same_and_flags_change_it():
    spec = resolve(SIDES, {f"{PART}.bandwidth_gb_s": 36.0})
    assert reread(spec) == spec
    stored = {"dp": 4, **SIDES}
    assert resolve({"seed": 3}, {}, stored).decode == 3
    assert resolve({"prefill": 2}, {}, stored).dp == 5
    assert resolve(SIDES, {}, {"dp": 8}).dp == 4


def test_a_sweep_has_both_sides_as_axes():
    swept = sweep_of(None, {"schedulers": ["vtc"], "prefill": [1, 2], "decode": [1, 3]}, {})
    assert [(one.prefill, one.decode, one.dp) for one in points(swept)] == [
        (1, 1, 2), (1, 3, 4), (2, 1, 3), (2, 3, 5),
    ]  # fmt: skip


def test_a_comparison_is_planned_and_resumed_with_both_sides():
    plan = plan_comparison(["vtc", "dlpm"], SIDES, {}, 1)
    specs = [one.spec for one in plan.to_run]
    assert [one.prefill for one in specs] == [1, 1]
    assert {*map(identity, points(plan.sweep()))} == {*map(identity, specs)}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"prefill": 0, "decode": 1}, "prefill = 0: must be greater than or equal to 1"),
        ({"prefill": 1, "decode": 0}, "decode = 0: must be greater than or equal to 1"),
        ({"prefill": "x", "decode": 1}, "prefill = 'x': must be a valid integer"),
        ({"prefill": 2}, "prefill = 2: needs decode, the number of decode replicas, too"),
        ({"decode": 2}, "decode = 2: needs prefill, the number of prefill replicas, too"),
        ({**SIDES, "dp": 3}, "dp = 3: must be prefill + decode = 4; leave dp out"),
        (
            {"prefill": 4096, "decode": 1},
            "prefill = 4096, decode = 1: the sum must be at most 4096",
        ),
        (
            {**SIDES, "engine": "lightllm"},
            "prefill = 1: not supported by engine lightllm; engine must be",
        ),
        (
            {**SIDES, "backend": {"kind": "emulator"}},
            "prefill = 1: not supported by backend emulator",
        ),
        ({**SIDES, "routers": 2}, "routers = 2: must be unset if prefill and decode are set"),
        (
            {**SIDES, "eviction": "lru"},
            "eviction = 'lru': must be unset if prefill and decode are set",
        ),
        (
            {**SIDES, "memory_records": True},
            "memory_records = True: must be unset if prefill and decode are set",
        ),
    ],
)
def test_unsupported_parts_of_a_disaggregated_cluster_are_refused_in_one_line(flags, complaint):
    assert complaint in message(flags)


def test_dp_is_refused_with_prefill_or_decode_even_if_the_sum_is_right():
    for make in (
        lambda: experiment({**SIDES, "dp": 4}, {}),
        lambda: sweep_of(None, {**SIDES, "dp": [4]}, {}),
    ):
        with pytest.raises(
            UsageError, match="cannot be combined with prefill = 1: give either dp, or prefill"
        ):
            make()
    assert "dp = 3" in message({}, {}, {"dp": 3, **SIDES})
    assert "'bandwith_gb_s'" in message(SIDES, {f"{PART}.bandwith_gb_s": 2})
    reserve = {f"{PART}.reserve": "admission"}
    assert "not supported by engine vllm, which cannot reserve" in message(
        {**SIDES, "engine": "vllm"}, reserve
    )
    ahead = {"vllm.async_scheduling": True}
    says = "vllm.async_scheduling = True: must be unset if prefill and decode are set"
    assert says in message({**SIDES, "engine": "vllm"}, ahead)
    assert "choose from arrival, admission" in message(SIDES, {f"{PART}.reserve": "now"})
