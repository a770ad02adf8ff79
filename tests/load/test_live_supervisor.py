"""Test that servers that end by themselves are restarted, and that the run learns of it."""

import logging
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairbench_load.processes import servers as servers_module
from fairbench_load.processes.servers import Recipe, Supervisor, start_all, stop_all, supervised
from tests.load.live_cli import descendants, running, runs, wait_until

FAKE = Path(__file__).with_name("live_fake_server.py")
WAIT_S = 300  # long, because the machine may be busy


class Fake:
    """A server that ends on request and records its restarts."""

    def __init__(self, clock):
        self.clock, self.has_ended, self.deaths, self.starts = clock, False, 0, []
        self.recipe = SimpleNamespace(name="worker-0", place=SimpleNamespace(is_lost=False))

    def how_it_ended(self):
        return "worker-0 ended with exit code 7"

    def start_again(self):
        self.has_ended = False
        self.starts.append(self.clock())


def test_pauses_double_and_reset_after_a_steady_run(caplog):
    now = 0.0
    server = Fake(lambda: now)
    looked_after = Supervisor([server], lambda: now)

    def pause_after_end():
        nonlocal now
        server.has_ended, ended = True, now
        while server.has_ended:
            looked_after.restart_ended()
            now += 0.25
        return server.starts[-1] - ended

    assert [pause_after_end() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    now += 61
    assert pause_after_end() == 1
    assert server.deaths == 9
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == [
        "worker-0 ended with exit code 7; restart in 1 s",
        "worker-0 is started again",
    ]


def test_a_running_server_is_not_restarted():
    server = Fake(lambda: 0.0)
    for _ in range(3):
        Supervisor([server], lambda: 0.0).restart_ended()
    assert server.starts == []


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1):
            return True
    except OSError:
        return False


def test_a_killed_server_is_restarted_and_stopped_in_the_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(servers_module, "LOOK_S", 0.02)
    monkeypatch.setattr(servers_module, "FIRST_PAUSE_S", 0.05)
    pids = tmp_path / "pids"
    command = [sys.executable, str(FAKE)]
    recipe = Recipe("worker-0", lambda ports: [*command, str(ports[0]), "--pids", str(pids)])
    with caplog.at_level(logging.WARNING):
        servers = start_all([recipe], tmp_path, timeout_s=WAIT_S)
        try:
            with supervised(servers):
                url = servers[0].url
                os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
                until(lambda: len(pids.read_text().split()) == 4)
                until(lambda: answers(url))
        finally:
            stop_all(servers)
    assert servers[0].deaths == 1
    assert not any(runs(int(pid)) for pid in pids.read_text().split())
    assert "worker-0 ended with exit code 137 (starting); its log is" in caplog.text


@pytest.mark.parametrize("said", ["\x1b[31mred", "::error::x"])
def test_a_servers_last_output_cannot_command_a_terminal(said, tmp_path):
    from fairbench_load.processes.servers import Server

    server = Server(
        Recipe("worker-0", lambda _: [sys.executable, "-c", f"print({said!r})"]), tmp_path
    )
    until(lambda: server.has_ended)
    line = server.how_it_ended()
    assert line.isprintable()
    assert line.startswith("worker-0 ended with exit code 0 (")
    server.process.stop()


@pytest.mark.slow
def test_serve_restarts_a_dead_worker_that_it_had_started(tmp_path):
    """Four dead workers once stayed dead for 40 s."""
    flags = ("--dp", "2", "--backend", "emulator", "--log-dir", tmp_path, "--port", "0")
    with running("serve", *flags) as process:
        url = process.stdout.readline().strip()

        def up():
            with urllib.request.urlopen(f"{url}/metrics", timeout=300) as answer:
                page = answer.read().decode()
            return [f'fairbench_worker_up{{worker="{n}"}} 1.0' in page for n in range(2)]

        wait_until(lambda: up() == [True, True], process)
        first = emulators(process)
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: len(set(emulators(process)) - set(first)) == 1, process)
        wait_until(lambda: up() == [True, True], process)
        process.terminate()
        _, log = process.communicate()
    assert process.returncode == 0
    assert log.count("ended with exit code 137") == 1
    assert "restart in 1 s" in log


def emulators(process):
    """Return the processes of the run's emulators."""
    return [
        pid
        for pid in descendants(process.mark)
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4]
        == [b"-m", b"fairbench", b"emulate"]
    ]
