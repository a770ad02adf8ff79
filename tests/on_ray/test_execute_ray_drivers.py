"""Test a live run's load sent from two Ray nodes, also when one of them dies."""

import json
import re
import signal
import time

import pytest

from fairbench.errors import RunFailed
from fairbench.execute.executors import LauncherFlags
from fairbench_load.launchers import Wanted
from fairbench_load.options import driver_launcher_named
from fairbench_load.records import read_records
from tests.load.live_cli import descendants, lines, only, running, wait_until
from tests.load.live_recipes import places_of
from tests.load.test_live_far_drivers import children_called
from tests.load.test_live_launchers import rows
from tests.on_ray.ray_cluster import EMULATED, SHORT, SMALL, cluster_of

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

LONG = [*EMULATED, "--clients", "3", "--duration", "20000", "--request-rate", "1"]


@pytest.fixture(scope="module")
def cluster():
    with cluster_of(2) as cluster:
        yield cluster


def on(cluster):
    return ["--drivers", "2", "--driver-launcher", "ray", "--ray-address", cluster.address]


def under_way(process, parent):
    """Wait until both drivers have reported a few requests."""

    def told(number):
        paths = parent.glob(f"*/live/driver-{number}/requests.jsonl")
        return any(lines(path) > 3 for path in paths)

    wait_until(lambda: told(0) and told(1), process)
    return only(parent)


def until_no_driver():
    end = time.monotonic() + 120
    while left := children_called("drivers.calling"):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def test_two_drivers_on_two_nodes_give_the_records_of_one_driver(cluster, tmp_path):
    for name, flags in (("here", []), ("there", on(cluster))):
        with running(*SHORT, *flags, "--result-dir", tmp_path / name) as process:
            _, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, "")
    here, there = (only(tmp_path / name) for name in ("here", "there"))
    assert rows(here) == rows(there)
    drivers = json.loads((there / "manifest.json").read_text())["drivers"]
    assert len(drivers) == 2
    for driver in drivers:  # nodes of one machine have the same clock
        assert re.fullmatch(r"[\d.]+", driver["host"])
        assert abs(driver["offset_s"]) <= driver["uncertainty_s"]
    until_no_driver()


def test_a_dying_node_is_reported_and_its_results_are_kept(cluster, tmp_path):
    with running(*LONG, *on(cluster), "--result-dir", tmp_path) as process:
        path = under_way(process, tmp_path)
        assert len(children_called("drivers.calling")) == 2
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        _, stderr = process.communicate()
        assert process.returncode == 1
    cluster.add_node(**SMALL)  # a node in place of the dead one
    (said,) = [line for line in stderr.splitlines() if "died during the run" in line]
    assert re.search(r"driver-\d at [\d.]+ died during the run", said)
    until_no_driver()
    with running("recover", path) as process:
        _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    kept = [read_records(path / "live" / f"driver-{number}").requests for number in range(2)]
    found = json.loads((path / "summary.json").read_text())
    assert found["num_requests"] == sum(map(len, kept))
    assert min(map(len, kept)) > 3


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_driver_outlives_the_command(cluster, tmp_path, signum):
    with running(*LONG, *on(cluster), "--result-dir", tmp_path) as process:
        under_way(process, tmp_path)
        process.send_signal(signum)
        process.communicate()
    assert process.returncode == (130 if signum == signal.SIGINT else -signum)
    assert not descendants(process.mark)
    until_no_driver()


def test_more_drivers_than_the_cluster_holds_are_refused(cluster):
    launcher = driver_launcher_named("ray", LauncherFlags(ray_address=cluster.address))
    wanted = Wanted(3, spread=True, name="driver", asked="--drivers {}")
    with pytest.raises(RunFailed) as caught, places_of(launcher, wanted, timeout_s=20):
        pass
    assert f"{caught.value}" == (
        f"--drivers 3: the Ray cluster at {cluster.address} still had no room for all after 20 s; "
        "each process needs 1 CPU"
    )
