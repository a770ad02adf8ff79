"""Test ``fairbench emulate`` as a process: start, refusals and end."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.schedulers.registry import VARIABLE

COMMAND = [sys.executable, "-m", "fairbench", "emulate"]


FAILING = """
from fairbench.schedulers.local.fcfs import FCFS

class Failing(FCFS):
    name = "failing"

    def on_tokens(self, client, tokens):
        raise ZeroDivisionError("no credit")
"""


@contextmanager
def emulating(*flags, environment=None):
    """Yield ``(process, its output when ready)``, and kill the process at the end."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_emulator_prints_its_address_serves_and_stops(signum):
    with emulating("--local", "vtc", "--kv-events-port", "0") as (process, line):
        url, kv_events, replay = line.split(",")
        with urllib.request.urlopen(f"{url}/server_info") as answer:
            info = json.load(answer)
        assert info["kv_events"]["endpoint"] == kv_events.removeprefix("kv=")
        assert info["kv_events"]["replay_endpoint"] == replay.removeprefix("replay=")
        assert info["fairbench"]["local"] == "vtc"
        process.send_signal(signum)
        assert process.wait(300) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_failing_scheduler_ends_the_emulator(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    environment = {VARIABLE: str(tmp_path / "failing.py")}
    with emulating("--local", "failing", environment=environment) as (process, url):
        body = json.dumps({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 4}})
        with suppress(OSError):  # the connection ends, or the answer is a 500
            urllib.request.urlopen(f"{url}/generate", data=body.encode(), timeout=300).close()
        assert process.wait(300) == 1
        said = process.stderr.read()
    assert "ZeroDivisionError: no credit" in said
    assert said.splitlines()[-1].startswith("fairbench: failing failed: ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpu", "a1000"], "unknown gpu 'a1000'"),
        (["--local", "dlmp"], "Did you mean 'dlpm'?"),
        (
            ["--local", "dlpm", "--set", "dlpm.quantum=0"],
            "dlpm.quantum = 0: must be greater than 0",
        ),
        (["--local", "dlpm", "--set", "dlpm.quantun=5"], "Did you mean 'quantum'?"),
        (["--local", "dlpm", "--set", "dlmp.quantum=5"], "Did you mean 'dlpm'?"),
        (["--local", "vtc", "--set", "dlpm.quantum=5"], "'dlpm': choose from engine, vtc"),
        (["--set", "engine.timing_error_pct=5"], "unknown parameter of engine 'timing_error_pct'"),
        (["--time-scale", "0"], "time_scale = 0.0: must be from 1e-06 to 1e+06"),
        (["--time-scale", "1e300"], "time_scale = 1e+300: must be from 1e-06 to 1e+06"),
        (["--time-scale", "nan"], "time_scale = nan: must be from 1e-06 to 1e+06"),
        (["--slowdown", "inf"], "slowdown = inf: must be from 1e-06 to 1e+06"),
        (["--stream-interval", "0"], "--stream-interval"),
        (["--tokenizer", "none.json"], "tokenizer none.json: no such file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(flags, message):
    done = CliRunner().invoke(app, ["emulate", "--port", "0", *flags])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["--port", "--kv-events-port", "--kv-replay-port"])
def test_a_used_port_is_reported(flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = {"--port": "0", "--kv-events-port": "0", flag: port}
        arguments = [part for pair in flags.items() for part in pair]
        done = CliRunner().invoke(app, ["emulate", *arguments])
    assert done.exit_code == 2
    assert f"{flag} {port}: address already in use" in done.stderr.lower()
    assert done.stderr.count("\n") == 1
