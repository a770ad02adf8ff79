"""Test the stored shares under FCFS with which a run is compared."""

import csv
import math
from collections import Counter
from importlib.resources import files

import pytest

from fairbench.config.resolve import resolve
from fairbench.config.spec import experiment_tables
from fairbench.errors import UsageError
from fairbench.results.references import (
    SHARES,
    THROUGHPUT,
    place_key,
    reference_of,
    reference_spec,
    stored_reference,
)
from fairbench.sim.run import simulate
from fairbench.workloads.spec import load_workload, workload_names

ROWS = list(
    csv.DictReader(
        files("fairbench.results").joinpath("references.csv").read_text("utf-8").splitlines()
    )
)

NEED_DATA = {"sessions", "vtc-arena"}  # workloads that replay files outside the repository


def found(**flags):
    return stored_reference(experiment_tables(resolve(flags)))


def test_every_stored_place_is_that_of_a_bundled_experiment():
    """If this fails after a change of defaults, run `python studies references`."""
    for row in ROWS:
        point = {"workload": row["workload"], "scenario": row["scenario"], "dp": int(row["dp"])}
        assert place_key(experiment_tables(resolve(point))) == row["place"], point
    assert len({row["place"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("scheduler", ["d2lpm", "vtc", "fair-finish", "cache-aware+lpm"])
def test_the_reference_does_not_depend_on_the_runs_scheduler(scheduler):
    router, _, local = scheduler.partition("+")
    flags = {"router": router, "local": local} if local else {"scheduler": scheduler}
    assert found(workload="chat", **flags) == found(workload="chat")
    assert found(workload="chat").scheduler == "fcfs"


@pytest.mark.parametrize(
    "flags",
    [
        {"scheduler": "fcfs"},
        {"seed": 7},
        {"duration_s": 100.0},
        {"engine": "vllm"},
        {"gpu": "h100"},
    ],
)
def test_another_experiment_has_no_stored_reference(flags):
    assert found(workload="chat", **flags) is None


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['workload']}-{row['scenario']}")
def test_stored_shares_are_those_of_a_new_simulation(row):
    check(row)


def test_the_shares_of_the_first_run_are_those_of_a_new_simulation():
    check(next(row for row in ROWS if (row["workload"], row["dp"]) == ("chat", "1")))


def check(row):
    point = {"workload": row["workload"], "scenario": row["scenario"], "dp": int(row["dp"])}
    found = reference_of(simulate(resolve({**point, "scheduler": "fcfs"})).summary).values
    # An empty cell and None stand for an undefined share.
    stored = [float(row[key] or "nan") for key in (*SHARES, THROUGHPUT)]
    expected = [math.nan if found[key] is None else found[key] for key in (*SHARES, THROUGHPUT)]
    assert stored == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)


def test_the_experiment_of_a_reference_has_another_scheduler_only():
    spec = resolve({"workload": "chat", "duration_s": 50.0, "dp": 2, "local": "vtc"})
    other = reference_spec(spec, "lpm", {"lpm.queue_limit": 9}, single=True)
    assert (other.scheduler, other.settings["lpm.queue_limit"]) == ("lpm", 9)
    assert place_key(experiment_tables(other)) == place_key(experiment_tables(spec))


@pytest.mark.parametrize(
    ("name", "single", "wrong"), [("lpn", True, "lpm"), ("lpm", False, "--json")]
)
def test_an_impossible_reference_is_one_line(name, single, wrong):
    with pytest.raises(UsageError, match=wrong) as error:
        reference_spec(resolve({"workload": "chat"}), name, {}, single=single)
    assert "\n" not in str(error.value)


def test_every_bundled_experiment_without_a_data_file_has_stored_references():
    stored = Counter((row["workload"], row["scenario"]) for row in ROWS)
    specs = {name: load_workload(name) for name in workload_names()}
    wanted = {
        (name, scenario): 3  # 1, 2 and 4 replicas
        for name, spec in specs.items()
        if name not in NEED_DATA
        for scenario in spec.scenarios
    }
    assert stored == wanted
