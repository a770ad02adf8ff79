"""Test that charges match events on a real server with chunked prefill, retraction and overlap."""

import json
import urllib.error
import urllib.request

import pytest

from fairbench_load.plugin_config import plugin_config
from fairbench_load.server_facts import fetch_report
from tests.sglang_cpu.sglang_cpu_client import burst, run_bursts, run_once_under_way
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

# Eight requests exceed this pool, because almost nothing is reserved for their outputs.
FLAGS = (
    "--max-total-tokens=1200",
    "--max-running-requests=8",
    "--chunked-prefill-size=64",
    "--schedule-conservativeness=0.1",
)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no-overlap"])
def test_every_token_is_booked_once(overlap, tmp_path):
    flags = FLAGS if overlap else (*FLAGS, "--disable-overlap-schedule")
    # LCF never lifts a counter, so the counter must equal the client's service to the token.
    with sglang_server(
        tmp_path, *flags, environment=plugin_config("lcf", {}).environment()
    ) as server:
        sent = {
            client: burst(client, 12, prefix=100, suffix=100, output=150) for client in ("A", "B")
        }
        run_bursts(server.url, (0.0, sent["A"]), (0.2, sent["B"]))
        (report,) = fetch_report(server.url)
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            metrics = answer.read().decode()
        server.flush()
        (flushed,) = fetch_report(server.url)
    assert report.counters["retractions"] > 0
    assert report.counters["recomputed_tokens"] > 0
    assert (
        report.counters["admissions"]
        == report.counters["arrivals"] + report.counters["retractions"]
    )
    assert report.counters["finished"] == report.counters["arrivals"]
    for client, requests in sent.items():
        booked = report.clients[client]
        retracted = sum(one.meta["num_retractions"] for one in requests)
        extend, output = sum(one.extend for one in requests), sum(one.output for one in requests)
        assert min(one.extend for one in requests) > 64, "no prompt was cut into chunks"
        assert booked["retractions"] == retracted
        assert booked["extend_tokens"] == extend
        assert booked["output_tokens"] == output
        assert booked["balance"] == extend + 2 * output
        assert f'fairbench_client_output_tokens_total{{client="{client}"}} {output}.0' in metrics
        assert f'fairbench_client_balance{{client="{client}"}} {extend + 2 * output}.0' in metrics
    assert not flushed.clients, "a flushed server starts the next run afresh"


def test_edf_takes_spare_memory_and_everything_is_booked_once(tmp_path):
    """Two requests of 100 + 450 fill a pool of 1,200. An urgent one of 300 + 300 has no room."""
    settings = {"edf.rescue_s": 1e5, "edf.aging_s": 1e6}  # however slow the machine is
    patient = burst("patient;due=,5000000,", 2, prefix=20, suffix=80, output=450)
    urgent = burst("urgent;due=2000000,3000000,", 1, prefix=20, suffix=280, output=300)
    environment = plugin_config("edf", settings).environment()
    with sglang_server(tmp_path, "--max-total-tokens=1200", environment=environment) as server:
        run_once_under_way(server.url, patient, urgent)
        (report,) = fetch_report(server.url)
    (rescued,) = urgent
    lost = [one.meta["num_retractions"] for one in patient]
    assert rescued.meta["num_retractions"] == 0
    assert sum(lost) > 0
    assert rescued.finish_s < max(one.finish_s for one in patient)
    counters = report.counters
    assert counters["retractions"] == sum(lost)
    assert counters["admissions"] == counters["arrivals"] + counters["retractions"]
    assert counters["finished"] == counters["arrivals"]
    assert counters["recomputed_tokens"] > 0
    for client, requests in (("patient", patient), ("urgent", urgent)):
        booked = report.clients[client]
        assert booked["output_tokens"] == sum(one.output for one in requests)
        assert booked["extend_tokens"] == sum(one.extend for one in requests)
    assert [one.meta["completion_tokens"] for one in (*patient, *urgent)] == [450, 450, 300]


def test_a_refused_request_gets_429(tmp_path):
    environment = plugin_config("rpm", {"rpm.limit": 3}).environment()
    with sglang_server(tmp_path, *FLAGS, environment=environment) as server:
        answers = [_ask(server.url, client) for client in "AAAAB"]
        (report,) = fetch_report(server.url)
    assert answers == [200, 200, 200, 429, 200]
    assert report.clients["A"]["refusals"] == 1


def _ask(url, client):
    ask = {"input_ids": [5, 6], "routing_key": client, "sampling_params": {"max_new_tokens": 1}}
    body = json.dumps(ask).encode()
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(f"{url}/generate", data=body, headers=headers)
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
