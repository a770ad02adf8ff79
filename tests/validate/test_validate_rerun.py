"""Reruns of the DLPM authors' benchmark: reading, the comparison's arithmetic, the command."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench.validate.pair import Pair
from fairbench.validate.rerun import (
    Rerun,
    RerunComparison,
    compare_rerun,
    holds_reruns,
    load_reruns,
)
from fairbench.validate.rerun_table import rerun_text
from shared_data import SHARED, needs

FILE = SHARED / "data" / "dlpm_judge_rerun.json"


def record(**changes):
    """Three users of four programs each, the first with four branches."""
    run = {
        "run_id": "tiny-dlpm",
        "scheduler": "dlpm",
        "flags": "--schedule-po lpm_mdrr --Q 40000",
        "server": "sglang, --mem-frac 0.7 --max-total 20000 --max-prefill 16000",
        "client": "4 programs a user, --intervals 2 2 2 --branches 4 2 2 --initial-delay 10",
        "makespan_s": 20.0,
        "service_tok_s": 5000.0,
        "service_tok_s_all_active": 6000.0,
        "jain_service": 0.9,
        "program_latencies_s": {f"user{user}": [3.0, 1.0, 2.0, 9.0] for user in range(3)},
    }
    return {**run, **changes}


def write(folder, *records):
    path = folder / "runs.json"
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return path


def test_a_run_is_read_from_its_command_lines(tmp_path):
    [run] = load_reruns(write(tmp_path, record()))
    assert run == Rerun(
        name="tiny-dlpm",
        scheduler="dlpm",
        settings={
            "engine.max_total_tokens": 20_000,
            "engine.max_prefill_tokens": 16_000,
            "dlpm.quantum": 40_000,
        },
        num_programs=4,
        interval_s=2.0,
        branches=(4, 2, 2),
        makespan_s=20.0,
        service_tok_s=5_000.0,
        active_tok_s=6_000.0,
        jain=0.9,
        p50_s=(2.5, 2.5, 2.5),
    )


def test_the_quantum_of_another_scheduler_is_left_out(tmp_path):
    [run] = load_reruns(write(tmp_path, record(scheduler="lpm")))
    assert "dlpm.quantum" not in run.settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler": "sjf"}, "scheduler 'sjf': known are lpm, vtc, dlpm, d2lpm, preble, fcfs"),
        ({"makespan_s": "20"}, "field 'makespan_s' = '20': is of another type"),
        ({"server": "sglang"}, "no --max-total in 'sglang'"),
        (
            {"client": "4 programs a user, --intervals 2 2 2 --branches 4 2 3"},
            "client: users 1 and up must be alike, and intervals the same",
        ),
        (
            {"program_latencies_s": {"user0": [1.0]}},
            "program_latencies_s: 1 users, not 3",
        ),
    ],
)
def test_a_bad_run_is_named(tmp_path, changes, message):
    path = write(tmp_path, record(), record(**changes))
    with pytest.raises(DataError) as caught:
        load_reruns(path)
    assert str(caught.value) == f"{path}, run 2 (tiny-dlpm): {message}"


def test_a_missing_field_is_named(tmp_path):
    run = record()
    del run["makespan_s"]
    with pytest.raises(DataError, match=r"run 1 \(tiny-dlpm\): field 'makespan_s' is missing"):
        load_reruns(write(tmp_path, run))


def test_other_json_is_no_rerun(tmp_path):
    assert holds_reruns(write(tmp_path, record()))
    assert not holds_reruns(write(tmp_path))
    assert not holds_reruns(write(tmp_path, {"run_id": "x"}))
    assert not holds_reruns(tmp_path / "absent.json")


NEAR = RerunComparison(
    name="x",
    scheduler="lpm",
    profile="p",
    service_tok_s=Pair(105.0, 100.0),
    active_tok_s=Pair(150.0, 100.0),
    jain=Pair(0.86, 0.9),
    makespan_s=Pair(89.0, 100.0),
    p50_s=(Pair(1.0, 2.0),),
)


def test_targets_are_6_percent_of_service_005_of_jain_and_12_percent_of_the_makespan():
    assert NEAR.misses == []
    assert replace(NEAR, service_tok_s=Pair(107.0, 100.0)).misses == ["service: +7.0% (target 6%)"]
    assert replace(NEAR, jain=Pair(0.8, 0.9)).misses == [
        "Jain's index: 0.800 against 0.900 (target 0.05)"
    ]
    assert replace(NEAR, makespan_s=Pair(87.0, 100.0)).misses == ["makespan: -13.0% (target 12%)"]


def test_the_table_marks_what_is_missed():
    text = rerun_text([NEAR, replace(NEAR, name="y", makespan_s=Pair(50.0, 100.0))])
    assert "Targets missed: 1\n  ! y: makespan: -50.0% (target 12%)" in text
    assert text.count("100!") == 1
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_is_simulated_with_its_branches_and_programs(tmp_path):
    [run] = load_reruns(write(tmp_path, record()))
    found = compare_rerun(run)
    assert found.profile == "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
    assert len(found.p50_s) == 3
    assert found.makespan_s.simulated > 3 * 2.0  # the last of four programs arrives after 6 s
    assert found == compare_rerun(run)


def test_the_command_prints_and_writes_the_comparison(tmp_path):
    path, out = write(tmp_path, record()), tmp_path / "out"
    done = CliRunner().invoke(app, ["validate", str(path), "--output-dir", str(out)])
    assert done.exit_code == 0, done.output
    assert "the DLPM authors' benchmark on a GPU: simulated / measured, nothing fitted" in (
        done.output
    )
    [stored] = json.loads((out / "validation.json").read_text())["reruns"]
    assert stored["name"] == "tiny-dlpm"
    assert stored["makespan_s"]["measured"] == 20.0


@needs(FILE)
def test_lpm_serves_the_most_and_is_done_first_simulated_and_measured():
    found = {run.scheduler: run for run in map(compare_rerun, load_reruns(FILE))}
    for side in ("simulated", "measured"):
        rates = {name: getattr(run.service_tok_s, side) for name, run in found.items()}
        makespans = {name: getattr(run.makespan_s, side) for name, run in found.items()}
        assert max(rates, key=rates.__getitem__) == "lpm", side
        assert min(makespans, key=makespans.__getitem__) == "lpm", side
