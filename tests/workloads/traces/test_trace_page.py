"""The page of public traces: its workload files are read, and its table has every pair."""

import csv
import tomllib
from pathlib import Path

import pytest

from fairbench.workloads.spec import load_workload

ROOT = Path(__file__).resolve().parents[3]
SWEEP = tomllib.loads((ROOT / "examples" / "traces" / "sweep.toml").read_text(encoding="utf-8"))
FILES = SWEEP["grid"]["workload"]


@pytest.mark.parametrize("name", FILES)
def test_a_workload_plays_a_named_trace(name):
    workload = load_workload(str(ROOT / name))
    params = workload.traffic().params
    assert workload.name == Path(name).stem
    assert len(params.sha256) == 64
    assert workload.warmup_s < workload.duration_s


def test_the_table_has_every_trace_under_every_scheduler():
    with (ROOT / "results" / "tables" / "traces.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["trace"], row["scheduler"]) for row in csv.DictReader(file)]
    wanted = {(Path(name).stem, one) for name in FILES for one in SWEEP["grid"]["scheduler"]}
    assert len(rows) == len(set(rows)) == len(wanted)
    assert set(rows) == wanted
