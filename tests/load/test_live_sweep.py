"""Test ``fairbench sweep`` on emulated servers end to end, and its failures."""

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.results.store import MANIFEST, SweepStore
from tests.load.live_cli import descendants, lines, running, wait_until

# With one replica, a run takes a few seconds, mostly to start its processes.
SWEEP = """
[base]
backend = {{ kind = "emulator", time_scale = 8.0 }}
workload = "chat"
scenario = "none"
clients = 2
{base}
[grid]
{grid}
"""
SHORT = "num_programs = 1"


def write(folder, grid, base=SHORT):
    path = folder / "mine.toml"
    path.write_text(SWEEP.format(base=base, grid=grid))
    return path


def finish(*arguments):
    """Run a sweep to its end. Return exit code, stdout and stderr."""
    with running("sweep", *arguments) as process:
        stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def list_left(path):
    """Return the points that a sweep has not run yet."""
    found = CliRunner().invoke(app, ["sweep", "--resume", str(path), "--dry-run", "--json"])
    return [point["name"] for point in json.loads(found.stdout)["points"]]


def starts(store):
    """Return how often the first worker started. It prints its address each time."""
    log = (store.path / "live" / "worker-0.log").read_text()
    return log.count("http://127.0.0.1:")


def under_way(process, store, runs):
    """Wait until the run with this number (from 1 on) has recorded some requests."""

    def has_begun():
        folders = sorted(store.runs.iterdir()) if store.runs.exists() else []
        records = [lines(one / "live" / "requests.jsonl") for one in folders]
        return len([count for count in records if count > 1]) >= runs

    wait_until(has_begun, process)


@pytest.mark.slow
def test_servers_are_started_once_for_each_local_scheduler(tmp_path):
    sweep = write(tmp_path, 'scheduler = ["lpm", "dlpm", "d2lpm"]')
    code, stdout, stderr = finish(sweep, "--result-dir", tmp_path)
    assert code == 0
    told = stderr.splitlines()
    ended = [line for line in told if " of 3 after " in line]
    assert [line.split(", ")[1] for line in ended] == ["lpm", "dlpm", "d2lpm"]
    rest = set(told) - set(ended)
    assert all("were sent" in line for line in rest), "late, as CI machines are"
    assert "\nemulated on a100-80gb/llama-3.1-8b/tp1/measured-sglang, seed 0\n" in stdout
    assert "sharing" not in stdout.lower()
    store = SweepStore(tmp_path / "mine")
    assert starts(store) == 2, "dlpm and d2lpm have the same local scheduler"
    runs = list(store.finished().values())
    assert [run.summary["scheduler"] for run in runs] == ["lpm", "dlpm", "d2lpm"]
    for run in runs:
        assert run.summary["completed"] == run.summary["num_requests"] > 0
        assert (run.path / "live" / "router.log").exists()
        assert not (run.path / "live" / "worker-0.log").exists()
    first = json.loads((store.path / "comparison.json").read_text())["cells"][0]
    assert first["sharing_incentive_p99"] is None
    assert (first["emulated"], first["simulated"]) == (True, False)
    assert list_left(store.path) == []


@pytest.mark.slow
def test_a_point_whose_servers_fail_does_not_stop_other_points(tmp_path):
    sweep = write(tmp_path, 'scheduler = ["lpm", "vtc"]')
    other = '{ kind = "emulator", time_scale = 8.0, server_args = ["--nonsense"] }'
    good = '{ kind = "emulator", time_scale = 8.0 }'
    text = sweep.read_text().replace(f"backend = {good}", "")
    sweep.write_text(f"{text}\nbackend = [{other}, {good}]\n")
    code, stdout, stderr = finish(sweep, "--result-dir", tmp_path)
    assert code == 1
    store = SweepStore(tmp_path / "mine")
    assert len(store.finished()) == 2
    failures = [json.loads(path.read_text()) for path in (store.path / "failed").iterdir()]
    assert len(failures) == 2
    for failure in failures:
        assert f"{failure['point']}: worker-0 ended with exit code 2" in stderr
        assert "No such option: --nonsense" in failure["traceback"]
    assert stderr.endswith(f"fairbench: runs failed: 2; see {store.path / 'failed'}\n")
    assert stdout.count("emulated on") == 1
    assert len(list_left(store.path)) == 2


@pytest.mark.slow
def test_after_a_worker_has_died_the_next_point_has_new_workers(tmp_path):
    sweep = write(tmp_path, "dp = 2\nseed = [0, 1]", "duration_s = 30.0")
    store = SweepStore(tmp_path / "mine")
    with running("sweep", sweep, "--result-dir", tmp_path) as process:
        under_way(process, store, 1)
        os.kill(an_emulator(process), signal.SIGKILL)
        _, stderr = process.communicate()
    assert process.returncode == 0
    assert "seed 0: worker-0 ended during the run" in stderr or "worker-1 ended" in stderr
    first, second = store.finished().values()
    assert "ended during the run" in first.summary["notes"]["workers"]
    assert "workers" not in second.summary["notes"]
    # A dead worker is restarted within its run. The next run has new workers in any case.
    assert starts(store) == (3 if "worker-0 ended" in stderr else 2)


def an_emulator(process):
    for pid in descendants(process.mark):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if arguments[1:4] == [b"-m", b"fairbench", b"emulate"]:
            return pid
    raise AssertionError("no emulator")


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_sweep_continues(tmp_path, signum, code):
    sweep = write(tmp_path, "seed = [0, 1]", "duration_s = 40.0")
    store = SweepStore(tmp_path / "mine")
    with running("sweep", sweep, "--result-dir", tmp_path) as process:
        under_way(process, store, 2)
        process.send_signal(signum)
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (code, "")
    if signum == signal.SIGINT:
        assert "interrupted; 1 of 2 points are finished. Continue with: fairbench sweep" in stderr
    (done,) = store.finished().values()
    assert len(list(store.runs.iterdir())) == 2
    assert list_left(store.path) == ["chat none dp 1, d2lpm, seed 1"]
    code, stdout, stderr = finish("--resume", store.path)
    assert code == 0, stderr
    assert [run.summary["seed"] for run in store.finished().values()] == [0, 1]
    assert all((path / MANIFEST).exists() for path in store.runs.iterdir())
    assert done.path in store.runs.iterdir()
