"""Test that ``run --trace`` plays recorded requests at their times, by client and length."""

import json

import pytest
from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app
from fairbench.config.resolve import experiment, read_spec
from fairbench.errors import DataError, UsageError
from fairbench.sim.run import simulate
from fairbench_logs.traces import read

CSV = """timestamp,tenant,prompt_tokens,completion_tokens
2024-05-01T12:00:00Z,alice,100,10
2024-05-01T12:00:01Z,alice,300,30
2024-05-01T14:00:00.5+02:00,bob,200,20
2024-05-01 12:00:02,alice,0,30
2024-05-01T12:00:04Z,carol x,50,5
"""
ROWS = [
    ("alice", 0.0, 100, 10),
    ("bob", 0.5, 200, 20),
    ("alice", 1.0, 300, 30),
    ("carol_x", 4.0, 50, 5),
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def rows_of(result):
    columns = ("client", "arrival_s", "input_tokens", "output_tokens")
    rows = zip(*(result.requests[name].to_pylist() for name in columns), strict=True)
    return sorted(rows, key=lambda row: row[1])


def test_a_foreign_csv_is_played_as_recorded(trace):
    result = fairbench.run(trace=str(trace), scheduler="fcfs")
    assert rows_of(result) == ROWS
    assert set(result.requests["max_new_tokens"].to_pylist()) == {5, 10, 20, 30}
    assert result.summary["trace"].startswith(f"{trace}, csv, sha256 ")
    assert result.summary["trace"].endswith(", as recorded, 1 failed requests left out")
    assert "synthetic" not in result.summary
    assert result.summary["workload"] == "trace-mine"


def test_simultaneous_requests_are_judged_over_the_whole_run(tmp_path):
    path = tmp_path / "batch.csv"
    lines = "".join(f"0,{'ab'[n % 2]},{100 + n},{5 + n}\n" for n in range(20))
    path.write_text(f"time,client,isl,osl\n{lines}", encoding="utf-8")
    summary = fairbench.run(trace=str(path), scheduler="fcfs").summary
    assert (summary["window_start_s"], summary["victim_n"]) == (0.0, 10)
    assert all(one["latency_n"] == 10 and one["p50_s"] > 0 for one in summary["clients"])
    served = {"a": sum(100 + n + 2 * (5 + n) for n in range(0, 20, 2))}
    served["b"] = sum(100 + n + 2 * (5 + n) for n in range(1, 20, 2))
    for one in summary["clients"]:
        tokens = one["service_rate_tok_s"] * summary["window_end_s"]
        assert tokens == pytest.approx(served[one["client"]])


def test_twice_the_speed_gives_half_the_times(trace):
    result = fairbench.run(trace=str(trace), scheduler="fcfs", time_scale=2)
    assert [row[1] for row in rows_of(result)] == [0.0, 0.25, 0.5, 2.0]


def test_the_records_are_repeatable_and_no_seed_moves_an_arrival(trace):
    runs = [fairbench.run(trace=str(trace), scheduler="d2lpm", seed=seed) for seed in (0, 0, 7)]
    first, again, other = ([run.requests.to_pylist(), run.summary] for run in runs)
    assert repr(first) == repr(again)
    assert rows_of(runs[2]) == ROWS
    assert repr(other[0]) == repr(first[0])


def test_the_duration_of_arrivals_cuts_a_trace(trace):
    result = fairbench.run(trace=str(trace), duration=1.0)
    assert rows_of(result) == ROWS[:2]  # the third request comes exactly at the end
    result = fairbench.run(trace=str(trace), num_programs=1)
    assert rows_of(result) == [ROWS[0], ROWS[1], ROWS[3]]


@pytest.mark.parametrize(
    ("lines", "flags"),
    [
        ('{"t": 0, "user": "a", "input_length": 7, "osl": 3}', {}),
        ('{"Timestamp": 5000, "client_id": "a", "ISL": 7, "osl": 3}', {}),
        ('{"time_ms": 1, "user": "a", "Request tokens": 7, "Response tokens": 3}', {}),
        (
            '{"when": 5, "who": "a", "in": 7, "out": 3}',
            {"trace_map": {"time_us": "when", "input_tokens": "in", "output_tokens": "out"}}
            | {"clients_from": "who"},
        ),
        ('{"at": {"s": 5}, "user": "a", "isl": 7, "osl": 3}', {"trace_map": {"time": "at.s"}}),
    ],
)
def test_columns_are_found_by_common_or_given_names(tmp_path, lines, flags):
    path = tmp_path / "log.jsonl"
    path.write_text(lines + "\n", encoding="utf-8")
    result = fairbench.run(trace=str(path), scheduler="fcfs", **flags)
    assert rows_of(result) == [("a", 0.0, 7, 3)]


@pytest.mark.parametrize(
    ("column", "values", "second_s"),
    [
        ("timestamp", (1_714_564_800, 1_714_564_802), 2.0),
        ("timestamp", (1_714_564_800_000, 1_714_564_800_250), 0.25),
        ("timestamp", (1_714_564_800_000_000, 1_714_564_800_000_001), 1e-6),
        ("timestamp", (1_714_564_800_000_000_000, 1_714_564_801_000_000_000), 1.0),
        ("timestamp_ms", (3, 503), 0.5),
        ("Start Time (us)", (0, 1_500_000), 1.5),
        ("t", ("0", "0.207938"), 0.207938),
        ("t", ("2024-02-29", "2024-03-01T00:00:00Z"), 86_400.0),
    ],
)
def test_the_unit_of_times_follows_from_name_or_size(tmp_path, column, values, second_s):
    lines = [json.dumps({column: at, "isl": 9, "osl": 1}) for at in values]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    result = fairbench.run(trace=str(path), scheduler="fcfs")
    assert [row[:2] for row in rows_of(result)] == [("all", 0.0), ("all", second_s)]


def test_made_up_clients_are_labelled_in_every_output(trace, tmp_path):
    arguments = ["--trace", trace, "--clients", "2", "--result-dir", tmp_path / "out"]
    done = CliRunner().invoke(app, ["run", *map(str, arguments), "--output-file", f"{tmp_path}/b"])
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "out").iterdir()
    label = "the 2 clients are made up, by Zipf's law"
    assert f"SYNTHETIC: {label}" in done.stdout
    for name in ("show", "report"):
        more = ["-o", str(tmp_path / "page.md")] if name == "report" else []
        shown = CliRunner().invoke(app, [name, str(path), *more])
        assert shown.exit_code == 0, shown.output
    assert f"SYNTHETIC: {label}" in CliRunner().invoke(app, ["show", str(path)]).stdout
    assert label in (tmp_path / "page.md").read_text(encoding="utf-8")
    for text in (
        path.name,
        (path / "experiment.toml").read_text(encoding="utf-8"),
        (tmp_path / "b").read_text(encoding="utf-8"),
    ):
        assert "trace-mine-synthetic" in text
    for name in ("summary.json", "manifest.json"):
        assert json.loads((path / name).read_text(encoding="utf-8"))["synthetic"] == label
    clients = {row["client"] for row in json.loads((path / "summary.json").read_text())["clients"]}
    assert clients == {"synthetic-1", "synthetic-2"}


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0, 4.0])
def test_the_expected_programs_are_those_that_arrive_by_then(tmp_path, speed):
    path = tmp_path / "steady.csv"
    path.write_text("t,isl,osl\n" + "".join(f"{n},1,1\n" for n in range(20)), encoding="utf-8")
    (plan,) = experiment({"trace": str(path), "time_scale": speed}, {}).client_plans()
    times = [at_s for at_s, _ in plan.arrivals.arrivals(None)]
    assert times == [n / speed for n in range(20)]
    for before_s in (0.0, 1.1, 5.0, 1e9):
        assert plan.arrivals.expected_programs(before_s) == sum(at_s < before_s for at_s in times)


