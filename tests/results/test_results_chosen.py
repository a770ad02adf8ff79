"""Test which values of a stored experiment were set by the user."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.config.spec import experiment_tables
from fairbench.results.experiments import chosen_keys, spec_changes

TOT = {"workload": "tot", "gpu": "a100"}


def tables(flags=None, settings=None):
    return experiment_tables(resolve(TOT | (flags or {}), settings or {}))


def rate(experiment, value, scenario="s1"):
    """Return the experiment as a version with another default rate would have stored it."""
    workload = experiment["workload"]
    scenarios = workload["scenarios"]
    other = {**scenarios, scenario: scenarios[scenario] | {"rate": value}}
    return experiment | {"workload": workload | {"scenarios": other}}


@pytest.mark.parametrize(
    ("flags", "settings", "chosen"),
    [
        ({}, {}, []),
        ({"dp": 4, "seed": 3, "scheduler": "vtc", "scenario": "s2", "tag": "x"}, {}, []),
        ({"duration_s": 17.0}, {}, ["duration_s"]),
        ({"duration_s": 17.0, "warmup_s": 1.0}, {}, ["duration_s", "warmup_s"]),
        ({}, {"dlpm.quantum": 77, "tot.branches": 3}, ["dlpm.quantum", "workload.params.branches"]),
        ({"gpu": "a100-80gb/llama-3.1-8b/tp2/sglang"}, {}, ["timing profile"]),
        ({"weights": {"client-0": 2.0}}, {}, ["weights.client-0"]),
        ({"gpu": "h200", "clients": 5}, {}, ["clients"]),
    ],
)
def test_values_that_differ_from_defaults_were_set_by_the_user(flags, settings, chosen):
    assert chosen_keys(tables(flags, settings)) == chosen


def test_a_workload_of_the_user_counts_as_set():
    experiment = tables()
    other = experiment | {"workload": experiment["workload"] | {"name": "mine"}}
    assert chosen_keys(other) == ["workload"]
    found = spec_changes(rate(other, 1.5), None, rate(other, 2.5), None)
    assert found == (["workload.scenarios.s1.rate = 1.5 (not 2.5)"], [])


def test_a_value_that_was_not_set_is_a_changed_default():
    new = tables()
    old = rate(new, 1.5) | {"duration_s": 17.0, "warmup_s": 1.5}
    old = old | {"workload": old["workload"] | {"duration_s": 17.0, "warmup_s": 1.5}}
    is_now = new["workload"]["scenarios"]["s1"]["rate"]
    for manifest in (None, []):
        found = spec_changes(old, manifest, new, [])
        assert found.by_choice == []
        assert f"tot s1 rate 1.5 -> {is_now}" in found.by_default
        assert f"tot duration_s 17.0 -> {new['duration_s']}" in found.by_default
    assert len(spec_changes(old, ["duration_s"], new, []).by_choice) == 1


def test_a_setting_added_since_then_is_a_changed_default():
    new = tables(settings={"engine.max_running_requests": 100})
    old = {**new, "settings": {**new["settings"], "engine": dict(new["settings"]["engine"])}}
    del old["settings"]["engine"]["max_running_requests"]
    assert spec_changes(old, None, new, []) == ([], ["engine.max_running_requests default -> 100"])
    chosen = ["engine.max_running_requests"]
    assert spec_changes(old, None, new, chosen).by_choice == [
        "engine.max_running_requests = default (not 100)"
    ]


def test_the_earlier_profile_and_limit_were_defaults():
    new = tables({"gpu": "a100-80gb/llama-3.1-8b/tp1/measured-sglang"})
    old = tables(
        {"gpu": "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"}, {"engine.max_running_requests": 2048}
    )
    found = spec_changes(old, None, new, [])
    assert found.by_choice == []
    assert "timing profile tp1/sglang-0.5.10 -> tp1/measured-sglang" in found.by_default
    other_gpu = tables({"gpu": "h100"})
    assert any(one.startswith("gpu = ") for one in spec_changes(old, None, other_gpu, []).by_choice)


def test_changes_without_effect_on_records_are_not_differences():
    one = tables({"request_rate": 0.5, "tag": "x"})
    other = rate(rate(tables({"request_rate": 0.5}), 9.0, "s2"), 9.0)
    other["workload"]["description"] = "better words"
    assert spec_changes(one, [], other, []) == ([], [])
