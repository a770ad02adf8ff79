"""Test that the default loads follow the rule and give no warning under fair schedulers."""

import csv
import random
from pathlib import Path

import pytest

import fairbench
from fairbench.report.pages.warnings import run_warnings
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.spec import load_workload

TABLE = Path(__file__).resolve().parents[2] / "results" / "tables" / "default-loads.csv"
ROWS = {row["cell"]: row for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())}
POOL = 413_000  # tokens in the pool of an A100 with the default model
MOST = 64  # decoding requests in a batch, within the fit domain of every default profile


def scenario(cell):
    workload, name = cell.split(".")
    return load_workload(workload).scenario(name)


@pytest.mark.parametrize("cell", ROWS)
def test_rates_follow_the_rule(cell):
    assert scenario(cell).rate == float(ROWS[cell]["rate"])
    capacity, multiple = float(ROWS[cell]["lpm_capacity"]), float(ROWS[cell]["multiple"])
    assert scenario(cell).rate == pytest.approx(multiple * capacity, rel=0.05)
    assert float(ROWS[cell]["vtc_p99_s"]) < float(ROWS[cell]["window_s"])


def mean_context(kind, params, programs=100):
    """Return the mean tokens of a request, of prompt and output."""
    made = program_class(kind)
    known = make_params(kind, params, kind)
    demands = [
        made.build(known, random.Random(f"0/{n}"), n, "a", None).demand for n in range(programs)
    ]
    tokens = sum(demand.input_tokens + demand.output_tokens for demand in demands)
    return tokens / sum(demand.requests for demand in demands)


@pytest.mark.parametrize("workload", sorted({cell.split(".")[0] for cell in ROWS}))
def test_the_running_limit_is_the_largest_that_fits(workload):
    spec = load_workload(workload)
    others = [(one.program, one.params) for one in spec.scenario("s1").others or ()]
    context = max(mean_context(*one) for one in [(spec.program, spec.params), *others])
    limit = spec.settings["engine.max_running_requests"]
    assert limit == spec.settings["vllm.max_num_seqs"]
    assert limit <= MOST
    assert limit * context <= POOL
    assert 2 * limit > MOST or 2 * limit * context > POOL


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["vtc", "dlpm", "d2lpm"])
@pytest.mark.parametrize("cell", ROWS)
def test_no_default_run_warns_under_a_fair_scheduler(cell, scheduler):
    workload, name = cell.split(".")
    run = fairbench.run(workload=workload, scenario=name, scheduler=scheduler, dp=4)
    assert list(run_warnings(run.summary)) == []