def test_made_up_clients_follow_zipfs_law(tmp_path):
    path = tmp_path / "many.csv"
    path.write_text("t,isl,osl\n" + "".join(f"{n},1,1\n" for n in range(20_000)), encoding="utf-8")
    plans = experiment({"trace": str(path), "clients": 3}, {}).client_plans()
    counts = [plan.arrivals.expected_programs() for plan in plans]
    assert sum(counts) == 20_000
    for count, part in zip(counts, (6 / 11, 3 / 11, 2 / 11), strict=True):
        assert abs(count / 20_000 - part) < 0.02  # five deviations


def test_the_stored_experiment_plays_the_same_file_and_no_other(trace, tmp_path):
    stored = fairbench.run(trace=str(trace), scheduler="vtc", result_dir=tmp_path / "out")
    (path,) = (tmp_path / "out").iterdir()
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert len(manifest["trace_sha256"]) == 64
    spec = read_spec(path / "experiment.toml")
    assert repr(simulate(spec).summary) == repr(stored.summary)
    trace.unlink()  # a run that has read its trace can end without it
    assert repr(simulate(spec).summary) == repr(stored.summary)
    trace.write_text(CSV.replace("bob", "eve"), encoding="utf-8")
    read._read_pinned.cache_clear()
    with pytest.raises(DataError, match="the file has changed since the experiment was stored"):
        simulate(spec)


