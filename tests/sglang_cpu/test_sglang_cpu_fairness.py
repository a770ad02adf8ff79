"""Real SGLang on the CPU: client A floods, B is modest, under our schedulers and stock ones."""

import pytest
from sglang_cpu_client import both_backlogged, burst, run_bursts, services
from sglang_cpu_server import sglang_server, why_absent

from fairbench.live.plugin.config import plugin_environment
from fairbench.live.plugin.report import fetch_report, require_active

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

FLAGS = ("--max-total-tokens=8000", "--max-running-requests=8")
SETTINGS = {"dlpm.quantum": 500}
B_LATER_S = 0.3


def flood(url):
    """120 requests of A, and later 30 of B; each client has a prefix of its own."""
    flooding = burst("A", 120, prefix=512, suffix=64, output=32)
    modest = burst("B", 30, prefix=512, suffix=64, output=32)
    run_bursts(url, (0.0, flooding), (B_LATER_S, modest))
    return flooding, modest


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def last(requests):
    return max(sent.finish_s for sent in requests)


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
def test_our_schedulers_share_a_server_fairly(local, tmp_path):
    with sglang_server(tmp_path, *FLAGS, environment=plugin_environment(local, SETTINGS)) as server:
        require_active(fetch_report(server.url), local=local, settings=SETTINGS)
        flooding, modest = flood(server.url)
        assert server.calls_while_serving() == 0
        (report,) = fetch_report(server.url)
    both = flooding + modest
    got = services(both, *both_backlogged(both))
    assert min(got.values()) > 5 * SETTINGS["dlpm.quantum"], "the window says nothing"
    assert jain(got.values()) >= 0.95
    # B asks for a fifth of all, so that it is done in about 40% of the time.
    start_s = modest[0].received_s
    assert last(modest) - start_s < 0.8 * (last(flooding) - start_s)
    for client, requests in (("A", flooding), ("B", modest)):
        assert report.clients[client]["finished"] == len(requests)
        assert report.clients[client]["extend_tokens"] == sum(sent.extend for sent in requests)
        assert report.clients[client]["output_tokens"] == sum(sent.output for sent in requests)


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_stock_sglang_does_not(policy, tmp_path):
    with sglang_server(tmp_path, *FLAGS, f"--schedule-policy={policy}") as server:
        assert fetch_report(server.url) == []
        flooding, modest = flood(server.url)
        assert server.calls_while_serving() == 0
    both = flooding + modest
    assert jain(services(both, *both_backlogged(both)).values()) < 0.7
    assert last(modest) > last(flooding)
