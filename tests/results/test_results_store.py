"""Test that run directories are written atomically, read back, and refused if damaged."""

import json
import os
import tomllib

import numpy as np
import pyarrow.parquet as pq
import pytest

from fairbench.config import identity
from fairbench.config.resolve import resolve
from fairbench.errors import DataError, UsageError
from fairbench.results import manifest as manifests
from fairbench.results import new_directories, store
from fairbench.results.manifest import Stopwatch, build_manifest, git_state

TABLES = {
    "requests": {"request_id": np.arange(3), "finish_s": np.array([0.5, np.nan, 2.0])},
    "programs": {"program_id": [1, 2], "client": ["a", "b"]},
    "service": {"worker": np.zeros(100_000, dtype=np.int64)},
}
SUMMARY = {"jain_index": 0.5, "max_service_gap": None}
SPEC = resolve({"dp": 4, "scheduler": "vtc"})


def save(parent, spec=SPEC, **changes):
    manifest = build_manifest(spec, complete=True, watch=Stopwatch.start()) | changes
    return store.save_run(parent, spec, TABLES, SUMMARY, manifest)


def test_a_run_is_read_back_unchanged(tmp_path):
    path = save(tmp_path / "deep" / "results")
    run = store.read_run(path)
    assert run.summary == SUMMARY
    assert run.manifest["spec_identity"] == identity(SPEC)
    assert run.table("programs").to_pydict() == TABLES["programs"]
    finish_s = run.table("requests")["finish_s"].to_numpy()
    np.testing.assert_array_equal(finish_s, TABLES["requests"]["finish_s"])
    saved = tomllib.loads((path / "experiment.toml").read_text())
    assert resolve({}, {}, saved) == SPEC


def test_a_run_directory_holds_exactly_these_files(tmp_path):
    path = save(tmp_path)
    assert sorted(file.name for file in path.iterdir()) == [
        "experiment.toml",
        "manifest.json",
        "programs.parquet",
        "requests.parquet",
        "service.parquet",
        "summary.json",
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_exists_only_once_it_is_complete(tmp_path):
    path = store.begin_run(tmp_path, SPEC)
    assert [file.name for file in path.iterdir()] == ["experiment.toml"]
    with pytest.raises(DataError, match="must be the directory of a run"):
        store.read_run(path)
    manifest = build_manifest(SPEC, complete=True, watch=Stopwatch.start())
    store.write_run(path, SPEC, TABLES, SUMMARY, manifest)
    assert store.read_run(path).summary == SUMMARY
    assert store.begin_run(tmp_path, SPEC) != path


def test_the_same_run_has_the_same_bytes_in_another_directory(tmp_path):
    first, second, third = save(tmp_path), save(tmp_path), save(tmp_path)
    assert len({first, second, third}) == 3
    for name in ("requests.parquet", "programs.parquet", "service.parquet", "experiment.toml"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_tables_are_written_in_row_groups(tmp_path):
    file = pq.ParquetFile(save(tmp_path) / "service.parquet")
    assert file.metadata.num_rows == 100_000
    assert file.metadata.num_row_groups == 2


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        (None, "vtc-tot-s1-dp4-seed0"),
        ("nightly", "nightly-vtc-tot-s1-dp4-seed0"),
        ("../up/a b", "_up_a_b-vtc-tot-s1-dp4-seed0"),
    ],
)
def test_the_directory_is_named_after_the_run(tmp_path, tag, expected):
    path = save(tmp_path, SPEC.model_copy(update={"tag": tag}))
    assert path == tmp_path / expected


