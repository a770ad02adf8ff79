"""Servers start side by side, say when they are ready, and are gone in the end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_cli import runs, wait_until_gone

from fairbench.errors import RunFailed, UsageError
from fairbench.live.processes.addresses import free_ports
from fairbench.live.processes.gpus import assign
from fairbench.live.processes.process import ServerProcess
from fairbench.live.processes.start import Recipe, Server, start_all, stop_all

FAKE = Path(__file__).with_name("live_fake_server.py")
WAIT_S = 300  # machines are busy


def recipe(name, *arguments, **options):
    return Recipe(
        name, lambda ports: [sys.executable, str(FAKE), str(ports[0]), *arguments], **options
    )


def pids_in(path):
    return [int(pid) for line in path.read_text().splitlines() for pid in line.split()]


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_all_are_ready_and_then_gone(tmp_path):
    pids, heard = tmp_path / "pids", []
    recipes = [recipe(f"worker-{n}", "--pids", str(pids), "--after", f"{n / 5}") for n in range(3)]
    servers = start_all(
        recipes, tmp_path, timeout_s=WAIT_S, on_ready=lambda *counts: heard.append(counts)
    )
    try:
        assert heard[0] == (0, 3)
        assert heard[-1] == (3, 3)
        assert len({server.url for server in servers}) == 3
        started = pids_in(pids)
        assert len(started) == 6
        assert all(map(runs, started))
    finally:
        stop_all(servers)
    assert not any(map(runs, started))
    assert (tmp_path / "worker-0.log").read_text() == "starting\n"


def test_a_server_that_ends_is_named_with_the_end_of_its_log(tmp_path):
    pids = tmp_path / "pids"
    pids.touch()  # the good one may be stopped before it has begun
    recipes = [recipe("good", "--pids", str(pids)), recipe("bad", "--exit", "3")]
    with pytest.raises(RunFailed) as caught:
        start_all(recipes, tmp_path, timeout_s=WAIT_S)
    assert str(caught.value) == f"bad ended with exit code 3; its log is {tmp_path / 'bad.log'}"
    assert caught.value.__notes__ == ["starting\nsomething is wrong\nwith this server"]
    assert not any(map(runs, pids_in(pids)))


def test_a_server_that_is_never_ready_is_given_up(tmp_path):
    pids = tmp_path / "pids"
    pids.touch()  # it may be given up before it has begun
    with pytest.raises(RunFailed, match="slow was not ready within 1 s"):
        start_all([recipe("slow", "--after", "600", "--pids", str(pids))], tmp_path, timeout_s=1)
    assert not any(map(runs, pids_in(pids)))


def test_an_interruption_while_starting_ends_what_was_started(tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(KeyboardInterrupt):
        start_all(
            [recipe("slow", "--after", "600", "--pids", str(pids))],
            tmp_path,
            timeout_s=WAIT_S,
            interrupted=lambda: pids.exists() and len(pids_in(pids)) == 2,
        )
    assert not any(map(runs, pids_in(pids)))


def test_a_command_that_does_not_exist(tmp_path):
    with pytest.raises(RunFailed) as caught:
        start_all([Recipe("none", lambda _: ["/no/such/program"])], tmp_path, timeout_s=WAIT_S)
    assert caught.value.__notes__ == ["/no/such/program: No such file or directory"]


def test_a_taken_port_is_replaced_by_another(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        offers = iter([[taken.getsockname()[1]]])
        monkeypatch.setattr(
            "fairbench.live.processes.start.free_ports",
            lambda n: next(offers, None) or free_ports(n),
        )
        (server,) = start_all([recipe("worker")], tmp_path, timeout_s=WAIT_S)
        try:
            assert server.starts == 2
            assert server.ports != [taken.getsockname()[1]]
        finally:
            stop_all([server])
    assert "Address already in use" in (tmp_path / "worker.log").read_text()


def test_a_port_that_is_always_taken_is_an_error(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(
            "fairbench.live.processes.start.free_ports", lambda _: [taken.getsockname()[1]]
        )
        with pytest.raises(RunFailed, match="worker ended with exit code 1"):
            start_all([recipe("worker")], tmp_path, timeout_s=WAIT_S)


def test_free_ports_differ():
    assert len(set(free_ports(50))) == 50


def test_a_server_that_ignores_sigterm_is_killed(tmp_path):
    pids = tmp_path / "pids"
    command = [sys.executable, str(FAKE), str(free_ports(1)[0]), "--stubborn", "--pids", str(pids)]
    process = ServerProcess(command, tmp_path / "log", grace_s=0.2)
    wait_until(lambda: pids.exists() and len(pids_in(pids)) == 2)
    process.stop()
    assert process.exit_code == 128 + signal.SIGKILL
    assert not any(map(runs, pids_in(pids)))


def test_children_of_a_server_that_was_killed_go_too(tmp_path):
    pids = tmp_path / "pids"
    server = Server(recipe("worker", "--pids", str(pids)), tmp_path)
    wait_until(lambda: pids.exists() and len(pids_in(pids)) == 2)
    os.kill(pids_in(pids)[0], signal.SIGKILL)
    wait_until(lambda: server.process.exit_code is not None)
    assert server.process.exit_code == 128 + signal.SIGKILL
    assert not any(map(runs, pids_in(pids)))
    server.process.stop()


HARNESS = """
import signal
import sys
from pathlib import Path
from fairbench.live.processes.start import Recipe, start_all, stop_all
# Whoever started us may ignore these (nohup does).
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fake, folder, ending = sys.argv[1:]
def command(ports):
    return [sys.executable, fake, str(ports[0]), "--pids", folder + "/pids"]
servers = start_all([Recipe(f"worker-{n}", command) for n in range(2)], Path(folder), timeout_s=300)
print("ready", flush=True)
if ending == "error":
    raise ValueError("of the harness")
if ending == "exit":
    stop_all(servers)
    sys.exit()
import time
time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["exit", "error", "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_no_server_outlives_the_harness(tmp_path, ending):
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(FAKE), str(tmp_path), ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as harness:
        assert harness.stdout.readline() == b"ready\n"
        started = pids_in(tmp_path / "pids")
        assert len(started) == 4
        if ending.startswith("SIG"):
            harness.send_signal(signal.Signals[ending])
        try:
            harness.wait(WAIT_S)
        finally:
            harness.kill()
    wait_until_gone(started)


def test_gpus_are_assigned_without_overlap():
    gpus = ["0", "1", "2", "3", "4"]
    assert assign(gpus, dp=2, tp=2, share=False) == ["0,1", "2,3"]
    assert assign(gpus, dp=3, tp=2, share=True) == ["0,1", "2,3", "0,1"]
    assert assign(["GPU-abc"], dp=2, tp=1, share=True) == ["GPU-abc", "GPU-abc"]


@pytest.mark.parametrize(
    ("gpus", "dp", "tp", "share", "expected"),
    [
        (["0"], 2, 1, False, "dp = 2, tp = 1: needs 2 GPUs, 1 visible; --share-gpus puts"),
        (["0"], 2, 2, True, "dp = 2, tp = 2: needs 2 GPUs, 1 visible"),
        ([], 1, 1, False, "dp = 1, tp = 1: needs 1 GPUs, 0 visible"),
    ],
)
def test_too_few_gpus(gpus, dp, tp, share, expected):
    with pytest.raises(UsageError) as caught:
        assign(gpus, dp=dp, tp=tp, share=share)
    assert str(caught.value).startswith(expected)