def test_steps_of_a_session_are_at_least_the_recorded_distance_apart(tmp_path):
    path = tmp_path / "agent.jsonl"
    steps = [
        {"time": 10.0, "session": "s", "input_tokens": 8, "output_tokens": 1},
        {"time": 12.0, "session": "s", "input_tokens": 8, "output_tokens": 500},
        {"time": 12.1, "session": "s", "input_tokens": 8, "output_tokens": 1},
        {"time": 11.0, "session": "other", "input_tokens": 8, "output_tokens": 1},
    ]
    path.write_text("\n".join(map(json.dumps, steps)), encoding="utf-8")
    result = fairbench.run(trace=str(path), scheduler="fcfs")
    assert sorted(result.programs["requests"].to_pylist()) == [1, 3]
    rows = sorted(result.requests.to_pylist(), key=lambda row: row["arrival_s"])
    assert [(row["arrival_s"], row["depth"]) for row in rows[:3]] == [(0, 0), (1, 0), (2, 1)]
    # Its answer takes longer than 0.1 s, so the last step begins when that answer has come.
    assert rows[3]["arrival_s"] == rows[2]["finish_s"] > 2.1
    assert result.summary["latency"] == "program"
    assert result.summary["think_time"] is True


def test_a_recorded_end_determines_the_think_time(tmp_path):
    path = tmp_path / "agent.csv"
    path.write_text(
        "time,end,session,input_tokens,output_tokens\n"
        "2024-05-01T12:00:00,2024-05-01T12:00:05,s,8,500\n"
        "2024-05-01T12:00:08,,s,8,1\n",
        encoding="utf-8",
    )
    result = fairbench.run(trace=str(path), scheduler="fcfs")
    first, second = sorted(result.requests.to_pylist(), key=lambda row: row["arrival_s"])
    assert second["arrival_s"] - first["finish_s"] == pytest.approx(3.0, abs=1e-9)


def test_conflicts_with_a_trace_are_refused(trace):
    for flags, complaint in (
        ({"workload": "tot"}, "workload = tot: cannot be combined with --trace, which"),
        (
            {"request_rate": 3.0},
            "request_rate = 3.0: cannot be combined with --trace, which sets it: give --time-scale",
        ),
        (
            {"burstiness": 0.5},
            (
                "burstiness = 0.5: not supported for a trace, which sets the arrival times; "
                "leave burstiness out"
            ),
        ),
        ({"time_scale": -1.0}, "time_scale = -1.0: must be above 0"),
        ({"clients": -1}, "clients = -1: must be above 0"),
        ({"trace_format": "mooncak"}, "unknown trace format 'mooncak'"),
        ({"scenario": "s1"}, "unknown scenario of trace-mine 's1'"),
        ({"weights": {"alise": 2}}, "Did you mean 'alice'?"),
    ):
        with pytest.raises(UsageError) as error:
            experiment({"trace": str(trace), **flags}, {})
        assert complaint in str(error.value)
    with pytest.raises(UsageError, match="clients_from needs --trace"):
        experiment({"clients_from": "x"}, {})
