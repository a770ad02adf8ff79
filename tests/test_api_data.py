"""Test ``diagnose``, ``score`` and ``plan`` from Python on data frames, tables and lists."""

import csv
import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app
from fairbench_logs.in_memory import as_file

BEGAN = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
LEAST = {"dp": (1, 2), "num_runs": 1, "no_sharing": True, "scheduler": ["vtc"]}


@pytest.fixture(scope="module")
def rows():
    """Return 40 requests of three clients."""
    rng = random.Random(5)
    return [
        {
            "timestamp": round(at + rng.random(), 3),
            "client": f"team-{at % 3}",
            "input_tokens": rng.randrange(100, 900),
            "output_tokens": rng.randrange(20, 90),
            "ttft": 0.25 + 0.125 * (at % 4),
            "latency": 4.0 + 0.5 * (at % 5),
        }
        for at in range(40)
    ]


@pytest.fixture(scope="module")
def by_file(rows, tmp_path_factory):
    """Return a CSV file of the requests, and the summary that the command prints for it."""
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = CliRunner().invoke(app, ["score", str(path), "--json"])
    assert done.exit_code == 0, done.output
    return path, json.loads(done.stdout)


def without_files(summary):
    return {key: value for key, value in summary.items() if key not in ("records", "notes")}


def dated(rows):
    """Return the rows with dates."""
    return [{**row, "timestamp": BEGAN + timedelta(seconds=row["timestamp"])} for row in rows]


