"""Test the cache of a client in a real SGLang server that another floods with long prompts."""

import pytest

from fairbench_load.plugin_config import Evicting, plugin_config
from fairbench_load.server_facts import fetch_report, require_active
from tests.sglang_cpu.sglang_cpu_client import burst, run_bursts
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

POOL, PREFIX, TURNS, SCANS = 4000, 1200, 3, 4
FLAGS = (f"--max-total-tokens={POOL}", "--max-running-requests=4")


def hit_rate_under_a_flood(url):
    """Return the victim's hit rate. Between its turns, a scanner sends more than the pool holds."""
    turns = burst("victim", TURNS + 1, PREFIX, 20, 4)
    run_bursts(url, (0, turns[:1]))
    for number, turn in enumerate(turns[1:]):
        for scan in range(SCANS):
            run_bursts(url, (0, burst("scanner", 1, PREFIX, 20, 4, seed=(number, scan))))
        run_bursts(url, (0, [turn]))
    return sum(turn.cached for turn in turns[1:]) / sum(len(turn.prompt) for turn in turns[1:])


@pytest.mark.parametrize("policy", ["lru", "max-min"])
def test_max_min_keeps_a_victims_prefix_that_lru_loses_to_a_scan(tmp_path, policy):
    evicting = Evicting(policy, ("victim", "scanner"))
    environment = plugin_config("fcfs", {}, None, evicting).environment()
    with sglang_server(tmp_path, *FLAGS, environment=environment) as server:
        require_active(fetch_report(server.url), plugin_config("fcfs", {}, evicting=evicting))
        found = hit_rate_under_a_flood(server.url)
        (report,) = fetch_report(server.url)
    if policy == "lru":
        assert report.eviction is None
        assert found < 0.05
        assert not any("prepare_for" in hook for hook in report.hooks)
    else:
        assert report.eviction == policy
        assert found > 0.95
        assert report.hooks["sglang.srt.managers.schedule_batch.ScheduleBatch.check_decode_mem"]
        assert report.residency["victim"] >= PREFIX
        assert report.residency["victim"] + report.residency["scanner"] <= POOL
