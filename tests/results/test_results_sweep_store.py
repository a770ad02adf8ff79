"""Test reading and writing a sweep's directory."""

import json

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from fairbench.config.sweep import make_sweep, points
from fairbench.errors import DataError, UsageError
from fairbench.results.comparison import compare_sweep
from fairbench.results.store import SweepStore, save_alone
from fairbench.results.sweeps import write_metrics
from tests.results.comparison_helpers import alone_row, stored

SWEEP = make_sweep({"name": "s", "grid": {"workload": "chat", "scheduler": ["vtc", "lpm", "dlpm"]}})


@pytest.fixture
def store(tmp_path):
    return SweepStore.create(tmp_path, SWEEP, points(SWEEP))


def test_a_sweep_is_read_back_unchanged(store):
    assert store.path.name == "s"
    assert SweepStore(store.path).sweep() == SWEEP
    assert store.finished() == {}


def test_a_second_sweep_with_the_same_name_gets_another_directory(store):
    again = SweepStore.create(store.path.parent, SWEEP, points(SWEEP))
    assert again.path.name == "s.2"


def test_finished_runs_come_in_the_order_of_the_points(store):
    for scheduler in ("dlpm", "lpm"):
        stored(store.runs, {"scheduler": scheduler})
    stored(store.runs, {"scheduler": "vtc"}, complete=False)
    names = [run.path.name.partition("-")[0] for run in store.finished().values()]
    assert names == ["lpm", "dlpm"]


def test_runs_of_other_points_do_not_count_as_finished(store):
    stored(store.runs, {"scheduler": "fcfs"})
    assert store.finished() == {}


def test_incomplete_directories_are_discarded(store):
    whole = stored(store.runs, {"scheduler": "lpm"})
    stored(store.runs, {"scheduler": "vtc"}, complete=False)
    hidden = store.runs / ".writing-1234"
    hidden.mkdir()
    (hidden / "requests.parquet").write_text("begun")
    killed = store.runs / "dlpm-chat"  # the directory of a live run exists from its start
    killed.mkdir()
    (killed / "experiment.toml").write_text("")
    assert len(store.finished()) == 1  # the live run does not disturb a reader
    store.discard_partial()
    assert list(store.runs.iterdir()) == [whole.path]


def test_failures_are_kept_until_they_are_cleared(store):
    store.save_failure("k", "point", "why", "Traceback ...")
    (file,) = (store.path / "failed").iterdir()
    assert json.loads(file.read_text()) == {
        "point": "point",
        "error": "why",
        "traceback": "Traceback ...",
    }
    for _ in range(2):
        store.clear_failure("k")
    assert list((store.path / "failed").iterdir()) == []


def test_rows_of_clients_alone_are_read_back(store):
    rows = [alone_row(1), alone_row(2)]
    save_alone(store.alone_folder, "k", rows)
    (store.path / "alone" / ".other.json.part").write_text("half wri")
    assert store.alone() == {"k": rows}


def test_finished_points_of_other_sweeps_are_taken_once(store, tmp_path):
    for number, scheduler in enumerate(("lpm", "lpm", "dlpm", "fcfs")):
        other = SweepStore.create(tmp_path / f"{number}", SWEEP, points(SWEEP))
        stored(other.runs, {"scheduler": scheduler})
        stored(other.runs, {"scheduler": "vtc"}, complete=False)
        save_alone(other.alone_folder, scheduler, [alone_row(number)])
        store.take_from(other)
    names = [run.path.name.partition("-")[0] for run in store.finished().values()]
    assert names == ["lpm", "dlpm"]
    assert len(list(store.runs.iterdir())) == 2
    assert store.alone()["lpm"] == [alone_row(0)]
    assert set(store.alone()) == {"lpm", "dlpm", "fcfs"}


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_another_directory_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"sweep\.toml: cannot be read"):
        SweepStore(tmp_path / name).sweep()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="result_dir"):
        SweepStore.create(tmp_path / "file", SWEEP, points(SWEEP))


def test_all_metrics_are_written_as_tables(store):
    for scheduler in ("vtc", "lpm"):
        stored(store.runs, {"scheduler": scheduler}, time_to_90pct_s=None)
    write_metrics(store.path, compare_sweep(store.path))
    metrics = pq.read_table(store.path / "metrics.parquet").to_pylist()
    assert [(row["cell"], row["place"], row["seed"]) for row in metrics] == [
        ("vtc", "chat s1 dp 1", 0),
        ("lpm", "chat s1 dp 1", 0),
    ]
    assert metrics[0]["service_rate_tok_s"] == 30.0
    assert metrics[0]["time_to_90pct_s"] is None
    assert (store.runs / metrics[0]["run"] / "summary.json").exists()
    clients = pq.read_table(store.path / "clients.parquet").to_pylist()
    assert [row["client"] for row in clients] == ["client-0", "client-1", "client-2"] * 2
    for name, rows in (("metrics", metrics), ("clients", clients)):
        table = pyarrow.csv.read_csv(store.path / f"{name}.csv")
        assert (table.num_rows, table.column_names) == (len(rows), list(rows[0]))


def test_bounds_are_named_in_the_tables(store):
    censored = ["clients.client-1.p99_s", "victim_p99_s"]
    stored(store.runs, {"scheduler": "vtc"}, censored=censored)
    write_metrics(store.path, compare_sweep(store.path))
    (row,) = pq.read_table(store.path / "metrics.parquet").to_pylist()
    assert row["censored"] == " ".join(censored)
    clients = pq.read_table(store.path / "clients.parquet").to_pylist()
    assert [client["censored"] for client in clients] == ["", "p99_s", ""]


def test_metrics_of_live_and_simulated_runs_are_listed_together(store):
    stored(store.runs, {"scheduler": "vtc"})
    live = {"simulated": False, "emulated": True, "errors": {"timeout": 2}, "lateness_p99_ms": 1.5}
    stored(store.runs, {"scheduler": "lpm"}, **live)
    write_metrics(store.path, compare_sweep(store.path))
    rows = pq.read_table(store.path / "metrics.parquet").to_pylist()
    assert [(row["simulated"], row["lateness_p99_ms"]) for row in rows] == [
        (True, None),
        (False, 1.5),
    ]
    assert pyarrow.csv.read_csv(store.path / "metrics.csv").num_rows == 2


@pytest.mark.parametrize("key", ["worst_sessions", "stall_causes", "stalled", "worst_windows"])
def test_rows_inside_a_summary_are_left_out_of_the_tables(store, key):
    stored(store.runs, {"scheduler": "vtc"}, **{key: [{"session": "a", "share": None}]})
    write_metrics(store.path, compare_sweep(store.path))
    assert key not in pyarrow.csv.read_csv(store.path / "metrics.csv").column_names
