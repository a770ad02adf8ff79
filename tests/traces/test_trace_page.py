"""Test the page of public traces: its workload files load, and its tables have every pair."""

import csv
import tomllib
from pathlib import Path

import pytest

from fairbench.schedulers.gateway.registry import needs_sessions, policies_by_name
from fairbench.schedulers.registry import (
    PAIRS,
    local_class,
    locals_by_name,
    routers_by_name,
    split_pair,
)
from fairbench.workloads.spec import load_workload

ROOT = Path(__file__).resolve().parents[2]
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


EVERY = tomllib.loads((ROOT / "examples/traces/every-scheduler.toml").read_text(encoding="utf-8"))
SCHEDULERS, GATEWAYS, DEADLINES = EVERY["grid"]


def test_the_sweep_of_every_scheduler_leaves_out_no_named_one():
    pairs = [*SCHEDULERS["scheduler"], *DEADLINES["scheduler"]]
    routers, locals_ = zip(*map(split_pair, pairs), strict=True)
    assert set(PAIRS) <= set(pairs)
    kinds = {one: local_class(one) for one in locals_by_name()}
    # orders of SGLang, and parts of its pass that order nothing
    of_engine = {
        name for name, kind in kinds.items() if kind.sglang_since or kind.decodes_first is not None
    }
    assert set(routers) == set(routers_by_name())
    assert set(locals_) == set(locals_by_name()) - of_engine
    # The traces have no sessions.
    for_requests = {name for name in policies_by_name() if not needs_sessions(name)}
    assert for_requests <= set(GATEWAYS["gateway"])
    assert SCHEDULERS["workload"] == GATEWAYS["workload"] == FILES


def test_the_table_of_the_sweep_has_every_trace_under_each_scheduler():
    path = ROOT / "results" / "tables" / "traces-every.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row.pop("scheduler"): row for row in csv.DictReader(file)}
    gateways = [f"gateway {name}" for name in GATEWAYS["gateway"]]
    assert set(rows) == {*SCHEDULERS["scheduler"], *gateways, *DEADLINES["scheduler"]}
    promised = {Path(name).stem for name in DEADLINES["workload"]}
    for name, row in rows.items():
        some = promised if name in DEADLINES["scheduler"] else row.keys()
        assert {trace for trace, cell in row.items() if cell} == some