def test_a_failed_write_leaves_no_incomplete_directory(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, wall_s=float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_a_result_dir_that_is_a_file_is_refused_before_and_after_the_run(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for parent in (blocked, blocked / "below"):
        with pytest.raises(UsageError, match=r"result_dir .*file.*: cannot be written: "):
            new_directories.check_writable(parent)
        with pytest.raises(UsageError, match=r"result_dir .*file.*: cannot be written: "):
            save(parent)


def test_a_failure_to_make_a_run_directory_leaves_nothing_behind(tmp_path):
    parent = tmp_path / "new" / "results"
    long = "n" * 300
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        new_directories.fresh_directory(parent, long)
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        save(parent / long)
    with pytest.raises(ValueError, match="JSON"):
        save(parent, wall_s=float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_stays_if_a_run_directory_cannot_be_made(tmp_path):
    (tmp_path / "results").mkdir()
    with pytest.raises(UsageError):
        new_directories.fresh_directory(tmp_path / "results" / "new", "n" * 300)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize("parts", [["n" * 300], ["new", "n" * 300, "below"]])
def test_too_long_a_name_is_found_before_the_run(tmp_path, parts):
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        new_directories.check_writable(tmp_path.joinpath(*parts))
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_run_is_never_too_long(tmp_path):
    workload = SPEC.workload.model_copy(update={"name": "w" * 64})
    changes = {"tag": "t" * 64, "scenario": "s" * 300, "workload": workload}
    spec = SPEC.model_copy(update=changes)
    assert {len(save(tmp_path, spec).name) for _ in range(2)} == {200, 202}


def test_a_directory_may_have_a_name_that_is_not_text(tmp_path):
    path = save(tmp_path / os.fsdecode(b"caf\xe9"))
    assert store.read_run(path).table("programs").num_rows == 2


def test_checking_a_result_dir_leaves_nothing_behind(tmp_path):
    new_directories.check_writable(tmp_path / "a" / "b")
    new_directories.check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_schema_version_is_refused(tmp_path):
    path = save(tmp_path, schema_version=99)
    with pytest.raises(DataError, match=r"manifest\.json: schema_version = 99: must be 1 for"):
        store.read_run(path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("manifest.json", None, r"manifest\.json: no such file; .* must be the directory of a run"),
        ("manifest.json", "{\n,}", r"manifest\.json, line 2: "),
        ("summary.json", "[" * 99_999, r"summary\.json: nested too deeply"),
        (
            "summary.json",
            '{"a": NaN}',
            r"summary\.json: cannot be read: NaN is not allowed in JSON",
        ),
        ("summary.json", "1" * 5000, r"summary\.json: cannot be read: an integer of 5000"),
        ("summary.json", "[]", r"summary\.json: must hold a JSON object"),
        ("summary.json", None, r"summary\.json: no such file"),
    ],
)
def test_a_damaged_run_directory_is_refused(tmp_path, name, content, expected):
    path = save(tmp_path)
    (path / name).unlink()
    if content is not None:
        (path / name).write_text(content)
    with pytest.raises(DataError, match=expected):
        store.read_run(path)


def test_a_damaged_table_is_refused(tmp_path):
    path = save(tmp_path)
    (path / "requests.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"requests\.parquet: cannot be read: "):
        store.read_run(path).table("requests")


def test_the_manifest_names_the_origin_of_a_result():
    watch = Stopwatch.start()
    manifest = build_manifest(SPEC, complete=False, watch=watch)
    assert json.loads(json.dumps(manifest)) == manifest
    assert manifest["complete"] is False
    assert manifest["simulated"] is True
    assert manifest["timing_profile"] == SPEC.gpu
    assert manifest["started"] == watch.started.isoformat(timespec="seconds")
    assert manifest["wall_s"] >= 0
    assert set(manifest["libraries"]) == {"numpy", "pyarrow", "pydantic", "sortedcontainers"}


def test_the_commit_is_recorded_only_in_a_checkout(tmp_path, monkeypatch):
    package = tmp_path / "bench" / "fairbench"
    package.mkdir(parents=True)
    assert git_state(package) is None
    (tmp_path / ".git").mkdir()
    answers = {"rev-parse": "abc", "status": " M file"}
    monkeypatch.setattr(manifests, "_output", lambda *command: answers[command[3]])
    assert git_state(package) == {"commit": "abc", "dirty": True}
    answers["status"] = ""
    assert git_state(package) == {"commit": "abc", "dirty": False}
    assert git_state(tmp_path / "site-packages" / "fairbench") is None
    answers["rev-parse"] = None  # git is not installed
    assert git_state(package) is None


def test_an_older_run_called_unfinished_requests_failed(tmp_path, monkeypatch):
    monkeypatch.setitem(SUMMARY, "failed", 7)
    run = store.read_run(save(tmp_path))
    assert (run.summary["failed"], run.summary["unfinished"]) == (0, 7)
    monkeypatch.setitem(SUMMARY, "unfinished", 5)
    run = store.read_run(save(tmp_path))
    assert (run.summary["failed"], run.summary["unfinished"]) == (7, 5)
