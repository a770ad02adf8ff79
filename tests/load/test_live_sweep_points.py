"""Test which points of a sweep share servers, and which cannot be run at all."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.execute.live_runs import (
    NO_FLAGS,
    LiveFlags,
    LivePoint,
    check_live_points,
    runs_of_points,
)
from fairbench_load.backends.workers import by_workers


def spec(scheduler="dlpm", settings=None, **flags):
    given = {"backend": {"kind": "emulator"}, "scheduler": scheduler} | flags
    return resolve(given, settings or {})


def grouped(*specs):
    """Return the positions of the specs that share their workers."""
    points = [LivePoint(str(number), one) for number, one in enumerate(specs)]
    served = [point for _, some in runs_of_points(points, NO_FLAGS) for point in some]
    return [[int(point.name) for point in group] for group in by_workers(served)]


def test_points_of_one_local_scheduler_and_engine_share_their_servers():
    assert grouped(
        spec("dlpm"),
        spec("vtc"),
        spec("d2lpm"),  # dlpm runs on its workers
        spec("dlpm", {"dlpm.quantum": 77}),
        spec("d2lpm", {"d2lpm.worker_quantum": 77}),  # a setting of the router
        spec("dlpm", {"engine.max_running_requests": 7}),
        spec("vtc", seed=3, workload="judge"),
        spec("vtc", dp=2),
        spec("vtc", backend={"kind": "emulator", "time_scale": 2.0}),
    ) == [[0, 2, 4], [1, 6], [3], [5], [7], [8]]


def test_simulated_points_need_no_servers():
    assert grouped(spec(backend=None), spec("vtc", backend=None), spec()) == [[2]]


def test_points_of_one_endpoint_run_together():
    one, other = ({"kind": "endpoint", "base_url": f"http://h:{port}"} for port in (1, 2))
    named = {"scheduler": "as served"}
    assert grouped(
        spec(**named, backend=one), spec(**named, backend=other), spec(**named, backend=one, seed=1)
    ) == [[0, 2], [1]]


def test_a_python_for_sglang_needs_sglang():
    with pytest.raises(UsageError, match="--server-python needs --backend sglang or vllm"):
        check_live_points([spec(), spec(backend=None)], LiveFlags("python"))
    missing = spec(backend={"kind": "sglang"}, model="m")
    with pytest.raises(UsageError, match="server_python /no/such: cannot be run"):
        check_live_points([spec(), missing], LiveFlags("/no/such"))
