"""Test features of a real SGLang server with the plugin: classes, grammars and sessions.

SGLang loads no adapter without a GPU. Ranks that compute steps together are refused.
"""

import json
import os
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairbench_load.plugin_config import Evicting, plugin_config
from fairbench_load.server_facts import fetch_report
from tests.load.live_endpoints import OUTPUT, check_endpoints
from tests.serve.live_router import RESPONSES
from tests.sglang_cpu.sglang_cpu_server import ALWAYS, CPU_FLAGS, PYTHON, sglang_server, why_absent
from tests.sglang_cpu.tiny_model import write_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

FLAGS = (
    *("--max-total-tokens=4000", "--max-running-requests=1", "--served-model-name=m"),
    "--load-snapshot-publish-interval=1",
    *("--enable-priority-scheduling", "--disable-priority-preemption"),
)
PROMPT = list(range(100, 400))
LONG = {"max_new_tokens": 3000}
SHORT = {"max_new_tokens": 20}


def generate(url, ids, client, sampling=None, **facts):
    """Return SGLang's answer to a request, and the time at which it came."""
    sampling = {"max_new_tokens": 3, "ignore_eos": True, "temperature": 0} | (sampling or {})
    body = {"input_ids": ids, "routing_key": client, "sampling_params": sampling, **facts}
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer), time.monotonic()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    config = plugin_config("vtc", {}, None, Evicting("retention", ("x", "y")))
    with sglang_server(folder, *FLAGS, environment=config.environment()) as started:
        yield started.url


def clients_of(url):
    """Return the totals of each client in the server's only scheduler."""
    (report,) = fetch_report(url)
    return report.clients


def waiting(url):
    """Return how many requests wait in the server's queue."""
    with urllib.request.urlopen(f"{url}/v1/loads?include=core") as answer:
        return sum(load["num_waiting_reqs"] for load in json.load(answer)["loads"])


def test_a_higher_class_goes_first_and_clients_share_inside_a_class(server):
    """All requests wait behind one that fills the only slot until it is aborted."""
    sent = [("x", 1)] * 6 + [("y", 1), ("y", 5)]
    with ThreadPoolExecutor(16) as pool:
        ahead = pool.submit(generate, server, PROMPT, "x", LONG, rid="ahead")
        time.sleep(0.3)
        asked = []
        for client, priority in sent:
            asked.append(pool.submit(generate, server, [7, 8], client, SHORT, priority=priority))
            while waiting(server) < len(asked):
                assert not ahead.done()
        body = json.dumps({"rid": "ahead"}).encode()
        kind = {"Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(f"{server}/abort_request", body, kind)
        ).close()
        ends = [one.result()[1] for one in asked]
    order = [sent[at] for at in sorted(range(len(ends)), key=ends.__getitem__)]
    assert order[0] == ("y", 5)
    assert order.index(("y", 1)) < 4


def test_structured_output_is_served_and_charged(server):
    before = clients_of(server).get("z", {"output_tokens": 0})["output_tokens"]
    sampling = {"regex": "(w33|w34)", "max_new_tokens": 8, "ignore_eos": False}
    said, _ = generate(server, [5, 6], "z", sampling)
    assert said["text"].strip() in ("w33", "w34")
    charged = clients_of(server)["z"]["output_tokens"] - before
    assert charged == said["meta_info"]["completion_tokens"]


@pytest.mark.parametrize(
    ("ids", "choices", "answers"), [([9, 10], 3, 3), ([[11, 12], [13]], 1, 2), ([[14], [15]], 2, 4)]
)
def test_every_choice_and_prompt_of_a_request_is_charged_to_its_client(
    server, ids, choices, answers
):
    client = f"choices-{answers}"
    said, _ = generate(server, ids, client, {"max_new_tokens": 4, "n": choices})
    assert len(said) == answers
    assert clients_of(server)[client]["output_tokens"] == 4 * answers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "w33 w34", "max_tokens": 5, "n": 2}),
        ("/v1/completions", {"prompt": ["w35", "w36"], "max_tokens": 5}),
    ],
)
def test_the_header_names_the_client_of_each_api(server, path, body):
    client = f"api-{len(json.dumps(body))}"
    headers = {"Content-Type": "application/json", "x-smg-routing-key": client}
    body = json.dumps({"model": "m", **body}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{server}{path}", body, headers)).close()
    assert clients_of(server)[client]["output_tokens"] > 0


def test_a_router_before_the_plugin_passes_every_endpoint_and_choice_on(server):
    """The plugin charges the client of the router's header with all that the router charges."""
    check_endpoints(server, shorter={RESPONSES: 2})
    assert clients_of(server)["ann"]["output_tokens"] == 2 * (3 * OUTPUT + OUTPUT - 2) + 3 * OUTPUT


def test_the_tokens_of_a_session_stay_until_its_next_call(server):
    """Other requests would overwrite them in the order of their last use."""
    first = [list(range(1000, 1600)), list(range(400, 1000))]
    generate(server, first[0], "x", session_id="kept")
    generate(server, first[1], "x")
    for turn in range(5):
        generate(server, [1600 + turn, *range(100, 700)], "x")
    again = generate(server, first[0], "x", session_id="kept")[0]["meta_info"]["cached_tokens"]
    assert again >= len(first[0]) - 1
    (report,) = fetch_report(server)
    assert report.eviction == "retention"


def test_ranks_with_common_steps_end_before_the_model_is_loaded_with_one_line(tmp_path):
    write_model(tmp_path / "model")
    command = [PYTHON, "-m", "sglang.launch_server", "--model-path", tmp_path / "model"]
    command += [*CPU_FLAGS, "--attn-dp-size=2", "--tp-size=2"]
    environment = dict(os.environ) | ALWAYS | plugin_config("vtc", {}).environment()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2
    lines = [line for line in ended.stderr.splitlines() if line.startswith("fairbench: ")]
    assert len(lines) == 1
    assert "--attn-dp-size 2 is not supported with FAIRBENCH_LOCAL: its ranks" in lines[0]
    assert "Load weight" not in ended.stderr
