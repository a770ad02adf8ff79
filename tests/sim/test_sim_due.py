"""Test due service in whole simulations: an idle cluster, and one in which LPM starves clients."""

from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.sim.run import simulate
from tests.sim.sim_helpers import small_spec


def test_an_idle_cluster_serves_every_client_and_is_not_contended():
    """Conversations that begin near the window's end continue after it.

    Therefore, not all due service was given in the window.
    """
    idle = {"scenario": "none", "request_rate": 0.05, "num_programs": None, "duration_s": 60.0}
    summary = simulate(small_spec("fcfs", "chat", flags=idle | {"warmup_s": 0.0})).summary
    assert summary["completed"] == summary["num_requests"] > 20
    assert summary["duration"] > summary["window_end_s"] == 60.0
    assert summary["min_entitlement_ratio"] is None
    assert summary["notes"]["min_entitlement_ratio"] == NOT_CONTENDED
    assert (summary["unfinished"], summary["failed"], summary["refused"]) == (0, 0, 0)


def test_clients_with_shorter_prefixes_starve_under_lpm():
    """Under LPM, the well-behaved clients make few calls, because their trees do not progress."""
    times = {"duration_s": 40.0, "warmup_s": 0.0, "max_drain_s": 0.0}
    crowded = times | {"scenario": "s1", "num_programs": None, "request_rate": 0.3}
    worst = {}
    for scheduler in ("lpm", "vtc"):
        summary = simulate(small_spec(scheduler, "tot", pool=9_000, flags=crowded)).summary
        worst[scheduler] = summary["min_entitlement_ratio"]
    assert worst["lpm"] < 0.1
    assert worst["vtc"] > 0.5
