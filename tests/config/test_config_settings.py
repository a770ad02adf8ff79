"""Test ``NAME.PARAM`` settings: which are accepted and which are refused."""

import tomllib

import pytest

from fairbench.config import to_toml
from fairbench.config.resolve import resolve
from fairbench.config.settings import MACHINE
from tests.config.config_helpers import message


def test_precedence_of_a_parameter():
    # later values win: the class's default, the workload's, the file's, --set
    text = to_toml(resolve({}))  # short enough to edit
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


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("dlpm.quantun", 5, "unknown parameter of dlpm 'quantun'"),
        # an error although vtc is not in use
        ("vtc.charg", "input", "unknown parameter of vtc 'charg'"),
        ("vtc.charge", "inputs", "vtc.charge = 'inputs': choose from extend, input, gpu-time."),
        ("dlpn.quantum", 5, "unknown prefix of a setting 'dlpn'"),
        (
            "preble.groups",
            5,
            (
                "preble is a pair of router and local scheduler: set the parameters of "
                "preble-e2 or of preble-gr"
            ),
        ),
        ("tot.branch", 3, "unknown parameter of tot 'branch'"),
        ("judge.dimension", 3, "unknown parameter of judge 'dimension'"),
        ("tot.branches", 0, "tot.branches = 0: must be "),
        ("engine.mem_fraction_static", 1.5, "engine.mem_fraction_static = 1.5: must be less than"),
        ("engine.mem_fraction", 0.5, "unknown parameter of engine 'mem_fraction'"),
    ],
)
def test_every_setting_is_checked_in_use_or_not(key, value, expected):
    assert message({}, {key: value}).startswith(expected)


def test_a_workload_must_not_take_the_name_of_a_scheduler():
    table = tomllib.loads(to_toml(resolve({})))["workload"] | {"name": "vtc"}
    assert "this is the name of a scheduler; give the workload" in message(
        {}, {}, {"workload": table}
    )


def test_a_workload_that_sets_an_unknown_parameter_is_refused():
    table = tomllib.loads(to_toml(resolve({})))["workload"] | {"settings": {"dlpm.quantun": 1}}
    assert "'quantun'" in message({}, {}, {"workload": table})
