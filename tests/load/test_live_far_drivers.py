"""Test drivers that a launcher starts elsewhere, which here is this machine."""

import asyncio
import os
import signal
import socket
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from threading import Thread

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.executors import LauncherFlags
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import check_live
from fairbench_load.driver.drive import drive
from fairbench_load.driver.target import DriverTarget
from fairbench_load.drivers import drive_sharded
from fairbench_load.far_drivers import RemoteCrew, address_facing
from fairbench_load.options import driver_launcher_named, launcher_named
from fairbench_load.processes.addresses import LOOPBACK
from fairbench_load.processes.process import LocalPlace
from fairbench_load.records import FOLDER, clocks, read_records
from fairbench_load.sent_files import SentFiles
from tests.load.live_cli import lines, tree
from tests.load.live_driving import VOCAB, small_spec
from tests.load.live_null_server import null_server

SCALE = 5.0


@dataclass(frozen=True)
class Watched(LocalPlace):
    """A place for drivers that records what was started there."""

    started: list = field(default_factory=list)

    def start(self, command, log_path, environment):
        self.started.append((command, environment))
        return super().start(command, log_path, environment)


def crew(*places, sent_files=None, **options):
    return RemoteCrew(places, LOOPBACK, sent_files or SentFiles.with_files([]), **options)


def drive_far(spec, folder, crew, interrupted=lambda server: False, **server_settings):
    """Send the load of a spec with these drivers, to a server in this process."""
    folder.mkdir(exist_ok=True)

    async def run():
        async with null_server(**server_settings) as server:
            return await asyncio.to_thread(
                lambda: drive_sharded(
                    *(crew, spec, DriverTarget(server.url, time_scale=SCALE), folder),
                    vocab=VOCAB,
                    on_progress=lambda progress: None,
                    interrupted=lambda: interrupted(server),
                )
            )

    return asyncio.run(run())


def drive_here(spec, folder):
    folder.mkdir()

    async def run():
        async with null_server() as server:
            await drive(spec, DriverTarget(server.url, time_scale=SCALE), folder, vocab=VOCAB)

    asyncio.run(run())


def asked(records):
    return sorted((r.client, r.program_id, r.depth, r.output_tokens) for r in records.requests)


@pytest.mark.slow
def test_remote_drivers_give_the_records_of_a_local_driver(tmp_path):
    spec = small_spec("chat", clients=3, num_programs=4)
    drive_here(spec, tmp_path / "here")
    places = [Watched(), Watched()]
    result = drive_far(spec, tmp_path / "there", crew(*places))
    here, there = (read_records(tmp_path / name) for name in ("here", "there"))
    assert result.complete
    assert asked(here) == asked(there)
    assert len({r.request_id for r in there.requests}) == len(there.requests)
    for clock in clocks(tmp_path / "there"):  # both drivers have the same clock
        assert clock.host == LOOPBACK
        assert abs(clock.before.offset_s) <= clock.before.uncertainty_s
        assert clock.drift_s == 0.0
    for place in places:  # no list of processes shows the key
        ((command, environment),) = place.started
        assert not set(environment.values()) & set(command)


@pytest.mark.slow
def test_the_records_of_a_killed_driver_are_kept(tmp_path):
    spec = small_spec("chat", clients=2, num_programs=200)
    records = [tmp_path / FOLDER.format(number=n) / "requests.jsonl" for n in range(2)]
    killed = []

    def kill_one(_):
        if not killed and all(lines(path) > 3 for path in records):
            killed.append(own_drivers()[-1])
            os.kill(killed[0], signal.SIGKILL)
        return False

    with pytest.raises(RunFailed, match=r"driver-\d at 127.0.0.1 died during the run"):
        drive_far(spec, tmp_path, crew(LocalPlace(), LocalPlace()), kill_one)
    assert killed
    kept = [read_records(path.parent) for path in records]  # although no program has ended
    assert min(len(one.requests) for one in kept) > 3
    assert not own_drivers()


def own_drivers():
    """Return the drivers that this process has started."""
    return sorted(set(children_called("fairbench_load.far_drivers")) & set(tree(os.getpid())))


