"""Test that the simulator and HTTP runs on emulated workers agree on the same experiment."""

import os

import pytest

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from tests.load.live_cluster import emulated_cluster, run_emulated

SCALE = 0.5
SERVICE, LATENCY = 0.05, 0.10  # allowed relative differences

TOO_LATE_MS = 100.0  # P99 lateness above which the served load differs from the simulator's


def check_on_time(summary):
    """Skip if the machine was too busy to send requests on time. Fail if the driver was late."""
    if (late_ms := summary["lateness_p99_ms"]) > TOO_LATE_MS:
        load, cores = os.getloadavg()[0], os.cpu_count()
        assert load > cores, f"{late_ms:.0f} ms late on a machine with nothing else to do"
        pytest.skip(
            f"requests left {late_ms:.0f} ms late, so the load is not the simulated one: other "
            f"programs use this machine (load {load:.1f}, {cores} cores)"
        )


def off(simulated, emulated):
    return abs(emulated / simulated - 1)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("scheduler", "dp"), [("dlpm", 1), ("d2lpm", 4)])
def test_simulator_and_emulator_agree(tmp_path, scheduler, dp):
    """The load keeps a queue most of the time without making the simulator chaotic.

    A change of 2% in speed moves a client's service by at most 4%, and its P50 by 6%.
    """
    spec = resolve(
        {
            **{"workload": "chat", "scheduler": scheduler, "dp": dp, "duration_s": 30.0},
            # HTTP is real here, so the profile must not include it.
            **{"request_rate": 1.25 * dp, "gpu": "a100-80gb/llama-3.1-8b/tp1/sglang"},
        },
        {"engine.max_running_requests": 64},
    ).model_copy(update={"max_drain_s": 10.0})
    simulated = simulate(spec).summary
    # At half speed, lateness and overhead halve in emulated time.
    with emulated_cluster(spec, stream_interval=64, time_scale=SCALE) as (_, router):
        records, emulated = run_emulated(spec, tmp_path, router, time_scale=SCALE)
    check_on_time(emulated)
    assert {record.error for record in records.requests} == {None}
    assert simulated["queue_empty_share"] < 0.3
    for key in ("service_rate_tok_s", "output_rate_tok_s", "request_throughput", "cache_hit_rate"):
        assert off(simulated[key], emulated[key]) < SERVICE, key
    assert off(simulated["victim_p50_s"], emulated["victim_p50_s"]) < LATENCY
    for mine, theirs in zip(simulated["clients"], emulated["clients"], strict=True):
        client = mine["client"]
        assert off(mine["service_rate_tok_s"], theirs["service_rate_tok_s"]) < SERVICE, client
        assert off(mine["p50_s"], theirs["p50_s"]) < LATENCY, client
