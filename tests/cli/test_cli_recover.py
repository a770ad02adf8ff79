"""Test that a killed simulated run leaves records that ``fairbench recover`` turns into a run."""

import json
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench import sim
from fairbench.cli.app import app
from fairbench.results import new_directories

COMMAND = [sys.executable, "-m", "fairbench"]
ENDLESS = ["run", "--workload", "chat", "--scheduler", "fcfs", "--duration", "86400"]
WAIT_S = 300  # long, because the machine may be busy


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def under_way(tmp_path):
    """Start a run. Return it and its directory once its first records are on disk."""
    process = subprocess.Popen(
        [*COMMAND, *ENDLESS, "--result-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + WAIT_S
    try:
        while sum(file.stat().st_size for file in tmp_path.glob("*/records/*.arrows")) < 10**6:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, next(tmp_path.iterdir())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_no_saved_record_is_lost_to_sigkill(under_way):
    process, path = under_way
    assert "another process is executing this run; wait until" in invoke("recover", path).stderr
    process.kill()
    process.communicate()
    refused = invoke("show", path)
    assert refused.exit_code == 2
    assert f"`fairbench recover {path}` saves its records" in refused.stderr
    recovered = invoke("recover", path)
    assert recovered.exit_code == 0, recovered.stderr
    assert "INCOMPLETE" in recovered.stdout
    summary = json.loads((path / "summary.json").read_text())
    requests = pq.read_table(path / "requests.parquet")
    assert summary["simulated"] is True
    assert summary["complete"] is False
    assert summary["num_requests"] == requests.num_rows > 1_000
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["complete"], manifest["recovered"]) == (False, True)
    assert not (path / "records").exists()
    assert invoke("show", path).stdout == recovered.stdout
    assert "this run is saved already; print it with `fairbench" in invoke("recover", path).stderr


@pytest.mark.slow
def test_an_interrupted_run_saves_itself(under_way):
    process, path = under_way
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 143, stderr
    assert b"INCOMPLETE" in stdout
    assert not (path / "records").exists()
    assert json.loads((path / "manifest.json").read_text())["complete"] is False


def test_a_directory_without_records_is_refused(tmp_path):
    refused = invoke("recover", tmp_path)
    assert refused.exit_code == 2
    assert "must be the directory of a run that was killed" in refused.stderr


@pytest.mark.parametrize("folder", [sim.FOLDER, new_directories.FOLDER])
def test_show_names_the_command_that_recovers_a_killed_run(tmp_path, folder):
    (tmp_path / folder).mkdir()
    refused = invoke("show", tmp_path)
    assert refused.exit_code == 2
    hint = f"still running, or killed: `fairbench recover {tmp_path}` saves its records"
    assert hint in " ".join(refused.stderr.split())


def test_an_impossible_experiment_leaves_no_directory(tmp_path):
    flags = ["--workload", "tot", "--num-programs", "1", "--max-total-tokens", "100"]
    refused = invoke("run", *flags, "--result-dir", tmp_path / "new")
    assert refused.exit_code == 2
    assert "every request is larger than the KV pool of" in refused.stderr
    assert not list(tmp_path.glob("*/*"))