class Stream:
    """A table of a library that has only Arrow's interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def numpy_values(rows):
    return [
        {
            key: np.float64(value) if isinstance(value, float) else Decimal(value)
            if isinstance(value, int) else value
            for key, value in row.items()
        }
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows,
        iter,
        numpy_values,
        pa.Table.from_pylist,
        lambda rows: Stream(pa.Table.from_pylist(rows)),
        lambda rows: pa.RecordBatch.from_pylist(rows),
        lambda rows: {key: [row[key] for row in rows] for key in rows[0]},
        lambda rows: {key: np.array([row[key] for row in rows]) for key in rows[0]},
    ],
)
def test_every_kind_of_table_scores_like_its_file(rows, by_file, made):
    answer = fairbench.score(made(rows))
    assert without_files(answer.summary) == without_files(by_file[1])
    assert answer.summary["records"] == ["data"]


@pytest.mark.parametrize(
    "made",
    [
        lambda frame: frame,
        lambda frame: frame.set_index("timestamp"),
        lambda frame: frame.sample(frac=1, random_state=1),
        lambda frame: frame.astype({"client": "category", "input_tokens": "Int64"}),
        lambda frame: frame.astype({"input_tokens": float, "client": object}),
        lambda frame: frame.assign(ttft=frame["ttft"] * 1000).rename(columns={"ttft": "ttft_ms"}),
    ],
)
def test_every_kind_of_pandas_frame_scores_like_its_file(rows, by_file, made):
    pandas = pytest.importorskip("pandas")
    found = fairbench.score(made(pandas.DataFrame(rows))).summary
    known = by_file[1]
    for key in ("duration", "service_rate_tok_s", "jain_index", "p50_ttft_ms", "victim_p95_s"):
        assert found[key] == pytest.approx(known[key]), key
    assert {one["client"] for one in found["clients"]} == {"team-0", "team-1", "team-2"}


def test_dates_of_a_frame_are_the_times_of_requests(rows, by_file):
    pandas = pytest.importorskip("pandas")
    tables = [dated(rows), pandas.DataFrame(dated(rows)), pa.Table.from_pylist(dated(rows))]
    tables.append(pandas.DataFrame(dated(rows)).astype({"timestamp": "datetime64[ns, UTC]"}))
    for table in tables:
        found = fairbench.score(table).summary
        assert found["began"].startswith("2026-03-04T12:00:0")
        assert found["victim_p95_s"] == pytest.approx(by_file[1]["victim_p95_s"])


def test_missing_values_of_a_frame_are_missing(rows):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows).astype({"output_tokens": "Int64"})
    frame.loc[3, ["ttft", "latency"]] = np.nan
    frame["ended"] = pandas.to_datetime("2026-01-01")
    frame.loc[4, "ended"] = pandas.NaT
    frame.loc[5, "output_tokens"] = pandas.NA
    with as_file(frame) as file:
        found = [json.loads(line) for line in Path(file).read_text().splitlines()]
    assert (found[3]["ttft"], found[4]["ended"], found[5]["output_tokens"]) == (None, None, None)
    assert (found[0]["ended"], found[0]["output_tokens"]) == (
        "2026-01-01T00:00:00",
        rows[0]["output_tokens"],
    )


def test_columns_of_other_names_are_mapped(rows):
    other = [{**row, "who": row["client"], "client": "gateway"} for row in rows]
    found = fairbench.score(other, map={"client": "who"}, misbehaving=["team-1"])
    names = {one["client"]: one["misbehaving"] for one in found.summary["clients"]}
    assert names == {"team-0": False, "team-1": True, "team-2": False}
    found = fairbench.diagnose(other, map={"client": "who"}, no_plan=True, scheduler=["fcfs"])
    assert found.summary["clients"] == 3


def test_a_diagnosis_of_a_frame_equals_the_one_of_its_file(rows, by_file, tmp_path):
    flags = ["--no-plan", "--scheduler", "fcfs,vtc", "--gpu", "a10g"]
    done = CliRunner().invoke(app, ["diagnose", str(by_file[0]), *flags, "--json"])
    known = json.loads(done.stdout)
    answer = fairbench.diagnose(rows, no_plan=True, scheduler=["fcfs", "vtc"], gpu="a10g")
    own = ("file", "format", "sha256")
    plain = json.loads(json.dumps(answer.summary))
    assert {k: v for k, v in plain.items() if k not in own} == {
        k: v for k, v in known.items() if k not in own
    }
    assert "data: 40 requests of 3 clients" in str(answer)
    assert "<pre>" in answer._repr_html_()
    answer.save_report(tmp_path / "page.html")
    assert "data: 40 requests" in (tmp_path / "page.html").read_text()
    with pytest.raises(fairbench.UsageError, match=r"save_report .*page.txt: must end in .html"):
        answer.save_report(tmp_path / "page.txt")


def test_a_plan_of_a_frame_equals_the_one_of_its_file(rows, by_file, tmp_path):
    pandas = pytest.importorskip("pandas")
    slo = ["victim_p95_s<5s"]
    known = fairbench.plan(by_file[0], slo=slo, **LEAST).summary
    answer = fairbench.plan(pandas.DataFrame(rows), slo=slo, **LEAST)
    assert answer.summary["choices"] == known["choices"]
    assert answer.summary["trace"].startswith("data, jsonl, sha256")
    assert "vtc" in str(answer)
    answer.save_report(tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "data, jsonl" in page
    assert str(tmp_path.parents[1]) not in page
    assert ".jsonl" not in page


def test_a_plan_needs_no_data():
    chat = {"workload": "chat", "num_programs": 1}
    answer = fairbench.plan(slo=["victim_p95_s<1000s"], **chat, **LEAST)
    assert answer.summary["choices"][0]["replicas"] == 1
    with pytest.raises(fairbench.UsageError, match="duration_x"):
        fairbench.plan(slo=["victim_p95_s<1000s"], duration_x=3)


@pytest.mark.parametrize("command", [fairbench.score, fairbench.diagnose])
@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "data: has no rows"),
        (pa.table({"client": []}), "data: has no rows"),
        (3.5, "data: must be a data frame, .* not float"),
        (["a", "b"], "data: must be a data frame"),
        ({"client": ["a"], "time": [1, 2]}, "data: all columns must have the same length"),
        ([{"colour": "red"}] * 3, "data, row 1"),
        ("no-such-file.csv", "no-such-file.csv"),
    ],
)
def test_wrong_data_is_one_line_that_names_the_row(command, data, error):
    with pytest.raises(fairbench.UsageError, match=error) as caught:
        command(data)
    assert "\n" not in str(caught.value)
    assert "/tmp" not in str(caught.value)


def test_a_wrong_value_names_its_row(rows):
    wrong = [*rows[:7], {**rows[7], "input_tokens": -4}, *rows[8:]]
    for command in (fairbench.score, fairbench.diagnose):
        with pytest.raises(fairbench.DataError, match=r"data.*(row|request) 8") as caught:
            command(wrong)
        assert ".jsonl" not in str(caught.value)


def test_several_tables_and_wrong_flags_are_refused(rows):
    with pytest.raises(fairbench.UsageError, match="give one table"):
        fairbench.score(rows, rows)
    with pytest.raises(fairbench.UsageError, match="time_unit = hours"):
        fairbench.score(rows, time_unit="hours")
    with pytest.raises(fairbench.UsageError, match="unknown client in --misbehaving 'team-9'"):
        fairbench.score(rows, misbehaving=["team-9"])
    with pytest.raises(fairbench.UsageError, match="field in --map"):
        fairbench.score(rows, map={"klient": "client"})
    with pytest.raises(fairbench.UsageError, match="fcffs"):
        fairbench.diagnose(rows, scheduler=["fcffs"], no_plan=True)


def test_packages_with_the_names_of_functions_do_not_replace_them():

    assert callable(fairbench.score)
    assert callable(fairbench.diagnose)
