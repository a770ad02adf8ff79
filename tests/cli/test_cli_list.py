"""Test ``fairbench list``."""

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.cli.list import _part
from fairbench.config.flags.flag import parse_assignment
from fairbench.config.preset import preset_names
from fairbench.hardware.catalogue import profile_ids
from fairbench.hardware.cluster_params import DISAGGREGATION
from fairbench.hardware.engines import ENGINES
from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench.schedulers.gateway.registry import DETECTORS, policies_by_name
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import PAIRS, locals_by_name, routers_by_name
from fairbench.workloads.spec import workload_names


def listed(*kind):
    result = CliRunner().invoke(app, ["list", *kind])
    assert result.exit_code == 0
    return result.stdout


def entries(text):
    """Return the names, which are indented by two spaces."""
    lines = [line for line in text.split("\n") if line.startswith("  ") and line[2] != " "]
    return [line.split()[0] for line in lines]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("schedulers", [*PAIRS, *locals_by_name(), "engine", "cluster", "timing"]),
        ("routers", list(routers_by_name())),
        ("gateways", [*policies_by_name(), *DETECTORS, "gateway"]),
        ("workloads", workload_names()),
        ("profiles", profile_ids()),
        ("engines", [*ENGINES, DISAGGREGATION]),
        ("presets", preset_names()),
        ("evictions", list(EVICTIONS)),
    ],
)
def test_each_kind_lists_exactly_its_names(kind, names):
    assert entries(listed(kind)) == names


@pytest.mark.parametrize(
    "kind", ["schedulers", "routers", "gateways", "workloads", "engines", "presets"]
)
def test_every_name_has_a_description(kind):
    lines = [line for line in listed(kind).split("\n") if line[:2] == "  " and line[2] != " "]
    assert all(len(line.split()) > 2 for line in lines)


def test_without_a_kind_everything_is_listed():
    everything = listed()
    for kind in (
        "schedulers",
        "routers",
        "gateways",
        "workloads",
        "profiles",
        "engines",
        "presets",
    ):
        assert listed(kind) in everything + "\n"


def test_parameters_are_listed_in_the_form_that_set_accepts():
    kinds = ("schedulers", "routers", "gateways", "workloads", "engines")
    text = "\n".join(listed(kind) for kind in kinds)
    lines = [line.strip() for line in text.split("\n") if line.startswith("    ")]
    settings = dict(parse_assignment(line) for line in lines)
    assert settings["dlpm.quantum"] == 10_000
    assert settings["vtc.charge"] == "extend"
    assert settings["dlpm.charge_recompute"] is False
    assert settings["tot.branches"] == 2
    assert settings["drr.quantum"] == 2_000
    assert settings["gateway.order"] == "fcfs"


def test_an_unknown_kind_is_wrong_usage():
    result = CliRunner().invoke(app, ["list", "schedulerz"])
    assert result.exit_code == 2
    assert "schedulerz" in result.stderr


@pytest.mark.parametrize("description", [None, "", "\n"])
def test_a_scheduler_without_a_docstring_is_listed_by_its_name(description):
    described = type("Mine", (), {"__doc__": description})
    assert list(_part("mine", described, FCFS.Params)) == ["  mine"]
