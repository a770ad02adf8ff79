"""Test the command line of ``fairbench validate``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.metrics.catalogue import columns_of
from fairbench.metrics.metric import Display
from fairbench.results.store import StoredRun
from fairbench_calibration.validate.live_run import compare_live, live_lines
from fairbench_studies.validation.slora import calibrate, files
from tests.shared_data import VTC_RUNS, needs


def record(path):
    """Return a run of twelve requests of two clients, one every 2 s."""
    n = 12
    return {
        "path": path,
        "client": [i % 2 for i in range(n)],
        "prompt_len": [200] * n,
        "output_len": [40] * n,
        "req_time": [2.0 * i for i in range(n)],
        "first_token_latency": [0.13] * n,
        "request_latency": [1.5] * n,
    }


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.jsonl"
    names = ("FCFS/all_results_overload", "VTC/all_results_overload", "VTC/all_results_mine")
    path.write_text("".join(json.dumps(record(f"x/{name}.jsonl")) + "\n" for name in names))
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


def test_json_is_one_object_with_the_runs(runs):
    result = invoke(runs, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    whole = json.loads(result.stdout)
    assert list(whole) == [
        "timing_profile", "pool_tokens", "fitted_scenarios", "fitted", "not_fitted", "runs",
        "orders",
    ]  # fmt: skip
    named = [(run["name"], run["fitted"]) for run in whole["runs"]]
    assert named == [("FCFS/overload", True), ("VTC/mine", False), ("VTC/overload", True)]
    assert all(abs(run["throughput_error_pct"]) < 10 for run in whole["runs"])
    steps = {"2023-12": 0.1, "2024-04": 0.03, "2024-06": 0.03}
    assert whole["fitted"] == {
        "prefill_overhead_ms": 14.0, "response_ms": 4.0, "request_step_ms": steps,
    }  # fmt: skip
    assert whole["not_fitted"] == {"c_T_ms": 0.214, "prefill_tile": 256}
    (window,) = whole["runs"][0]["windows"]
    assert (window["start_s"], window["end_s"]) == (0, 22)
    for pair in (window["jain_index"], window["clients"][0]["service_rate_tok_s"]):
        assert list(pair) == ["simulated", "measured", "error_pct"]


def test_the_table_names_the_fitted_runs(runs):
    result = invoke(runs)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "a10g-24gb/llama-2-7b/tp1/slora-fitted; fitted, to the overload and" in result.stdout
    assert "FCFS/overload*" in result.stdout
    assert "VTC/mine*" not in result.stdout


def test_fit_prints_the_candidates_and_the_best(runs, monkeypatch):
    monkeypatch.setattr(calibrate, "OVERHEADS_MS", (14.0,))
    monkeypatch.setattr(calibrate, "STEPS_MS", (0.04, 0.1))
    whole = json.loads(invoke(runs, "--fit", "--json").stdout)
    dates = [one["recorded"] for one in whole["candidates"]]
    assert dates == ["2023-12", "2023-12", "2024-06", "2024-06"]
    assert list(whole["best"]["request_step_ms"]) == ["2023-12", "2024-06"]
    lines = invoke(runs, "--fit").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [*dates, "best"]


def test_another_profile_and_pool_are_used_and_reported(runs):
    other = "a100-80gb/llama-2-7b/tp1/vllm-0.14.0"
    whole = json.loads(invoke(runs, "--profile", other, "--pool", 35_000, "--json").stdout)
    assert (whole["timing_profile"], whole["pool_tokens"]) == (other, 35_000)
    assert whole["fitted_scenarios"] == []
    assert not any(run["fitted"] for run in whole["runs"])
    assert all(run["throughput_error_pct"] > 1 for run in whole["runs"])
    text = invoke(runs, "--profile", other, "--pool", 35_000).stdout
    assert f"timing profile {other}, KV pool 35,000 tokens" in " ".join(text.split())


def test_a_profile_that_is_not_there_is_named(runs, tmp_path):
    result = invoke(runs, "--profile", "a10g-24gb/llama-2-7b/tp1/slora-fited")
    assert result.exit_code == 2
    assert "Did you mean 'a10g-24gb/llama-2-7b/tp1/slora-fitted'" in result.stderr
    result = invoke(tmp_path, "--pool", 35_000)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "--gpu" in result.stderr


def test_without_matplotlib_numbers_are_written_with_a_hint(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    result = invoke(runs, "--output-dir", tmp_path / "out", "--json")
    assert result.exit_code == 0
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv", ".json"]
    assert "no figure: it needs pip install '.[plot]'" in result.stderr


def test_cross_checks_make_a_second_table(runs, tmp_path):
    checks = tmp_path / "checks.json"
    entry = {"what": "SGLang CI gate > 135 tok/s", "source": "s", "predicted": "7.1 ms"}
    checks.write_text(json.dumps([entry, {"what": "other", "source": "s", "predicted": "words"}]))
    text = invoke(runs, "--crosschecks", checks).stdout
    assert "135 tok/s" in text
    assert "(quoted) words" in text
    (first, second) = json.loads(invoke(runs, "--crosschecks", checks, "--json").stdout)[
        "crosschecks"
    ]
    assert (first["published"], second["quoted"]) == (135, "words")


def test_files_are_written_where_asked(runs, tmp_path):
    pytest.importorskip("matplotlib", reason="the figure needs the plot extra")
    result = invoke(runs, "--output-dir", tmp_path / "deep" / "out", "--json")
    assert result.exit_code == 0
    written = tmp_path / "deep" / "out"
    assert json.loads((written / "validation.json").read_text()) == json.loads(result.stdout)
    assert len(list(written.iterdir())) == 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text("nonsense\n"), "line 1: not JSON"),
        (lambda path: path.write_text(""), "no records"),
        (lambda path: path.write_text('{"path": "x/WFQ/all_results_a.jsonl"}'), "'WFQ'"),
    ],
)
def test_a_bad_path_is_one_line_and_exit_code_2(runs, change, complaint):
    change(runs)
    result = invoke(runs)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"fairbench: {runs}")
    assert complaint in result.stderr


@needs(VTC_RUNS)
@pytest.mark.slow
def test_the_real_runs_have_exactly_the_known_misses():
    """docs/appendix/measured.md explains each miss."""
    whole = json.loads(invoke(VTC_RUNS, "--json").stdout)
    missed = {run["name"]: [m.split(":")[0] for m in run["misses"]] for run in whole["runs"]}
    assert {name: misses for name, misses in missed.items() if misses} == {
        "FCFS/increase": ["TTFT P50 of client 1"],
        "LShare/rpm5/real": ["service rate of client 2 in 60 to 120 s"],
        "VTC/increase": ["TTFT P50 of client 1"],
        "VTC/on_off_less": ["TTFT P50 of client 0"],
    }
    assert [order["inverted"] for order in whole["orders"]] == [[]] * len(whole["orders"])


def test_a_simulated_run_is_not_compared_with_itself(tmp_path):
    flags = ["run", "--workload", "chat", "--num-programs", "1", "--result-dir", str(tmp_path)]
    assert CliRunner().invoke(app, flags).exit_code == 0
    (path,) = tmp_path.iterdir()
    result = invoke(path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"fairbench: {path}: this run is a simulation; "
        "give the directory of a run on real servers\n",
    )


METRICS = [column.key for column in columns_of(Display.LIVE)]


def test_metrics_of_a_live_run_are_paired_with_the_simulated():
    clients = [{"client": "ann", "service_rate_tok_s": 50.0, "p50_s": None, "p99_s": 2.0}]
    live = dict.fromkeys(METRICS, 10.0) | {"jain_index": None, "clients": clients}
    live |= {"emulated": False, "served": "sglang 1"}
    simulated = dict.fromkeys(METRICS, 9.0) | {"timing_profile": "h200", "clients": clients}
    comparison = compare_live(StoredRun(Path(), live, {}), simulated)
    assert (comparison.kind, comparison.served) == ("measured", "sglang 1")
    assert comparison.pairs["victim_p99_s"].error_pct == pytest.approx(-10)
    few = {"victim_n": 60, "victim_p95_s": 8.0}
    fewer = compare_live(StoredRun(Path(), live | few, {}), simulated | few)
    assert "victim_p99_s" not in fewer.pairs
    assert fewer.pairs["victim_p95_s"].error_pct == 0
    undefined = {"simulated": 9.0, "measured": None, "error_pct": None}
    assert comparison.pairs["jain_index"].as_dict() == undefined
    assert comparison.pairs["ann.p99_s"].error_pct == 0
    lines = list(live_lines(comparison))
    assert lines[0] == "simulated on h200; measured on sglang 1"
    assert any(line.split() == ["victim_p99_s", "10.0", "9.00", "-10.0%"] for line in lines)
    assert any(line.split() == ["jain_index", "-", "9.00", "-"] for line in lines)
