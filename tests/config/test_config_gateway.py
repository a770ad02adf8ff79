"""Test a gateway in an experiment: flags, files, sweeps, names and conflicts."""

import pytest

from fairbench.config import identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.config.spec import experiment_tables
from fairbench.config.sweep import points
from fairbench.results.experiments import grid_labels, place_of, point_names
from fairbench.results.store import run_name
from tests.config.config_helpers import message, reread, sweep

DRR = {"workload": "chat", "gateway": "drr"}


def test_a_gateway_has_its_parameters_and_a_detector():
    spec = resolve(DRR, {"drr.quantum": 500.0})
    assert (spec.gateway, spec.saturation) == ("drr", "utilization")
    assert spec.settings["drr.quantum"] == 500.0
    assert spec.settings["utilization.poll_s"] == 0.05
    assert spec.settings["gateway.order"] == "fcfs"
    assert reread(spec) == spec


def test_priorities_are_a_table():
    spec = resolve(DRR, {"gateway.priority": {"client-0": 2}})
    assert "[settings.gateway.priority]\nclient-0 = 2" in to_toml(spec)
    assert reread(spec) == spec


def test_without_a_gateway_no_setting_of_gateways_is_stored():
    spec = resolve({"workload": "chat"})
    assert (spec.gateway, spec.saturation) == (None, None)
    assert "gateway" not in to_toml(spec)
    assert identity(resolve({"workload": "chat", "gateway": "none"})) == identity(spec)


def test_any_local_scheduler_is_a_policy_and_shares_its_parameters_with_the_workers():
    flags = {"workload": "chat", "gateway": "vtc", "scheduler": "d2lpm"}
    spec = resolve(flags, {"vtc.lift": "none"})
    assert spec.settings["vtc.lift"] == "none"
    assert resolve({"workload": "chat", "gateway": "vtc", "scheduler": "vtc"}).gateway == "vtc"


def test_unused_parameters_are_not_stored():
    """Therefore, runs stored before these parameters existed keep their identity."""
    plain = resolve({**DRR, "gateway": "vtc", "saturation": "concurrency"})
    assert not {"concurrency.headroom", "gateway.outputs"} & plain.settings.keys()
    asked = {"concurrency.headroom": 1, "gateway.outputs": "ahead"}
    other = resolve({**DRR, "gateway": "vtc", "saturation": "concurrency"}, asked)
    assert reread(other).settings.items() >= asked.items()
    assert identity(other) != identity(plain)


def test_flags_replace_the_gateway_of_a_file_with_its_detector():
    flags = {"gateway": "drr", "saturation": "concurrency"}
    file = experiment_tables(resolve({"workload": "chat", **flags}))
    assert resolve({"seed": 1}, {}, file).saturation == "concurrency"
    other = resolve({"gateway": "wfq"}, {}, file)
    assert (other.gateway, other.saturation) == ("wfq", "utilization")
    assert not any(key.startswith(("drr.", "concurrency.")) for key in other.settings)
    without = resolve({"gateway": "none"}, {}, file)
    assert without == resolve({"workload": "chat"})


@pytest.mark.parametrize(
    ("flags", "settings", "expected"),
    [
        ({"gateway": "dr"}, {}, "Did you mean 'drr'?"),
        ({"gateway": "drr", "saturation": "utilisation"}, {}, "Did you mean 'utilization'?"),
        ({"saturation": "none"}, {}, "saturation = 'none': needs a gateway; set gateway, too"),
        ({"gateway": 3}, {}, "gateway = 3: must be a string"),
        ({"gateway": "drr"}, {"drr.quanta": 1}, "Did you mean 'quantum'?"),
        ({"gateway": "drr"}, {"gateway.order": "lifo"}, "gateway.order"),
        ({"gateway": "drr"}, {"utilization.poll_s": 0}, "utilization.poll_s"),
        (
            {"gateway": "drr", "backend": {"kind": "emulator"}},
            {},
            "gateway = 'drr': only simulated runs support a gateway; leave it out",
        ),
    ],
)
def test_errors_are_named_in_one_line(flags, settings, expected):
    assert expected in message(flags, settings)


def test_a_sweep_has_a_point_without_a_gateway_and_one_for_each_gateway():
    swept = sweep(
        grid={
            "workload": "chat", "scheduler": ["fcfs"], "gateway": ["none", "fcfs", "drr"],
            "saturation": ["utilization", "concurrency"],
        }
    )  # fmt: skip
    specs = points(swept)
    assert point_names(specs) == [
        "chat s1 dp 1, fcfs, seed 0",
        "chat s1 dp 1, fcfs behind fcfs by utilization, seed 0",
        "chat s1 dp 1, fcfs behind fcfs by concurrency, seed 0",
        "chat s1 dp 1, fcfs behind drr by utilization, seed 0",
        "chat s1 dp 1, fcfs behind drr by concurrency, seed 0",
    ]
    one_detector = [spec for spec in specs if spec.saturation != "utilization"]
    assert point_names(one_detector)[1] == "chat s1 dp 1, fcfs behind fcfs, seed 0"
    tables = [experiment_tables(spec) for spec in specs]
    assert len({label.place for label in grid_labels(tables)}) == 1
    assert all(place_of(one) == place_of(tables[0]) for one in tables)


def test_the_run_directory_is_named_after_the_gateway():
    assert run_name(resolve(DRR)) == "d2lpm-behind-drr-chat-s1-dp1-seed0"
