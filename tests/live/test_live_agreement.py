"""The same experiment in the simulator, and over HTTP on emulated workers: the numbers agree."""

import pytest
from live_cluster import emulated_cluster, run_emulated

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate

SERVICE, LATENCY = 0.05, 0.10  # by how much they may differ, as a share

TOO_LATE_MS = 100.0  # then it is the machine's load that is measured


def off(simulated, emulated):
    return abs(emulated / simulated - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "dp"), [("dlpm", 1), ("d2lpm", 4)])
def test_simulator_and_emulator_agree(tmp_path, scheduler, dp):
    """A queue most of the time, and a load where the simulator itself is not chaotic: 2% more or
    less speed moves a client's service by 4% at most, and its P50 by 6%."""
    spec = resolve(
        {"workload": "chat", "scheduler": scheduler, "dp": dp, "duration_s": 30.0},
        {"engine.max_running_requests": 64},
    ).model_copy(update={"max_drain_s": 30.0})
    simulated = simulate(spec).summary
    with emulated_cluster(spec, stream_interval=64) as (_, router):
        records, emulated = run_emulated(spec, tmp_path, router)
    if emulated["lateness_p99_ms"] > TOO_LATE_MS:
        pytest.skip("this machine is too busy to send requests when they are due")
    assert {record.error for record in records.requests} == {None}
    assert simulated["queue_empty_share"] < 0.3
    for key in ("service_rate_tok_s", "output_rate_tok_s", "request_throughput"):
        assert off(simulated[key], emulated[key]) < SERVICE, key
    assert off(simulated["victim_p50_s"], emulated["victim_p50_s"]) < LATENCY
    for mine, theirs in zip(simulated["clients"], emulated["clients"], strict=True):
        client = mine["client"]
        assert off(mine["service_rate_tok_s"], theirs["service_rate_tok_s"]) < SERVICE, client
        assert off(mine["p50_s"], theirs["p50_s"]) < LATENCY, client