def children_called(name):
    """Return the drivers of this machine without their reapers, the newest last."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(word.endswith(name) for word in words) and "-S" not in words:
            found.append(int(path.parent.name))
    return sorted(found)


@pytest.mark.slow
def test_a_driver_without_a_needed_file_is_reported(tmp_path):
    fixed = SentFiles.with_files([])
    absent = f"{tmp_path}/trace.jsonl"
    sent_files = SentFiles(fixed.environment, {}, {}, {absent: "0"}, fixed.code)
    with pytest.raises(UsageError, match=r"node .* does not have the file .*trace.jsonl"):
        drive_far(small_spec(), tmp_path, crew(LocalPlace(), sent_files=sent_files))


class Quiet(LocalPlace):
    """A place whose process runs but never calls back, though another process may."""

    exit_code, ending = None, ""
    stranger = None

    def start(self, command, log_path, environment):
        if self.stranger is not None:
            Thread(target=self.stranger, args=(int(command[4]),)).start()
        return self

    def cause(self):
        return self.log_tail()

    def log_tail(self):
        return ""

    def stop(self):
        pass


def started(place, folder, interrupted=lambda: False, **options):
    with crew(place, **options).started(folder, interrupted) as drivers:
        return drivers


def test_a_driver_that_fails_to_start_is_reported_with_its_output(tmp_path):
    with pytest.raises(RunFailed, match=r"driver-0 at 127.0.0.1 ended with exit code 1"):
        started(LocalPlace("/bin/false"), tmp_path)
    with pytest.raises(RunFailed, match=r"driver-0 at .* did not call 127.0.0.1 within 0.3 s"):
        started(Quiet(), tmp_path, patience_s=0.3)
    with pytest.raises(KeyboardInterrupt):
        started(Quiet(), tmp_path, lambda: True)


@pytest.mark.slow
def test_callers_without_the_key_are_rejected(tmp_path, monkeypatch):
    """Three strangers say nothing, hang up or guess a key. None becomes a driver or is awaited."""
    monkeypatch.setattr("fairbench_load.far_drivers.ANSWER_S", 1)
    turned_away = []

    def strangers(port):
        silent = socket.create_connection((LOOPBACK, port))
        socket.create_connection((LOOPBACK, port)).close()
        try:
            Client((LOOPBACK, port), authkey=b"a guess")
        except AuthenticationError as error:
            turned_away.append(error)
        silent.close()

    monkeypatch.setattr(Quiet, "stranger", staticmethod(strangers))
    with pytest.raises(KeyboardInterrupt):
        started(Quiet(), tmp_path, lambda: len(turned_away) == 1)


def test_a_driver_that_dies_before_naming_itself_is_reported(tmp_path, monkeypatch):
    """The driver knows the key but dies before it gives its number. There is no traceback."""
    gone = []

    def dying(port, key):
        Client((LOOPBACK, port), authkey=key).close()
        gone.append(port)

    monkeypatch.setattr("fairbench_load.far_drivers.secrets.token_bytes", bytes)
    monkeypatch.setattr(Quiet, "stranger", staticmethod(lambda port: dying(port, bytes(32))))
    monkeypatch.setattr(Quiet, "exit_code", property(lambda self: 1 if gone else None))
    monkeypatch.setattr(Quiet, "ending", "exit code 1")
    with pytest.raises(RunFailed, match=r"driver-0 at 127.0.0.1 ended with exit code 1"):
        started(Quiet(), tmp_path)


def test_the_address_for_a_host_is_a_local_address():
    assert address_facing(LOOPBACK) == LOOPBACK


@pytest.mark.parametrize("host", ["::1", "no.such.host.invalid"])
def test_a_node_that_cannot_be_reached_over_ipv4_is_one_line(host):
    with pytest.raises(UsageError, match=f"^--driver-launcher: node {host} "):
        address_facing(host)


@pytest.mark.parametrize(
    ("name", "says"),
    [("command", "unknown driver launcher 'command'"), ("rya", "Did you mean 'ray'")],
)
def test_drivers_run_on_this_machine_or_on_ray(name, says):
    with pytest.raises(UsageError) as caught:
        driver_launcher_named(name, LauncherFlags())
    assert says in str(caught.value)


def test_drivers_on_ray_without_ray_get_the_right_error(monkeypatch):
    monkeypatch.setattr("fairbench_ray.launcher.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"^--launcher ray needs the package ray: pip install '\.\[ray\]'$"
    ):
        driver_launcher_named("ray", LauncherFlags())


def test_a_driver_obeys_its_flags(monkeypatch):
    monkeypatch.setattr("fairbench_ray.launcher.find_spec", lambda name: name)
    flags = LauncherFlags(ray_address="h:1")
    assert driver_launcher_named("local", flags) is None
    far = driver_launcher_named("ray", flags)
    assert type(launcher_named("local", flags, drivers="ray")).__name__ == "LocalLauncher"
    with pytest.raises(
        UsageError,
        match=(
            "--driver-launcher needs real servers, because a simulation has no drivers; give "
            "--backend or --base-url"
        ),
    ):
        check_live(small_spec(), LiveOptions(driver_launcher=far))
