"""Test that a spec is frozen, survives writing and reading, and has an identity."""

import tomllib
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from fairbench.config import ExperimentSpec, identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.schedulers.registry import PAIRS
from fairbench.workloads.spec import workload_names
from tests.config.config_helpers import reread
from tests.strategies import examples


@examples(40)
@given(
    scheduler=st.sampled_from([*PAIRS, "least-loaded+vtc"]),
    workload=st.sampled_from(workload_names()),
    dp=st.integers(1, 8),
    rate=st.none() | st.floats(1e-3, 100),
    programs=st.none() | st.integers(1, 10**4),
    tag=st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=10),
)
def test_a_saved_spec_reads_back_identical(scheduler, workload, dp, rate, programs, tag):
    # the rate of vtc-increasing depends on the time
    assume(programs is None or workload != "vtc-increasing")
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
    # the weights' client names are part of the experiment
    assert spec.settings["vtc.weights"] == {}
    assert spec.weights == {"client-0": 2.0}
    assert spec.workload.params["branches"] == 3
    assert reread(spec) == spec


def test_an_infinite_setting_reads_back_identical():
    spec = resolve({"scheduler": "preble"}, {"preble-e2.rebalance_threshold": inf})
    assert "rebalance_threshold = inf" in to_toml(spec)
    assert reread(spec) == spec


def test_identity_is_the_spec_without_its_tag():
    plain = resolve({})
    assert identity(plain) == identity(resolve({"tag": "mine"}))
    assert identity(plain) != identity(resolve({"seed": 1}))
    assert identity(plain) != identity(resolve({}, {"dlpm.quantum": 5}))
    assert identity(plain) != identity(resolve({}, {"tot.branches": 3}))
    assert identity(plain) == identity(resolve({}, {"vtc.charge": "input"}))


def test_the_spec_is_frozen():
    with pytest.raises(ValidationError):
        resolve({}).seed = 1


def test_every_field_of_a_full_spec_is_in_its_file_or_has_no_value():
    spec = resolve({"num_programs": 3, "request_rate": inf, "tag": "t"})
    written = set(tomllib.loads(to_toml(spec)))
    absent = {name for name in ExperimentSpec.model_fields if getattr(spec, name) is None}
    assert written == set(ExperimentSpec.model_fields) - absent
