"""Test files that could take gigabytes or never end: a one-line error, nothing half written."""

import gzip
import json
import os
import subprocess
import sys
import threading

import pytest

from fairbench.errors import DataError
from fairbench.files.formats import read_toml
from fairbench.files.reader import MAX_RATIO, lines
from fairbench.report.bench_line import append_line
from fairbench.results.new_directories import naming

GIB = 2**30
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**30 + 2**29, 2**30 + 2**29))
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
del sys.argv[1]
from fairbench.cli.app import app
app()
"""


def limited(*arguments, file_bytes=0, code=2):
    """Return the error of a command whose files may have ``file_bytes`` (0: any size)."""
    command = [sys.executable, "-c", LIMITED, str(file_bytes), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    return done.stderr.removeprefix("fairbench: ").rstrip("\n")


@pytest.mark.parametrize(
    "line",
    [
        ".".join(["a"] * 20_000) + " = 1",
        " . ".join(["a"] * 20_000) + " = 1",
        ".".join(['"a b"', "'c'"] * 10_000) + " = 1",
        "[" + ".".join(["a"] * 20_000) + "]",
        "x = { " + ".".join(["a"] * 20_000) + " = 1 }",
    ],
    ids=["bare", "blanks", "quoted", "table", "inline"],
)
def test_a_key_with_many_parts_is_refused_before_it_is_parsed(refused, tmp_path, line):
    (tmp_path / "w.toml").write_text(f"name = 'x'\n{line}\n")
    said = refused("run", "--workload", "w.toml")
    assert said == "w.toml: line 2: nested more than 32 levels deep"


def test_dots_in_a_text_do_not_make_a_key(tmp_path):
    text = ".".join(map(str, range(150)))
    (tmp_path / "w.toml").write_text(f"a.b.c = '{text}'\n{'x' * 4000} = 1\n")
    assert read_toml(tmp_path / "w.toml", "w")["a"]["b"]["c"] == text


@pytest.mark.parametrize("far", [2**31, 1.8e9, -1e9])
def test_validate_refuses_a_time_far_from_the_others(refused, tmp_path, far):
    record = {"path": "VTC/all_results_overload.jsonl", "client": [0, 1], "prompt_len": [5, 5]}
    record |= {"output_len": [5, 5], "req_time": [0, far], "first_token_latency": [1, 1]}
    (tmp_path / "r.jsonl").write_text(json.dumps(record | {"request_latency": [2, 2]}))
    said = refused("validate", "r.jsonl")
    assert said.startswith("r.jsonl, line 1: field 'req_time' must hold times within 1e+07 s of")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["score", "run", "validate", "run --workload", "trace inspect"])
def test_a_pipe_without_a_writer_is_refused(refused, tmp_path, command):
    os.mkfifo(tmp_path / "pipe.toml")
    said = refused(*command.split(), "pipe.toml")
    assert said.startswith(
        ("pipe.toml: cannot be read: it is a pipe to which no", "trace pipe.toml: is not a file")
    )


@pytest.mark.parametrize("wait_s", [0.0, 0.3])
def test_a_pipe_with_a_writer_is_read(tmp_path, wait_s):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = b'{"a": 1}\n' * 20_000  # more bytes than a pipe holds
    writer = threading.Timer(wait_s, lambda: pipe.write_bytes(text))
    writer.start()
    assert b"".join(line.data for line in lines(pipe, "pipe")) == text
    writer.join()


BOMBS = {"t.jsonl.gz": b'{"time":0,"a":1}\n' * 2**16, "t.csv.gz": b"1,0,0\n" * 2**17}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("command", ["trace inspect", "score", "validate", "run --trace"])
def test_a_bomb_is_recognised_by_its_beginning(refused, tmp_path, name, command):
    (tmp_path / name).write_bytes(gzip.compress(BOMBS[name]) * 30)
    said = refused(*command.split(), name)
    assert said.startswith(
        f"{name}: is too large: it grows by more than a factor of {MAX_RATIO} when"
    )


def test_a_bomb_after_a_log_is_recognised(tmp_path, monkeypatch):
    monkeypatch.setattr("fairbench.files.reader.CHECKED", 2**16)
    path = tmp_path / "t.gz"
    log = gzip.compress((os.urandom(2**14).hex() + "\n").encode()) * 10
    path.write_bytes(log)
    assert sum(1 for _ in lines(path, "t", streamed=True)) == 10
    path.write_bytes(log + gzip.compress(bytes(2**20 - 1) + b"\n") * 60)
    read: list[int] = []
    with pytest.raises(DataError, match="is too large"):
        read.extend(len(line.data) for line in lines(path, "t", streamed=True))
    assert sum(read) > 10 * 2**15


def test_a_line_that_does_not_fit_on_the_disk_is_not_added(tmp_path):
    """Simulate a full disk: only half of the line fits into the file."""
    path = tmp_path / "lines.jsonl"
    append_line(path, {"a": 1})
    before = path.read_text()
    code = (
        "import sys; from fairbench.report.bench_line import append_line; from pathlib import Path;"
    )
    code += "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
    code += "append_line(Path(sys.argv[1]), {'long': 'x' * 1000})"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert f"--output-file {path}: cannot be written: File too large" in done.stderr
    assert path.read_text() == before
    append_line(path, {"b": 2})
    assert list(map(json.loads, path.read_text().splitlines())) == [{"a": 1}, {"b": 2}]


def test_a_full_disk_is_reported_with_the_file(tmp_path):
    words = ["sweep", "--workloads", "chat", "--scenarios", "s1", "--schedulers", "fcfs"]
    words += ["--num-programs", "1", "--result-dir", tmp_path]
    said = limited(*words, file_bytes=50, code=1)
    assert said.startswith(str(tmp_path))
    assert said.endswith("sweep.toml: File too large")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_error_that_names_its_file_keeps_the_name(tmp_path):
    with pytest.raises(OSError, match="other") as caught, naming(tmp_path):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")
