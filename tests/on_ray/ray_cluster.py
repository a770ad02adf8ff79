"""A Ray cluster of several nodes on this machine, whose processes can import the test modules."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Ray reads these variables when it is imported. The limit is long, because the machine may be busy.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300"}
os.environ |= {"RAY_worker_niceness": "0"}  # the default is 15
SMALL = {"object_store_memory": 80 * 2**20, "num_cpus": 1}

# a live run of emulated replicas, which ends soon with ``--num-programs``
EMULATED = ["run", "--backend", "emulator", "--dp", "2", "--workload", "chat", "--scenario", "none"]
SHORT = [*EMULATED, "--clients", "3", "--num-programs", "1", "--time-scale", "8"]


@contextmanager
def cluster_of(nodes: int, **head) -> Iterator[object]:
    """Yield a ``ray.cluster_utils.Cluster`` with the given number of one-processor nodes."""
    here = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, known)))
    from ray.cluster_utils import Cluster

    head = {"include_dashboard": False, **SMALL, **head}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**SMALL)
        yield cluster
    finally:
        os.environ["PYTHONPATH"] = known
        cluster.shutdown()
