"""Test live runs with emulated replicas on two Ray nodes, and their endings."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.executors import LauncherFlags
from fairbench_load import launchers
from fairbench_load.launchers import Wanted
from fairbench_load.options import launcher_named
from fairbench_load.processes.environment import ServerPython
from fairbench_load.records import read_records
from tests.load.live_cli import descendants, lines, running, wait_until
from tests.load.live_recipes import places_of
from tests.load.test_live_launchers import only, rows
from tests.on_ray.ray_cluster import EMULATED, SHORT, SMALL, cluster_of

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

LONG = [*EMULATED, "--clients", "3", "--num-programs", "12", "--request-rate", "1"]


@pytest.fixture(scope="module")
def cluster():
    with cluster_of(2) as cluster:
        yield cluster


def on(cluster):
    return ["--launcher", "ray", "--ray-address", cluster.address]


def launcher(cluster):
    return launcher_named("ray", LauncherFlags(ray_address=cluster.address))


def servers():
    """Return this machine's emulated replicas that were started for Ray, by number."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            environment = (path.parent / "environ").read_bytes()
        except OSError:
            continue
        if b"emulate" in words and b"RAY_" in environment and b"-S" not in words:
            found.append(int(path.parent.name))
    return found


def under_way(process, parent):
    records = "*/live/requests.jsonl"
    wait_until(lambda: any(lines(path) > 3 for path in parent.glob(records)), process)
    return only(parent)


def until_no_server():
    end = time.monotonic() + 120
    while left := servers():
        assert time.monotonic() < end, left
        time.sleep(0.1)


def test_a_run_on_two_nodes_equals_a_local_run(cluster, tmp_path):
    for name, flags in (("here", []), ("there", on(cluster))):
        with running(*SHORT, *flags, "--result-dir", tmp_path / name) as process:
            _, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, "")
    here, there = (only(tmp_path / name) for name in ("here", "there"))
    assert rows(here) == rows(there)
    hosts = json.loads((there / "manifest.json").read_text())["hosts"]
    for number, host in enumerate(hosts):
        assert f"http://{host}:" in (there / "live" / f"worker-{number}.log").read_text()
    until_no_server()


def test_a_killed_node_takes_only_its_own_worker(cluster, tmp_path):
    with running(*LONG, *on(cluster), "--result-dir", tmp_path, "--json") as process:
        path = under_way(process, tmp_path)
        assert len(servers()) == 2
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        stdout, _ = process.communicate()
    cluster.add_node(**SMALL)  # replaces the killed node
    assert process.returncode == 0
    found = json.loads(stdout)
    (lost,) = [n for n in range(2) if f"worker-{n} (with " in found["notes"]["workers"]]
    records = read_records(path / "live")
    # Every expected program ran, and each of its requests is recorded once with its end.
    assert len({one.program_id for one in records.programs}) == len(records.programs) == 3 * 12
    assert len({one.request_id for one in records.requests}) == len(records.requests)
    assert sum(one.requests for one in records.programs) == len(records.requests)
    ended = found["completed"] + found["failed"] + found["refused"] + found["unfinished"]
    assert ended == found["num_requests"] == len(records.requests)
    workers = [one.worker for one in sorted(records.requests, key=lambda one: one.arrival_s)]
    assert set(workers[-5:]) == {1 - lost}
    until_no_server()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_server_outlives_the_command(cluster, tmp_path, signum):
    with running(*LONG, *on(cluster), "--result-dir", tmp_path) as process:
        under_way(process, tmp_path)
        assert len(servers()) == 2
        os.kill(process.pid, signum)
        process.communicate()
    assert process.returncode == (130 if signum == signal.SIGINT else -signum)
    assert not descendants(process.mark)
    until_no_server()
    with places_of(launcher(cluster), Wanted(2)) as places:  # there is room again
        assert len(places) == 2


def refused(launcher, wanted, error=UsageError, **options):
    """Return the error that the launcher raises."""
    with pytest.raises(error) as caught, places_of(launcher, wanted, **options):
        pass
    return str(caught.value)


def test_more_replicas_than_the_cluster_holds_are_refused(cluster):
    said = refused(launcher(cluster), Wanted(3), RunFailed, timeout_s=5)
    assert said.startswith(f"dp = 3: the Ray cluster at {cluster.address} still had room for only")
    assert said.endswith("room for only 2 after 5 s; each process needs 1 CPU")
    refused(launcher(cluster), Wanted(3), KeyboardInterrupt, interrupted=lambda: True)


def test_an_unsuitable_node_is_named(cluster, monkeypatch):
    engine = ServerPython(("no_such_engine", "fairbench"), "it", "NO_SUCH_PYTHON")
    said = refused(launcher(cluster), Wanted(1, engine))
    assert re.match(r"node [\d.]+: server_python .* has no no_such_engine", said)
    ours = ServerPython(("fairbench",), "it", "NO_SUCH_PYTHON")
    said = refused(launcher(cluster), Wanted(1, ours, gpus=2))
    assert re.match(r"node \[\d\.\]\+: Ray has no GPU on this node, but tp = 2 needs GPUs", said)
    here = launchers.versions()
    monkeypatch.setattr(launchers, "versions", lambda: {**here, "numpy": "0.1"})
    said = refused(launcher(cluster), Wanted(1))
    assert re.match(r"node [\d.]+, for worker-0 has numpy .*, and here it is 0\.1: servers", said)


def test_a_missing_cluster_is_one_line():
    nobody = launcher_named("ray", LauncherFlags(ray_address="127.0.0.1:9"))
    assert refused(nobody, Wanted(1)).startswith("--ray-address 127.0.0.1:9: ")
