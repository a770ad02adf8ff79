"""From flags, settings and a file to one full spec, and back to a file."""

import tomllib
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fairbench.config import ExperimentSpec, identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.config.settings import MACHINE
from fairbench.errors import UsageError
from fairbench.schedulers.registry import PAIRS
from fairbench.workloads.spec import load_workload, workload_names


def reread(spec):
    return resolve({}, {}, tomllib.loads(to_toml(spec)))


def message(*arguments):
    with pytest.raises(UsageError) as caught:
        resolve(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_defaults_are_those_that_are_promised():
    spec = resolve({})
    assert (spec.scheduler, spec.router, spec.local) == ("d2lpm", "d2lpm", "dlpm")
    assert (spec.dp, spec.seed, spec.burstiness, spec.clients) == (1, 0, 1.0, 3)
    assert (spec.workload.name, spec.scenario) == ("tot", "s1")
    assert spec.gpu.startswith("a100-80gb/llama-3.1-8b/")
    assert spec.settings["dlpm.quantum"] == 10_000
    assert spec.settings["d2lpm.worker_quantum"] == 40_000
    assert resolve({"scheduler": "vtc"}).settings["vtc.charge"] == "extend"


@settings(max_examples=40)
@given(
    scheduler=st.sampled_from([*PAIRS, "least-loaded+vtc"]),
    workload=st.sampled_from(workload_names()),
    dp=st.integers(1, 8),
    rate=st.none() | st.floats(1e-3, 100),
    programs=st.none() | st.integers(1, 10**4),
    tag=st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=10),
)
def test_a_saved_spec_reads_back_identical(scheduler, workload, dp, rate, programs, tag):
    flags = {"scheduler": scheduler, "workload": workload, "dp": dp, "request_rate": rate}
    flags |= {"num_programs": programs, "tag": tag}
    spec = resolve({key: value for key, value in flags.items() if value is not None})
    assert reread(spec) == spec
    assert identity(reread(spec)) == identity(spec)


def test_settings_with_tables_and_overridden_workloads_read_back_identical():
    spec = resolve(
        {"scheduler": "vtc"},
        {"vtc.weights": {"client-0": 2}, "tot.branches": 3, "engine.step_by_step": True},
    )
    assert spec.settings["vtc.weights"] == {"client-0": 2.0}
    assert spec.workload.params["branches"] == 3
    assert reread(spec) == spec


def test_flags_override_the_file_and_the_rest_of_it_stays():
    saved = tomllib.loads(to_toml(resolve({"seed": 7}, {"dlpm.quantum": 123})))
    again = resolve({"scheduler": "vtc"}, {"vtc.charge": "input"}, saved)
    assert (again.scheduler, again.router, again.local) == ("vtc", "client-round-robin", "vtc")
    assert again.seed == 7
    assert again.settings["vtc.charge"] == "input"
    assert resolve({"local": "vtc"}, {}, saved).scheduler == "d2lpm+vtc"
    assert resolve({}, {"dlpm.quantum": 9}, saved).settings["dlpm.quantum"] == 9


def test_half_a_pair_can_be_replaced():
    spec = resolve({"scheduler": "dlpm", "router": "client-round-robin"})
    assert spec.scheduler == "client-round-robin+dlpm"
    assert resolve({"router": "d2lpm", "local": "dlpm"}).scheduler == "d2lpm"
    assert resolve({"scheduler": "round-robin+vtc"}).local == "vtc"


def test_precedence_of_a_parameter():
    # The class's default, below the workload's, below the file's, below --set.
    text = to_toml(resolve({}))  # for a whole workload table to edit
    table = tomllib.loads(text)["workload"]
    table["settings"] = {"dlpm.quantum": 111}
    file = {"workload": table}
    assert resolve({}, {}, file).settings["dlpm.quantum"] == 111
    assert resolve({}, {}, file).settings["dlpm.refill"] == "strict"
    file["settings"] = {"dlpm": {"quantum": 222}}
    assert resolve({}, {}, file).settings["dlpm.quantum"] == 222
    assert resolve({}, {"dlpm.quantum": 333}, file).settings["dlpm.quantum"] == 333


def test_settings_hold_exactly_the_parts_in_use():
    spec = resolve({"scheduler": "vtc"}, {"dlpm.quantum": 5, "judge.dimensions": 4})
    assert {key.split(".")[0] for key in spec.settings} == {"vtc", *MACHINE}
    assert spec == resolve({"scheduler": "vtc"})


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


def test_identity_is_the_spec_without_the_tag():
    plain = resolve({})
    assert identity(plain) == identity(resolve({"tag": "mine"}))
    assert identity(plain) != identity(resolve({"seed": 1}))
    assert identity(plain) != identity(resolve({}, {"dlpm.quantum": 5}))
    assert identity(plain) != identity(resolve({}, {"tot.branches": 3}))
    assert identity(plain) == identity(resolve({}, {"vtc.charge": "input"}))


