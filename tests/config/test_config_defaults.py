"""Test defaults, and which values of a stored file flags override."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config import to_toml
from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.schedulers.registry import PAIRS
from fairbench.workloads.spec import load_workload, workload_names
from tests.config.config_helpers import message
from tests.strategies import examples

# Each value differs from all defaults, because a typed default counts as a default.
FLAGS = st.fixed_dictionaries(
    {},
    optional={
        "scheduler": st.sampled_from([*PAIRS, "least-loaded+vtc"]),
        "workload": st.sampled_from([n for n in workload_names() if not n.startswith("vtc-")]),
        "scenario": st.sampled_from(["none", "s1"]),
        "model": st.sampled_from(["llama-3.1-8b", "llama-3.2-3b"]),
        "duration_s": st.sampled_from([60.5, 1_000.5]),
        "num_programs": st.integers(1, 9),
        "clients": st.integers(7, 9),
        "seed": st.integers(0, 9),
    },
)


@examples(60)
@given(first=FLAGS, second=FLAGS)
def test_flags_over_a_stored_file_are_flags_in_addition(first, second):
    stored = tomllib.loads(to_toml(resolve(first)))
    assert resolve(second, {}, stored) == resolve({**first, **second})


@pytest.mark.parametrize("own", [n for n in workload_names() if n.startswith("vtc-")])
def test_another_workload_brings_its_own_machine(own):
    for first, second in (("tot", own), (own, "tot"), (own, own)):
        stored = tomllib.loads(to_toml(resolve({"workload": first, "seed": 3})))
        assert resolve({"workload": second}, {}, stored) == resolve({"workload": second, "seed": 3})


def stored(*arguments):
    return tomllib.loads(to_toml(resolve(*arguments)))


@pytest.mark.parametrize(
    "flags",
    [
        {"workload": "long-qa"},
        {"workload": "chat"},
        {"duration_s": 60},
        {"num_programs": 3},
        {"model": "llama-3.2-3b"},
        {"gpu": "h100"},
        {"scenario": "s2"},
    ],
)
def test_stored_defaults_give_way_to_flags(flags):
    assert resolve(flags, {}, stored({})) == resolve(flags)


def test_stored_choices_stay():
    file = stored({"duration_s": 480, "num_programs": 7, "seed": 3}, {"dlpm.quantum": 7})
    spec = resolve({"workload": "long-qa"}, {}, file)
    assert (spec.duration_s, spec.warmup_s) == (480, 48)
    assert (spec.num_programs, spec.seed, spec.settings["dlpm.quantum"]) == (7, 3, 7)
    assert resolve({"scenario": "s2"}, {}, stored({"duration_s": 480})).warmup_s == 48
    warmed = stored({}, {}, {"warmup_s": 20})
    assert resolve({"duration_s": 60}, {}, warmed).warmup_s == 20


def test_a_changed_workload_of_a_stored_file_stays_unless_it_is_replaced():
    file = stored({}, {"tot.branches": 3})
    assert resolve({"scenario": "s2"}, {}, file).workload.params["branches"] == 3
    assert resolve({"workload": "tot"}, {}, file).workload == load_workload("tot")


def test_a_profile_that_its_gpu_does_not_imply_stays_whole():
    other = "a100-80gb/llama-3.1-8b/tp4/sglang-0.5.10"
    file = stored({"gpu": other})
    assert resolve({"scenario": "s2"}, {}, file).gpu == other
    assert resolve({"gpu": "h100"}, {}, file) == resolve({"gpu": "h100"})


def test_the_defaults_are_as_documented():
    spec = resolve({})
    assert (spec.scheduler, spec.router, spec.local) == ("d2lpm", "d2lpm", "dlpm")
    assert (spec.dp, spec.seed, spec.burstiness, spec.clients) == (1, 0, 1.0, 3)
    assert (spec.workload.name, spec.scenario) == ("tot", "s1")
    assert spec.gpu.startswith("a100-80gb/llama-3.1-8b/")
    assert spec.settings["dlpm.quantum"] == 10_000
    assert spec.settings["d2lpm.worker_quantum"] == 40_000
    assert resolve({"scheduler": "vtc"}).settings["vtc.charge"] == "extend"


def test_half_a_pair_can_be_replaced():
    spec = resolve({"scheduler": "dlpm", "router": "client-round-robin"})
    assert spec.scheduler == "client-round-robin+dlpm"
    assert resolve({"router": "d2lpm", "local": "dlpm"}).scheduler == "d2lpm"
    assert resolve({"scheduler": "round-robin+vtc"}).local == "vtc"


def test_a_number_of_programs_lifts_the_duration():
    assert resolve({"num_programs": 5}).duration_s is None
    assert resolve({"num_programs": 5, "duration_s": 60}).duration_s == 60
    assert resolve({}).duration_s == load_workload("tot").duration_s


def test_the_warm_up_fits_into_the_duration():
    assert resolve({}).warmup_s == load_workload("tot").warmup_s
    assert resolve({"duration_s": 20}).warmup_s == 2.0
    assert resolve({"duration_s": 20}, {}, {"warmup_s": 5}).warmup_s == 5
    text = message({"duration_s": 20}, {}, {"warmup_s": 20})
    assert text == "warmup_s = 20.0: must be below duration_s"


def only(name):
    """Return the table of a workload whose only scenario has this name."""
    table = load_workload("chat").model_dump(exclude_none=True)
    return {**table, "scenarios": {name: table["scenarios"]["s1"]}}


@pytest.mark.parametrize("name", ["recorded", "burst", "s2"])
def test_the_only_scenario_of_a_workload_is_its_default(name):
    spec = resolve({"workload": only(name)})
    assert spec.scenario == name
    assert resolve({}, {}, {"workload": only(name)}) == spec
    assert resolve({"workload": only(name), "scenario": "none"}).scenario == "none"
    assert resolve({"workload": only(name), "num_programs": 2}).clients == spec.clients
    with pytest.raises(UsageError, match=f"unknown scenario of chat 'other': .*{name}"):
        resolve({"workload": only(name), "scenario": "other"})


def test_the_default_scenario_of_another_workload_gives_way():
    for first, second in (("tot", only("recorded")), (only("recorded"), "tot")):
        file = stored({"workload": first, "seed": 3})
        assert resolve({"workload": second}, {}, file) == resolve({"workload": second, "seed": 3})
    both = only("a")
    both["scenarios"]["b"] = both["scenarios"]["a"]
    with pytest.raises(UsageError, match="unknown scenario of chat 's1'"):
        resolve({"workload": both})
