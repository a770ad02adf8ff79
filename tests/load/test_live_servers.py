"""Test that servers start in parallel, report when ready, and all end."""

import errno
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import RunFailed, UsageError
from fairbench_load.processes import environment as gpus
from fairbench_load.processes import reaper as reaper_module
from fairbench_load.processes import servers as servers_module
from fairbench_load.processes.addresses import free_ports
from fairbench_load.processes.environment import assign, found_gpus, server_gpus
from fairbench_load.processes.process import ServerProcess
from fairbench_load.processes.servers import Recipe, Server, start_all, stop_all
from tests.load.live_cli import runs, wait_until_gone

FAKE = Path(__file__).with_name("live_fake_server.py")
WAIT_S = 300  # long, because the machine may be busy


def recipe(name, *arguments, **options):
    return Recipe(
        name, lambda ports: [sys.executable, str(FAKE), str(ports[0]), *arguments], **options
    )


@pytest.mark.parametrize(
    ("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_a_reaper_ends_with_the_code_of_its_server_as_in_a_shell(command, code):
    """A shell adds 128 to the number of the signal that ended a process."""
    reaper = [sys.executable, reaper_module.__file__, "1.0", "sh", "-c", command]
    with subprocess.Popen(reaper, stdin=subprocess.PIPE) as process:
        assert process.wait(WAIT_S) == code


def pids_in(path):
    return [int(pid) for line in path.read_text().splitlines() for pid in line.split()]


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the server")
def test_a_server_ends_even_if_its_reaper_is_killed():
    started = 'trap "echo ended; exit" TERM; echo $$; while :; do sleep 0.05; done'
    reaper = [sys.executable, reaper_module.__file__, "1.0", "sh", "-c", started]
    with subprocess.Popen(
        reaper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        server = int(process.stdout.readline())
        try:
            os.kill(process.pid, signal.SIGKILL)
            wait_until_gone([server])
            assert process.stdout.read() == "ended\n"
        finally:
            if runs(server):
                os.kill(server, signal.SIGKILL)


def test_all_servers_become_ready_and_later_end(tmp_path):
    pids, heard = tmp_path / "pids", []
    recipes = [recipe(f"worker-{n}", "--pids", str(pids), "--after", f"{n / 5}") for n in range(3)]
    servers = start_all(recipes, tmp_path, timeout_s=WAIT_S, on_ready=heard.append)
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
    pids.touch()  # the working server may be stopped before it begins
    recipes = [recipe("good", "--pids", str(pids)), recipe("bad", "--exit", "3")]
    with pytest.raises(RunFailed) as caught:
        start_all(recipes, tmp_path, timeout_s=WAIT_S)
    where = f"its log is {tmp_path / 'bad.log'}"
    assert str(caught.value) == f"bad ended with exit code 3 (with this server); {where}"
    assert caught.value.__notes__ == ["starting\nsomething is wrong\nwith this server"]
    assert not any(map(runs, pids_in(pids)))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_named_before_the_server(tmp_path, monkeypatch, code):
    """A server that cannot write its log ends, and its log is empty."""

    def refused(**_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(servers_module, "TemporaryFile", refused)
    with pytest.raises(RunFailed) as failed:
        start_all([recipe("worker-0", "--exit", "1")], tmp_path, timeout_s=WAIT_S)
    said = f"{tmp_path}: cannot be written: {os.strerror(code)}, so worker-0 ended with exit code 1"
    assert str(failed.value).startswith(said)
    assert list(tmp_path.iterdir()) == [tmp_path / "worker-0.log"]


def test_a_server_that_finds_another_disk_full_is_shown_with_that_line(tmp_path):
    script = "print('OSError: [Errno 28] No space left on device: /cache'); print('bye'); exit(1)"
    full = Recipe("worker-0", lambda ports: [sys.executable, "-c", script])
    with pytest.raises(RunFailed, match=r"^worker-0 .* \(OSError: .* device: /cache\); its log"):
        start_all([full], tmp_path, timeout_s=WAIT_S)
    assert list(tmp_path.iterdir()) == [tmp_path / "worker-0.log"], "the check leaves no file"


@pytest.mark.slow
def test_a_server_that_is_never_ready_is_stopped(tmp_path, caplog, monkeypatch):
    pids = tmp_path / "pids"
    pids.touch()  # the server may be stopped before it begins
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(servers_module, "TELL_S", 0.2)
    with pytest.raises(RunFailed, match=r"slow was not ready within 1 s( \(starting\))?; its log"):
        start_all([recipe("slow", "--after", "600", "--pids", str(pids))], tmp_path, timeout_s=1)
    assert not any(map(runs, pids_in(pids)))
    assert "slow is not ready after 0 s" in caplog.text


def test_a_servers_last_output_cannot_command_a_terminal_or_ci(tmp_path):
    says = r"print('loading\n\x1b[31m::error::out of memory\x1b[0m\n\n'); raise SystemExit(3)"
    bad = Recipe("bad", lambda _: [sys.executable, "-c", says])
    with pytest.raises(RunFailed) as caught:
        start_all([bad], tmp_path, timeout_s=WAIT_S)
    last = r"(\x1b[31m::error::out of memory\x1b[0m)"
    assert f"bad ended with exit code 3 {last}; its log is" in str(caught.value)


SERVER_PYTHON = """\
#!/bin/sh
case "$*" in
*launch_server*)
    echo "$CUDA_VISIBLE_DEVICES-$HIP_VISIBLE_DEVICES $*" >> "$0.started"
    while [ "$(wc -l < "$0.started")" -lt 2 ]; do sleep 0.05; done
    printf 'loading\\n\\033[31mout of memory\\033[0m\\n::error::boom\\n'
    exit 3
esac
"""


def test_serve_shows_the_output_of_a_server_that_fails_to_start(tmp_path, monkeypatch):
    """The message also says how each of two servers on two GPUs was started."""
    python = tmp_path / "python"
    python.write_text(SERVER_PYTHON)
    python.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    flags = (
        "--port",
        "0",
        "--dp",
        "2",
        "--tp",
        "2",
        "--model",
        "m",
        "--server-python",
        str(python),
    )
    result = CliRunner().invoke(app, ["serve", *flags, "--log-dir", str(tmp_path)])
    assert result.exit_code == 1
    first, *rest = result.stderr.splitlines()[-4:]
    assert re.match(
        r"fairbench: worker-\d ended with exit code 3 \(:\\:error::boom\); its log", first
    )
    assert rest == ["loading", r"\x1b[31mout of memory\x1b[0m", r":\:error::boom"]
    started = sorted((tmp_path / "python.started").read_text().splitlines())
    assert [line.split(" ", 1)[0] for line in started] == ["4,5-", "6,7-"]
    assert all("--tp-size 2 " in line for line in started)


def test_an_interruption_while_starting_ends_started_servers(tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(KeyboardInterrupt):
        start_all(
            [recipe("slow", "--after", "600", "--pids", str(pids))],
            tmp_path,
            timeout_s=WAIT_S,
            interrupted=lambda: pids.exists() and len(pids_in(pids)) == 2,
        )
    wait_until_gone(pids_in(pids))


def test_a_missing_command_is_reported(tmp_path):
    with pytest.raises(RunFailed) as caught:
        start_all([Recipe("none", lambda _: ["/no/such/program"])], tmp_path, timeout_s=WAIT_S)
    assert caught.value.__notes__ == ["/no/such/program: No such file or directory"]


def test_a_taken_port_is_replaced_by_another(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        offers = iter([[taken.getsockname()[1]]])
        monkeypatch.setattr(
            "fairbench_load.processes.process.free_ports",
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
            "fairbench_load.processes.process.free_ports", lambda _: [taken.getsockname()[1]]
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


def test_children_of_a_killed_server_are_killed_too(tmp_path):
    pids = tmp_path / "pids"
    server = Server(recipe("worker", "--pids", str(pids)), tmp_path)
    wait_until(lambda: pids.exists() and len(pids_in(pids)) == 2)
    os.kill(pids_in(pids)[0], signal.SIGKILL)
    wait_until(lambda: server.process.exit_code is not None)
    assert server.process.exit_code == 128 + signal.SIGKILL
    assert not any(map(runs, pids_in(pids)))
    server.process.stop()


LARGE = """
import os, time
if os.fork() == 0:
    held = b"x" * (1 << 29)
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_server_has_ended_only_when_the_memory_of_its_children_is_free(tmp_path):
    log = tmp_path / "log"
    process = ServerProcess([sys.executable, "-c", LARGE], log)
    wait_until(lambda: log.read_text().endswith("\n"))
    process.stop()
    assert not runs(int(log.read_text()))


HARNESS = """
import signal
import sys
from pathlib import Path
from fairbench_load.processes.servers import Recipe, start_all, stop_all
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
        ([], 1, 1, False, "dp = 1, tp = 1: needs 1 GPUs, 0 visible; without a GPU, use"),
    ],
)
def test_too_few_gpus_are_an_error(gpus, dp, tp, share, expected):
    with pytest.raises(UsageError) as caught:
        assign(gpus, dp=dp, tp=tp, share=share)
    assert str(caught.value).startswith(expected)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a machine without nvidia-smi or variables, whose kernel lists the given devices."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(gpus, "ROOT", tmp_path)
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "bin").mkdir()

    def amd(simds, *, hidden=()):
        for number, simd_count in enumerate(simds):
            node = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
            node.mkdir(parents=True)
            minor = 127 + number if simd_count else 0
            (node / "properties").write_text(
                f"cpu_cores_count 0\nsimd_count {simd_count}\ndrm_render_minor {minor}\n"
            )
            if simd_count and number not in hidden:
                (tmp_path / f"dev/dri/renderD{minor}").touch()

    return amd


def test_amd_gpus_are_found_without_tools_of_rocm(machine, monkeypatch):
    assert found_gpus().names == []
    machine([0, 304, 304, 304, 304], hidden=[2])  # a processor, and a GPU of another container
    assert found_gpus().names == ["0", "1", "2"]
    assert server_gpus(dp=3, tp=1, share=False) == [
        {"HIP_VISIBLE_DEVICES": gpu} for gpu in ("0", "1", "2")
    ]
    with pytest.raises(UsageError, match="dp = 2, tp = 2: needs 4 GPUs, 3 visible"):
        server_gpus(dp=2, tp=2, share=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,0")  # HIP counts the devices that remain
    assert found_gpus().names == ["0", "1"]
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert server_gpus(dp=1, tp=1, share=False) == [{"HIP_VISIBLE_DEVICES": "1"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # a server gets both variables if both are set
    assert server_gpus(dp=1, tp=1, share=False) == [
        {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    ]
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")  # HIP obeys the variable, too
    assert server_gpus(dp=1, tp=1, share=False) == [{"CUDA_VISIBLE_DEVICES": "1"}]


def test_gpus_are_counted_by_node_and_junk_is_ignored(machine, tmp_path):
    machine([0, *[304] * 11])
    assert found_gpus().names == [str(number) for number in range(11)]
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "3/properties").write_bytes(b"\xff")
    (nodes / "4/properties").unlink()
    assert len(found_gpus().names) == 9


def test_gpus_listed_by_nvidia_smi_take_precedence(machine, tmp_path, monkeypatch):
    """The processor has AMD graphics beside NVIDIA cards, and HIP does not apply to those."""
    machine([24])
    tool = tmp_path / "bin/nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert server_gpus(dp=2, tp=1, share=False) == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ]