def test_the_spec_is_frozen():
    with pytest.raises(ValidationError):
        resolve({}).seed = 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"dp": 0}, "dp = 0: must be greater than or equal to 1"),
        ({"dp": 10**30}, f"dp = {10**30}: must be less than or equal to 4096"),
        ({"clients": 10_001}, "clients = 10001: must be less than or equal to 10000"),
        ({"seed": 2**63}, f"seed = {2**63}: must be less than {2**63}"),
        ({"tag": "t" * 65}, f"tag = '{'t' * 65}': must have at most 64 characters"),
        (
            {"num_programs": 1_000_000, "dp": 8},
            "num_programs = 1000000, clients = 3: about 3,000,000 programs in all, "
            "at most 2,000,000 are allowed",
        ),
        # 0.11 programs/s of each of 3 clients and on each of 8 GPUs, for 10^6 s.
        (
            {"duration_s": 1e6, "dp": 8},
            "duration_s = 1000000.0, dp = 8, clients = 3: about 2,640,000 programs in all, "
            "at most 2,000,000 are allowed",
        ),
        # 480 s of three clients.
        (
            {"request_rate": 1e4},
            "duration_s = 480.0, request_rate = 10000.0, clients = 3: about 14,400,000 programs "
            "in all, at most 2,000,000 are allowed",
        ),
        ({"clients": 0}, "clients = 0: must be greater than or equal to 1"),
        ({"num_programs": -1}, "num_programs = -1: must be greater than or equal to 1"),
        ({"request_rate": -2.0}, "request_rate = -2.0: must be greater than 0"),
        ({"request_rate": float("nan")}, "request_rate = nan: must be greater than 0"),
        ({"burstiness": 0.0}, "burstiness = 0.0: must be greater than 0"),
        ({"burstiness": inf}, "burstiness = inf: must be a finite number"),
        ({"duration_s": -1.0}, "duration_s = -1.0: must be greater than 0"),
        ({"duration_s": inf}, "duration_s = inf: must be a finite number"),
        ({"seed": -1}, "seed = -1: must be greater than or equal to 0"),
        (
            {"tokenizer": "t.json"},
            "tokenizer: counts the tokens of real input, so give dataset_path",
        ),
    ],
)
def test_wrong_values_name_field_value_and_what_is_allowed(flags, expected):
    assert message(flags) == expected


@pytest.mark.parametrize(
    ("flags", "what", "near"),
    [
        ({"scheduler": "d2lmp"}, "unknown scheduler 'd2lmp'", "d2lpm"),
        ({"router": "roundrobin"}, "unknown router 'roundrobin'", "round-robin"),
        ({"local": "vct"}, "unknown local scheduler 'vct'", "vtc"),
        ({"scheduler": "d2lpm+vct"}, "unknown local scheduler 'vct'", "vtc"),
        ({"workload": "tott"}, "unknown workload 'tott'", "tot"),
        ({"scenario": "s3"}, "unknown scenario of tot 's3'", "s"),
        ({"gpu": "a1000"}, "unknown gpu 'a1000'", "a10"),
        ({"model": "llama-3-8b"}, "unknown model 'llama-3-8b'", "llama-3"),
    ],
)
def test_unknown_names_offer_the_nearest(flags, what, near):
    text = message(flags)
    assert text.startswith(what)
    assert f"Did you mean '{near}" in text


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("dlpm.quantun", 5, "unknown parameter of dlpm 'quantun'"),
        ("vtc.charg", "input", "unknown parameter of vtc 'charg'"),  # not in use, yet an error
        ("vtc.charge", "inputs", "vtc.charge = 'inputs': choose from extend, input."),
        ("dlpn.quantum", 5, "unknown part in a setting 'dlpn'"),
        ("preble.groups", 5, "preble is a pair: set the parameters of preble-e2 or of preble-gr"),
        ("tot.branch", 3, "unknown parameter of tot 'branch'"),
        ("judge.dimension", 3, "unknown parameter of judge 'dimension'"),
        ("tot.branches", 0, "tot.branches = 0: must be "),
        ("engine.mem_fraction_static", 1.5, "engine.mem_fraction_static = 1.5: must be less than"),
        ("engine.mem_fraction", 0.5, "unknown parameter of engine 'mem_fraction'"),
    ],
)
def test_every_setting_is_checked_in_use_or_not(key, value, expected):
    assert message({}, {key: value}).startswith(expected)


def test_chat_has_no_s2():
    assert "choose from none, s1" in message({"workload": "chat", "scenario": "s2"})


def test_a_workload_must_not_take_the_name_of_a_scheduler():
    table = tomllib.loads(to_toml(resolve({})))["workload"] | {"name": "vtc"}
    assert "a scheduler has this name" in message({}, {}, {"workload": table})


def test_a_workload_that_sets_an_unknown_parameter_is_refused():
    table = tomllib.loads(to_toml(resolve({})))["workload"] | {"settings": {"dlpm.quantun": 1}}
    assert "'quantun'" in message({}, {}, {"workload": table})


def test_every_field_of_a_full_spec_is_in_its_file_or_absent():
    spec = resolve({"num_programs": 3, "request_rate": inf, "tag": "t"})
    written = set(tomllib.loads(to_toml(spec)))
    absent = {name for name in ExperimentSpec.model_fields if getattr(spec, name) is None}
    assert written == set(ExperimentSpec.model_fields) - absent
