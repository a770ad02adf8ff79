"""Test ``fairbench serve --backend vllm`` on two real vLLM servers, a tiny model and no GPU.

Run in the environment of tests/vllm_cpu/install.sh; each test takes minutes.
"""

import os
import signal

import pytest

from fairbench_load.server_facts import get_text
from tests.load.live_cli import WAIT_S, running, tree, wait_until, wait_until_gone
from tests.load.live_vllm import SERVERS, SMALL, WHY_ABSENT, engine_cores, samples

openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT)]

PAGE, VOCABULARY, LONG = 32, 2048, 600


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Yield the process of ``serve``, the router's URL, and an OpenAI client of it."""
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    flags = ["--scheduler", "d2lpm+vtc", "--set", "engine.max_running_requests=4"]
    with running("serve", "--port", "0", *SERVERS, *flags, "--log-dir", tmp_path) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", timeout=WAIT_S, max_retries=0)
        try:
            yield process, url, client
        finally:
            process.terminate()


def ask(client, ids, tokens, who="ann"):
    """Open a stream of exactly ``tokens`` tokens."""
    return client.completions.create(
        model=client.models.list().data[0].id,
        prompt=ids,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"min_tokens": tokens},
        extra_headers={"x-fairbench-client": who},
    )


def test_serve_starts_servers_streams_follows_caches_and_leaves_no_process(served):
    process, url, client = served
    started = tree(process.pid)
    assert len(engine_cores(process)) == 2

    def told():
        return samples(get_text(f"{url}/metrics", timeout_s=WAIT_S))

    prompt = [16 + n for n in range(4 * PAGE)]
    for _ in range(2):  # The second request finds its prompt where the first one has left it.
        *events, last = ask(client, prompt, 8)
        assert last.usage.completion_tokens == 8
        assert last.usage.prompt_tokens == len(prompt)
        assert len(events) > 1
        assert events[-1].choices[0].finish_reason == "length"
    assert told()['fairbench_cached_tokens_total{client="ann"}'] >= 3 * PAGE
    assert told()['fairbench_output_tokens_total{client="ann"}'] == 16
    assert told()['fairbench_requests_total{client="ann",outcome="ok"}'] == 2
    for worker in (0, 1):
        assert told()[f'fairbench_kv_events_followed{{worker="{worker}"}}'] == 1
        assert told()[f'fairbench_kv_event_losses{{worker="{worker}"}}'] == 0
        assert told()[f'fairbench_kv_event_unreadable{{worker="{worker}"}}'] == 0

    with pytest.raises(openai.BadRequestError, match=f"0 to {VOCABULARY - 1}"):
        ask(client, [5, 60_000], 8)

    # After the signal, the server first finishes this stream.
    stream = iter(ask(client, prompt, LONG))
    next(stream)
    process.send_signal(signal.SIGINT)
    *_, last = stream
    assert last.usage.completion_tokens == LONG
    wait_until_gone(started)
    assert process.wait(WAIT_S) == 0
    assert "Traceback" not in process.stderr.read()


def test_a_killed_engine_is_restarted_and_the_other_serves_meanwhile(served):
    process, url, client = served
    killed = engine_cores(process)[0]
    up = 'fairbench_worker_up{{worker="{}"}}'.format

    def told():
        return samples(get_text(f"{url}/metrics", timeout_s=WAIT_S))

    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: sum(told()[up(worker)] for worker in (0, 1)) == 1, process)
    for number in range(4):
        *_, last = ask(client, [16 + number] * PAGE, 4)
        assert last.usage.completion_tokens == 4
    wait_until(lambda: sum(told()[up(worker)] for worker in (0, 1)) == 2, process)
    assert len(engine_cores(process)) == 2
    process.terminate()
    assert process.wait(WAIT_S) == 0
