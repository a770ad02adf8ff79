"""Test ``fairbench run`` on real processes end to end, however the run ends."""

import json
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import read_experiment, resolve
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.sim.run import simulate
from fairbench_load.backends.base import Served
from fairbench_load.backends.emulator import EmulatorBackend
from fairbench_load.driver.target import DriverTarget
from fairbench_load.processes.servers import start_all, stop_all
from fairbench_load.run import _Serving
from tests.load.live_cli import (
    WAIT_S,
    descendants,
    lines,
    only,
    running,
    summary,
    under_way,
    wait_until,
)
from tests.load.live_recipes import recipes_here

EMULATED = ["run", "--backend", "emulator", "--dp", "2", "--workload", "chat", "--scenario", "none"]
EMULATED += ["--clients", "3"]
SHORT = [*EMULATED, "--num-programs", "1", "--time-scale", "8"]
LONG = [*EMULATED, "--duration", "20000"]
SERVED = Served("emulator")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Run briefly on two emulated workers. Return the output and the directory."""
    parent = tmp_path_factory.mktemp("runs")
    with running(*SHORT, "--result-dir", parent) as process:
        stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    return stdout, only(parent)


@pytest.mark.slow
def test_a_run_agrees_with_its_simulation(short, tmp_path):
    _, path = short
    result = invoke("validate", path, "--output-dir", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "emulated on emulator fairbench" in result.stdout
    stored = json.loads((tmp_path / f"{path.name}.json").read_text())
    pair = stored["metrics"]["service_rate_tok_s"]
    assert pair["measured"] == summary(path)["service_rate_tok_s"]
    assert pair["simulated"] > 0
    # The same requests of the same programs run on the same two workers, so prompts are equal.
    assert abs(stored["metrics"]["cache_hit_rate"]["error_pct"]) < 10


@pytest.mark.slow
def test_an_emulated_run_is_stored_and_marked(short):
    stdout, path = short
    assert "\nemulated on a100-80gb/llama-3.1-8b/" in stdout
    assert stdout.rstrip().endswith(f"files  {path}")
    shown = summary(path)
    assert (shown["simulated"], shown["emulated"], shown["backend"]) == (False, True, "emulator")
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["simulated"], manifest["backend"]) == (False, "emulator")
    assert manifest["complete"] is True
    assert invoke("show", path).stdout == stdout
    assert sorted(file.name for file in (path / "live").glob("*.log")) == [
        "router.log",
        "worker-0.log",
        "worker-1.log",
    ]


@pytest.mark.slow
def test_an_emulated_run_sends_the_simulated_requests(short):
    _, path = short
    spec = resolve({}, {}, read_experiment(path / "experiment.toml"))
    simulated = simulate(spec.model_copy(update={"backend": None}))
    found = summary(path)
    for key in ("num_requests", "num_programs", "total_input_tokens", "total_output_tokens"):
        assert found[key] == simulated.summary[key], key
    assert found["completed"] == found["num_requests"]
    for name, columns in simulated.tables().items():
        told = [column for column in columns if column != "gpu_s"]
        assert pq.read_table(path / f"{name}.parquet").column_names == told


@pytest.mark.slow
def test_several_seeds_share_their_workers(tmp_path):
    with running(*SHORT, "--num-runs", "2", "--json", "--result-dir", tmp_path) as process:
        stdout, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(stdout)["seeds"] == [0, 1]
    parent = only(tmp_path)
    assert sorted(file.name for file in (parent / "live").glob("*.log")) == [
        "worker-0.log",
        "worker-1.log",
    ]
    runs = [path for path in parent.iterdir() if (path / "manifest.json").exists()]
    assert [summary(path)["completed"] > 0 for path in runs] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_is_kept(tmp_path, signum, code):
    with running(*LONG, "--result-dir", tmp_path) as process:
        path = under_way(process, tmp_path)
        process.send_signal(signum)
        stdout, stderr = process.communicate()
    assert process.returncode == code
    assert "INCOMPLETE" in stdout
    assert stderr == "fairbench: interrupted; the finished requests are saved\n"
    assert summary(path)["completed"] > 3
    assert summary(path)["complete"] is False


@pytest.mark.slow
def test_an_interruption_before_the_servers_are_ready_leaves_nothing(tmp_path):
    with running(*LONG, "--result-dir", tmp_path) as process:
        wait_until(lambda: list(tmp_path.glob("*/live/worker-1.log")), process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == "fairbench: interrupted before the servers were ready\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_finished_requests_are_not_lost_to_sigkill(tmp_path):
    with running(*LONG, "--result-dir", tmp_path) as process:
        path = under_way(process, tmp_path)
        running_still = invoke("recover", path)
        assert "another process is executing this run; wait until" in running_still.stderr
        process.kill()
        process.communicate()
    written = lines(path / "live" / "requests.jsonl")
    refused = invoke("show", path)
    assert refused.exit_code == 2
    assert f"`fairbench recover {path}` saves its records" in refused.stderr
    recovered = invoke("recover", path)
    assert recovered.exit_code == 0
    assert "INCOMPLETE" in recovered.stdout
    assert summary(path)["num_requests"] == written
    assert pq.read_table(path / "requests.parquet").num_rows == written
    assert json.loads((path / "manifest.json").read_text())["complete"] is False
    assert invoke("show", path).stdout == recovered.stdout
    assert "this run is saved already; print it with `fairbench" in invoke("recover", path).stderr


def pids_of(process, command):
    """Return the processes of a command's ``fairbench emulate`` or ``fairbench serve``."""
    wanted = [b"-m", b"fairbench", command.encode()]
    return [pid for pid in descendants(process.mark) if arguments_of(pid)[1:4] == wanted]


