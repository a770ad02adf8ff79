"""Test run directories with a damaged file: a one-line error, exit code 2, nothing written."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.execute.live_runs import NO_FLAGS
from fairbench.execute.run_or_recover import run_and_save
from fairbench.execute.tasks import run_context
from fairbench.results.store import write_text


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    spec = resolve({"workload": "chat", "scenario": "none", "num_programs": 1})
    with run_context() as context:
        return run_and_save(spec, NO_FLAGS, tmp_path_factory.mktemp("runs"), context)[1]


@pytest.fixture
def run(good, tmp_path):
    shutil.copytree(good, tmp_path / "run")
    shutil.copytree(good, tmp_path / "good")
    return tmp_path / "run"


def change_column(path, name, change):
    """Replace a table's column by ``change(values)``."""
    table = pq.read_table(path)
    values = change(table.column(name).to_pylist())
    pq.write_table(table.set_column(table.column_names.index(name), name, values), path)


DAMAGE = [
    ("start_s", lambda v: pa.array([b"a"] * len(v)), "'start_s' is of type binary: must hold"),
    ("start_s", lambda v: pa.array([[1.0]] * len(v)), "'start_s' is of type list<"),
    ("start_s", lambda v: pa.array(["a"] * len(v)), "'start_s' cannot be of type dictionary<"),
    ("start_s", lambda v: pa.array([None, *v[1:]]), "'start_s': a value is missing"),
    ("start_s", lambda v: pa.array([1e300, *v[1:]]), "row 1: start_s = 1e+300: out of range"),
    ("steps", lambda v: pa.array([None, *v[1:]]), "'steps': a value is missing"),
    ("steps", lambda v: pa.array([1.5, *v[1:]]), "'steps' cannot be of type double"),
    ("worker", lambda v: pa.array([2**40, *v[1:]]), "row 1: worker = 1099511627776: out of range"),
    ("output_tokens", lambda v: pa.array([-1, *v[1:]]), "row 1: output_tokens = -1: out of range"),
    ("client", lambda v: pa.array(range(len(v))), "'client' cannot be of type int64"),
]


@pytest.mark.parametrize(("column", "change", "complaint"), DAMAGE)
@pytest.mark.parametrize("command", [("score", "run"), ("report", "run")])
def test_columns_are_checked_before_they_are_cast(run, command, column, change, complaint, refused):
    change_column(run / "service.parquet", column, change)
    line = refused(*command)
    assert line.startswith("run/service.parquet")
    assert complaint in line
    assert not (run / "report.html").exists()


def test_an_output_file_that_needs_the_lists_of_requests_needs_requests(run, refused):
    change_column(run / "requests.parquet", "status", lambda v: pa.array([[b"a"]] * len(v)))
    line = refused("show", "run", "--output-file", "x", "--output-details")
    assert line.startswith("run/requests.parquet: column 'status' is of type list<")
    assert not (run.parent / "x").exists()


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("median_itl_ms", "median_itl_ms"),
        ("total_input_tokens", "input_throughput"),
        ("request_throughput", "concurrency"),
    ],
)
def test_missing_values_of_a_summary_are_null_in_an_output_file(run, key, named, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    del summary[key]
    (run / "summary.json").write_text(json.dumps(summary))
    lines = tmp_path / "lines.jsonl"
    result = CliRunner().invoke(app, ["show", str(run), "--output-file", str(lines)])
    assert result.exit_code == 0, result.output
    assert json.loads(lines.read_text())[named] is None


def test_a_table_of_a_million_rows_in_a_few_bytes_is_refused(run, monkeypatch, refused):
    monkeypatch.setenv("FAIRBENCH_READ_MIB", "8")
    rows = 2_000_000
    pq.write_table(
        pa.table({"start_s": pa.array([0.0]).take(pa.array([0] * rows))}), run / "service.parquet"
    )
    assert (run / "service.parquet").stat().st_size < 2**20
    assert "run/service.parquet: is too large: " in refused("score", "run")


def test_a_date_in_the_experiment_is_refused(run, refused):
    with (run / "experiment.toml").open("a") as file:
        file.write("\n[settings.x]\nmin_match_tokens = 2024-01-01T00:00:00Z\n")
    line = refused("check", "run", "good")
    assert line.startswith("run/experiment.toml: ")
    assert "must not be a date" in line


def test_an_experiment_other_than_that_of_the_summary_is_refused(run, refused):
    (run / "experiment.toml").write_text("")  # an empty file, in which every key has its default
    line = refused("score", "run")
    assert line.startswith("run/experiment.toml: ")
    assert line.endswith(", as in summary.json")


def test_an_integer_of_60_digits_in_the_summary_is_refused(run, refused):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "victim_p99_s": 10**59}))
    line = refused("check", "good", "run", "--fail-if", "victim_p99_s:+10%")
    assert (
        line
        == "run/summary.json: cannot be read: an integer of 60 digits does not fit into 64 bits"
    )


def test_a_page_that_cannot_be_written_leaves_the_old_page(run, monkeypatch, refused):
    (run / "report.html").write_text("old")

    def full(path, *args, **kwargs):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert refused("report", "run").endswith("cannot be written: No space left on device")
    assert (run / "report.html").read_text() == "old"
    assert not [path for path in run.iterdir() if path.name.endswith(".part")]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    write_text(path, "one")
    write_text(path, "two")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "two")]


MANIFESTS = [
    *(("git", "é"), ("git", {}), ("git", {"commit": 5, "dirty": True}), ("libraries", [])),
    *(("libraries", {"numpy": 2}), ("scheduler_files", "mine.py"), ("host", "x"), ("host", [])),
    *(("wall_s", "long"), ("spec_identity", 7), ("program_files", 1), ("cost_files", None)),
]


@pytest.mark.parametrize(("field", "value"), MANIFESTS)
@pytest.mark.parametrize("command", [("report", "run"), ("show", "run")])
def test_a_manifest_with_wrong_types_is_refused_by_its_field(run, command, field, value, refused):
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    line = refused(*command)
    assert "manifest.json: " in line
    assert field in line


def test_older_manifests_may_lack_newer_keys(run):
    path = run / "manifest.json"
    kept = {"schema_version", "complete", "spec_identity"}
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k in kept})
    )
    for command in (["show", f"{run}"], ["report", f"{run}"]):
        assert CliRunner().invoke(app, command).exit_code == 0
