"""Test features of a real vLLM server with the plugin: adapters, classes, grammars, drafts, loads.

FAIRBENCH_VLLM_PYTHON names the Python of the environment of install.sh.
"""

import contextlib
import json
import re
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairbench_load.plugin_config import OWN_ORDER, Evicting, plugin_config
from tests.vllm_cpu.vllm_cpu_server import READY_S, VLLM, WHY_ABSENT, stock_vllm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT or "present"),
]

PLUGIN = ("--scheduler-cls=fairbench_engines.vllm.scheduler.FairScheduler",)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
LONG = {"max_tokens": 3000}


@contextlib.contextmanager
def fair_vllm(folder, *flags, evicting=OWN_ORDER):
    """Yield the URL of a ready server with the plugin."""
    told = plugin_config("vtc", {}, None, evicting).environment() | {"VLLM_SERVER_DEV_MODE": "1"}
    with stock_vllm(
        *(folder, *PLUGIN, *flags), environment=told, module="fairbench_engines.vllm"
    ) as url:
        yield url


def post(url, path, client, body):
    """Return the server's answer, and the time at which it came."""
    kind = {"Content-Type": "application/json", "X-Session-ID": client}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
        return json.loads(text) if text else None, time.monotonic()


def generate(url, client, ids=range(5, 45), **facts):
    body = {"model": "m", "prompt": list(ids), "max_tokens": 8, "temperature": 0}
    return post(url, "/v1/completions", client, body | {"ignore_eos": True} | facts)


def counted(url, name, client):
    """Return a counter of the server for one client."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found = re.search(rf'{name}(?:_total)?{{client="{client}"}} (\S+)', answer.read().decode())
    return float(found[1]) if found else 0


def wait_for(url, state, number):
    """Return once ``number`` requests of the server are running or waiting."""
    pattern = rf"vllm:num_requests_{state}{{.*}} {number}\.0"
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            if re.search(pattern, answer.read().decode()):
                return
    raise AssertionError(f"never {number} requests {state}")


def test_drafts_are_free_and_the_tokens_of_a_session_stay(tmp_path):
    """Otherwise, other requests overwrite cached tokens in the order of their last use."""
    flags = ("--num-gpu-blocks-override=60", "--max-model-len=1024")
    flags += (f"--speculative-config={json.dumps(NGRAM)}",)
    first, chat = range(1000, 1600), {"session_id": "chat"}
    with fair_vllm(tmp_path, *flags, evicting=Evicting("retention", ("x", "y"))) as url:
        used = generate(url, "y", [5, 6, 7, 8] * 20, max_tokens=60)[0]["usage"]
        assert counted(url, "fairbench_client_output_tokens", "y") == used["completion_tokens"]
        generate(url, "x", first, vllm_xargs=chat)
        for turn in range(5):
            generate(url, "x", [turn, *range(100, 700)])
        before = counted(url, "fairbench_client_extend_tokens", "x")
        generate(url, "x", first, vllm_xargs=chat)
        assert counted(url, "fairbench_client_extend_tokens", "x") - before <= 32


def test_embeddings_are_served_in_order_of_arrival_and_the_server_says_so(tmp_path):
    with fair_vllm(tmp_path, "--runner=pooling") as url:
        answer, _ = post(url, "/v1/embeddings", "x", {"model": "m", "input": "w5 w6"})
        assert answer["data"][0]["embedding"]
        with urllib.request.urlopen(f"{url}/metrics") as metrics:
            assert 'local="fcfs"' in metrics.read().decode()
    said = (tmp_path / "server.log").read_text()
    assert said.count("fairbench: --runner pooling: requests are served in order of arrival") == 1


def test_a_prompt_that_another_server_computed_counts_as_cached(tmp_path):
    """A server prefills and stores, and then another loads and decodes."""
    charged = []
    for role in ("kv_producer", "kv_consumer"):
        (folder := tmp_path / role).mkdir()
        transfer = {
            "kv_connector": "ExampleConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "stored")},
        }
        with fair_vllm(folder, f"--kv-transfer-config={json.dumps(transfer)}") as url:
            tokens = 1 if role == "kv_producer" else 8
            generate(url, "x", range(100, 400), max_tokens=tokens)
            names = ("fairbench_client_extend_tokens", "fairbench_client_output_tokens")
            charged.append([counted(url, name, "x") for name in names])
    assert charged == [[300, 1], [12, 8]]  # nine blocks of 32 tokens were stored


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    writer = Path(__file__).parent / "tiny_adapter.py"
    for name, seed in (("a", "1"), ("b", "2")):
        subprocess.run([VLLM, writer, folder / name, seed], check=True)
    flags = ("--enable-lora", "--max-loras=1", "--max-lora-rank=8", "--max-num-seqs=2")
    flags += ("--lora-modules", f"a={folder / 'a'}", f"b={folder / 'b'}")
    with fair_vllm(folder, *flags, "--scheduling-policy=priority") as url:
        yield url


def test_an_adapter_has_prefixes_of_its_own_and_the_client_pays(server):
    for model, client in (("m", "l"), ("a", "la"), ("b", "lb"), ("b", "lb2")):
        generate(server, client, model=model)
    computed = [
        counted(server, "fairbench_client_extend_tokens", f"l{who}") for who in ("", "a", "b", "b2")
    ]
    assert computed == [40, 40, 40, 8]
    assert counted(server, "fairbench_client_output_tokens", "lb2") == 8


def test_every_adapter_is_served_though_only_one_has_a_slot(server):
    with ThreadPoolExecutor(12) as pool:
        asked = [
            pool.submit(generate, server, "xy"[number % 2], model="ab"[number % 2])
            for number in range(12)
        ]
        assert all(one.result()[0]["choices"] for one in asked)


def test_every_one_of_several_answers_is_charged(server):
    answer, _ = generate(server, "several", n=3, temperature=1.0)
    assert len(answer["choices"]) == 3
    assert counted(server, "fairbench_client_output_tokens", "several") == 24


@pytest.mark.parametrize("grammar", [{"choice": ["w5", "w6"]}, {"regex": "(w5|w6)+"}])
def test_structured_output_is_served_and_charged(server, grammar):
    before = counted(server, "fairbench_client_output_tokens", "z")
    answer, _ = generate(server, "z", structured_outputs=grammar, ignore_eos=False)
    assert set(answer["choices"][0]["text"].split()) <= {"w5", "w6"}
    charged = counted(server, "fairbench_client_output_tokens", "z") - before
    assert charged == answer["usage"]["completion_tokens"]


def mean_wait_s(url, client):
    """Return a client's mean time in the engine's queue. Answers may reach us in another order."""
    name = "fairbench_client_queue_time_seconds"
    return counted(url, f"{name}_sum", client) / counted(url, f"{name}_count", client)


def test_a_higher_class_goes_first_and_clients_share_inside_a_class(server):
    """All requests wait behind two that fill the slots."""
    sent = [("many", 1)] * 6 + [("few", 1), ("first", 0), ("last", 2)]
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(generate, server, "ahead", **LONG) for _ in range(2)]
        wait_for(server, "running", 2)
        asked += [
            pool.submit(generate, server, client, priority=priority, max_tokens=200)
            for client, priority in sent
        ]
        wait_for(server, "waiting", len(sent))
        assert all(one.result()[0]["choices"] for one in asked)
    waits_s = [mean_wait_s(server, client) for client in ("first", "few", "many", "last")]
    assert waits_s == sorted(waits_s)