def arguments_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def ended(name, *, deaths, has_ended):
    return SimpleNamespace(
        named_with_place=lambda: name,
        last_words=lambda: f"the last words of {name}",
        deaths=deaths,
        has_ended=has_ended,
    )


def test_a_worker_that_was_restarted_has_ended_once_and_serves_again():
    target = DriverTarget("http://127.0.0.1:9")
    alive, router = ended("alive", deaths=0, has_ended=False), ended("r", deaths=0, has_ended=False)
    again, gone = ended("again", deaths=1, has_ended=False), ended("gone", deaths=0, has_ended=True)
    found = _Serving(target, SERVED, [alive, again, gone], router)
    assert (found.ended_workers(), found.broken()) == (["again", "gone"], "")
    assert _Serving(target, SERVED, [gone, gone]).broken() == "every worker ended during the run"
    assert _Serving(target, SERVED).broken() == "", "servers that fairbench did not start"
    lost = _Serving(target, SERVED, [alive], ended("router", deaths=0, has_ended=True)).broken()
    assert lost == "the router ended during the run, with the last words of router"


@pytest.mark.slow
def test_a_run_continues_when_a_worker_dies(tmp_path):
    flags = [*EMULATED, "--duration", "40", "--time-scale", "8", "--result-dir", tmp_path, "--json"]
    with running(*flags) as process:
        under_way(process, tmp_path)
        os.kill(pids_of(process, "emulate")[0], signal.SIGKILL)
        stdout, stderr = process.communicate()
    assert process.returncode == 0
    assert "; restart in 1 s" in stderr
    found = json.loads(stdout)
    assert "ended during the run" in found["notes"]["workers"]
    assert found["complete"] is True
    assert found["completed"] > 3


@pytest.mark.slow
def test_a_worker_with_another_scheduler_is_refused(tmp_path, monkeypatch):
    other = resolve({"backend": {"kind": "emulator"}, "scheduler": "vtc"})
    recipes = recipes_here(other)
    monkeypatch.setattr(EmulatorBackend, "recipe", lambda _, number, place: recipes[number])
    result = invoke("run", "--backend", "emulator", "--scheduler", "dlpm", "--result-dir", tmp_path)
    assert result.exit_code == 1
    assert (
        "worker-0 lacks the requested scheduling: the server runs the scheduler vtc"
        in result.stderr
    )


def test_an_endpoint_that_does_not_answer_is_reported(tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        flags = ["--workload", "chat", "--num-programs", "1", "--request-rate", "inf"]
        result = invoke("run", "--base-url", url, *flags, "--result-dir", tmp_path)
    assert result.exit_code == 1
    assert "fairbench: no request succeeded (" in result.stderr
    found = summary(only(tmp_path))
    assert (found["completed"], found["complete"]) == (0, False)
    assert found["scheduler"] == "as served"
    assert "Shares of the whole run are not judged" in result.stdout.splitlines()[0]
    assert f"\nmeasured on {url}, dp 1, scheduler as served, seed 0" in result.stdout


@pytest.mark.slow
def test_a_run_whose_router_dies_fails(tmp_path):
    with running(*LONG, "--result-dir", tmp_path) as process:
        path = under_way(process, tmp_path)
        os.kill(*pids_of(process, "serve"), signal.SIGKILL)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    killed = "the router ended during the run, with exit code 137"
    assert summary(path)["notes"]["complete"].startswith(killed)


@pytest.mark.slow
def test_an_endpoint_is_measured_as_it_is(tmp_path):
    spec = resolve({"backend": {"kind": "emulator"}, "scheduler": "vtc"})
    servers = start_all(recipes_here(spec), tmp_path, timeout_s=WAIT_S)
    try:
        flags = ["--workload", "chat", "--num-programs", "1", "--set", "chat.think_mean_s=0.2"]
        result = invoke(
            "run", "--base-url", servers[0].url, *flags, "--result-dir", tmp_path / "runs", "--json"
        )
    finally:
        stop_all(servers)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["scheduler"], found["backend"]) == ("as served", "endpoint")
    assert found["completed"] == found["num_requests"] > 0
    assert found["service_gap_bound"] is None
    assert found["served"] == servers[0].url
    assert found["emulated"] is True
    assert found["min_entitlement_ratio"] is None
    assert found["notes"]["min_entitlement_ratio"] == NOT_CONTENDED


@pytest.mark.slow
@pytest.mark.alone
def test_late_requests_are_refused_before_they_reach_emulated_workers(tmp_path):
    flags = ["--num-programs", "3", "--request-rate", "2", "--max-running-requests", "2"]
    flags += ["--goodput", "ttft:200ms", "--set", "admission.policy=refuse"]
    flags += ["--set", "admission.ahead=all", "--json", "--result-dir", tmp_path]
    with running(*EMULATED, *flags) as process:
        stdout, _ = process.communicate()
    assert process.returncode == 0
    found = json.loads(stdout)
    assert 0 < found["refused"] < found["num_requests"]
    statuses = pq.read_table(only(tmp_path) / "requests.parquet")["status"].to_pylist()
    assert statuses.count("refused") == found["refused"]
