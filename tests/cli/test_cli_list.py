"""Test ``fairbench list``."""

from dataclasses import dataclass, fields

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.cli.list import ListKind, _meanings, _part
from fairbench.config.defaults import preset_names
from fairbench.config.parse_flags import parse_assignment
from fairbench.config.settings import MACHINE
from fairbench.hardware.catalogue import profile_ids
from fairbench.hardware.engines import DISAGGREGATION, ENGINES, DisaggregationParams
from fairbench.named import imported
from fairbench.schedulers.eviction.registry import (
    ALL_EVICTIONS,
    MEMORY,
    MemoryParams,
    eviction_class,
)
from fairbench.schedulers.gateway.registry import (
    DETECTORS,
    GATEWAY,
    GatewayParams,
    detector_class,
    policies_by_name,
    policy_class,
)
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import (
    PAIRS,
    local_class,
    locals_by_name,
    router_class,
    routers_by_name,
)
from fairbench.workloads.spec import workload_names


def listed(*kind):
    result = CliRunner().invoke(app, ["list", *kind])
    assert result.exit_code == 0
    return result.stdout


def entries(text):
    """Return the listed names, which are indented by two spaces."""
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
        ("evictions", [*ALL_EVICTIONS, MEMORY]),
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


def test_the_list_begins_with_the_kinds_and_their_numbers():
    lines = listed().split("\n\n")[0].split("\n")
    assert "`fairbench list KIND`" in lines[0]
    counts = dict(line.split()[:2] for line in lines[1:-1])
    assert list(counts) == [one.value for one in ListKind]
    assert all(int(count) == len(entries(listed(kind))) for kind, count in counts.items())


@pytest.mark.parametrize("kind", ["schedulers", "routers", "gateways", "engines", "evictions"])
def test_each_parameter_has_a_meaning_and_no_markup(kind):
    text = listed(kind)
    lines = [line for line in text.split("\n") if line.startswith("    ")]
    assert [line for line in lines if "  # " not in line] == []
    assert "``" not in text
    assert not any("``" in meaning or len(meaning) > 90 for meaning in _meanings().values())


def test_no_meaning_is_left_of_a_parameter_that_is_gone():
    parts = {name: local_class(name).Params for name in locals_by_name()}
    parts |= {name: router_class(name).Params for name in routers_by_name()}
    parts |= {name: policy_class(name).Params for name in policies_by_name()}
    parts |= {name: detector_class(name).Params for name in DETECTORS}
    parts |= {name: eviction_class(name).Params for name in ALL_EVICTIONS}
    parts |= {one.part: imported(one.params) for one in ENGINES.values()}
    parts |= {**MACHINE, GATEWAY: GatewayParams, DISAGGREGATION: DisaggregationParams}
    parts |= {MEMORY: MemoryParams}
    keys = {f"{part}.{one.name}" for part, params in parts.items() for one in fields(params)}
    known = keys | {key.partition(".")[2] for key in keys}
    assert {name for name in _meanings() if name not in known} == set()


def test_lines_fit_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, listed().split("\n"))) <= 80


class Mine:
    """My scheduler."""

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``patience`` is the longest wait in s. ``weights`` are those of VTC."""

        patience: float = 2.0
        weights: int = 1
        quantum: int = 1


def test_a_users_own_parameter_has_the_meaning_of_its_docstring():
    lines = list(_part("mine", Mine, Mine.Params))
    assert lines[1] == "    mine.patience = 2.0  # the longest wait in s"
    assert lines[3] == "    mine.quantum = 1", "the meaning of another scheduler's parameter"
