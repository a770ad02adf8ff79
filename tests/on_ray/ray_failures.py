"""Run sweeps on a Ray cluster of two nodes on this machine while parts of it die.

    python -m tests.on_ray.ray_failures WORK_DIR [PROGRAMS]

Each failure is tried on the same sweep. Its tables must equal those of local processes byte for
byte, each point must be stored once, and no task may outlive its command. Prints the events, and
exits with 1 if a check fails.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from tests.execute.same_sweep import results
from tests.on_ray.ray_cluster import SMALL, cluster_of

SWEEP = ["--schedulers", "fcfs,vtc,dlpm", "--workloads", "chat", "--num-runs", "2"]
PROGRAMS = "20"
HEAD_LOST_S = 20  # seconds after which Ray gives up on a head (60 by default)
PATIENCE_S = 900


class Sweep:
    """A running ``fairbench sweep``."""

    def __init__(self, words, work):
        self.log = (work / "log").open("w+")
        command = [sys.executable, "-m", "fairbench", "sweep", *words, "--result-dir", str(work)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self.log, cwd=work, start_new_session=True
        )

    def ended_points(self):
        return re.findall(r"^fairbench: (\d+) of ", Path(self.log.name).read_text(), re.MULTILINE)

    def until_points(self, count):
        until(lambda: len(self.ended_points()) >= count or self.process.poll() is not None)
        assert self.process.poll() is None, Path(self.log.name).read_text()

    def end(self, code=0):
        assert self.process.wait(PATIENCE_S) == code, Path(self.log.name).read_text()
        until(lambda: not tasks())  # no process outlives the sweep


def until(condition, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def tasks():
    """Return the processes of this machine that run a fairbench task for Ray."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::work"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def say(text):
    print(f"{time.monotonic() - BEGUN:6.0f} s  {text}", flush=True)


@contextmanager
def checked(name, work, expected):
    """Run the sweep in the folder ``name`` to its end inside the block, then check it."""
    folder = work / name
    folder.mkdir()
    yield folder
    found = results(folder / "mine")
    assert found == expected, sorted(set(found) ^ set(expected))
    assert not list((folder / "mine" / "failed").iterdir())
    say(f"{name}: {len(found)} files as of local processes, nothing failed, no task left")


def node_killed(cluster, work, expected):
    with checked("a node is killed", work, expected) as folder:
        sweep = Sweep([*SWEEP, "--name", "mine", *on(cluster)], folder)
        sweep.until_points(1)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        say(f"node killed after {len(sweep.ended_points())} points")
        sweep.end()
    cluster.add_node(**SMALL)  # replaces the killed node


def command_killed(cluster, work, expected):
    with checked("the command is killed, then resumed", work, expected) as folder:
        sweep = Sweep([*SWEEP, "--name", "mine", *on(cluster)], folder)
        sweep.until_points(1)
        sweep.process.kill()
        sweep.end(-signal.SIGKILL)
        say(f"command killed after {len(sweep.ended_points())} points; its tasks have ended")
        Sweep(["--resume", str(folder / "mine"), *on(cluster)], folder).end()


def head_restarted(work, expected):
    with checked("the head and all nodes are killed, and started again", work, expected) as folder:
        with cluster_of(2) as cluster:
            address = cluster.address
            sweep = Sweep([*SWEEP, "--name", "mine", *on(cluster)], folder)
            sweep.until_points(1)
            for node in [*cluster.worker_nodes, cluster.head_node]:
                node.kill_all_processes(check_alive=False, allow_graceful=False)
        say(f"head killed after {len(sweep.ended_points())} points")
        with cluster_of(2, gcs_server_port=int(address.rpartition(":")[2])) as cluster:
            assert cluster.address == address
            say("a new one is up")
            sweep.end()


def on(cluster):
    return ["--executor", "ray", "--ray-address", cluster.address]


def main(work):
    os.environ |= {"RAY_gcs_rpc_server_reconnect_timeout_s": f"{HEAD_LOST_S}"}
    work.mkdir(parents=True, exist_ok=True)
    local = work / "local"
    local.mkdir()
    Sweep([*SWEEP, "--name", "mine"], local).end()
    expected = results(local / "mine")
    say(f"local processes: {len(expected)} files")
    with cluster_of(2) as cluster:
        say("two nodes of one processor are up")
        node_killed(cluster, work, expected)
        command_killed(cluster, work, expected)
    head_restarted(work, expected)
    say("all passed")


if __name__ == "__main__":
    BEGUN = time.monotonic()
    SWEEP += ["--num-programs", sys.argv[2] if len(sys.argv) > 2 else PROGRAMS]
    main(Path(sys.argv[1]).resolve())
