"""Test the emulator over HTTP: SGLang's and OpenAI's APIs, refusals and reported facts."""

import asyncio
from itertools import pairwise

import pytest

from fairbench_load.headers import CLIENT, OUTPUT_TOKENS, ROUTING_KEY, WORKER, tag, worker_in
from tests.emulator.live_emulator import events, generate, running


def run(test, **config):
    """Run ``test(emulator, session)`` against a fresh emulator."""

    async def main():
        async with running(asyncio.get_running_loop(), **config) as (emulator, session):
            return await test(emulator, session)

    return asyncio.run(main())


def test_prompts_match_token_by_token_and_include_earlier_outputs():
    async def test(_, session):
        first = await generate(session, range(1000), new=10)
        again = await generate(session, [*range(1000), *first["output_ids"], 7, 8, 9], new=1)
        other = await generate(session, [*range(777), 5, 5, 5], new=1)
        return [a["meta_info"] for a in (first, again, other)], first["output_ids"]

    metas, ids = run(test)
    assert [meta["prompt_tokens"] for meta in metas] == [1000, 1013, 780]
    assert [meta["cached_tokens"] for meta in metas] == [0, 1009, 777]  # the last token has no KV
    assert [meta["completion_tokens"] for meta in metas] == [10, 1, 1]
    assert len(ids) == 10
    assert metas[0]["finish_reason"] == {"type": "length", "length": 10}


def test_a_stream_repeats_the_whole_output_at_most_every_few_steps():
    async def test(_, session):
        body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 40}, "stream": True}
        async with session.post("/generate", json=body) as answer:
            assert answer.content_type == "text/event-stream"
            return await events(answer)

    chunks = run(test, stream_interval=16, time_scale=1.0)
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert counts[-1] == 40
    assert 2 <= len(counts) <= 4  # the first token, after 16 and 32 steps, and the end
    assert all(later > earlier for earlier, later in pairwise(counts))
    for chunk, count in zip(chunks, counts, strict=True):
        assert chunk["output_ids"] == chunks[-1]["output_ids"][:count]
        assert chunks[-1]["text"].startswith(chunk["text"])
        assert (chunk["meta_info"]["finish_reason"] is None) == (chunk is not chunks[-1])


def test_the_header_gives_the_true_length_and_the_scheduler_does_not_see_it():
    async def test(emulator, session):
        body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 50}}
        seen = []
        scheduler = emulator.worker.scheduler
        scheduler.on_arrival = lambda request, view, now_s: seen.append(request.max_new_tokens)
        async with session.post("/generate", json=body, headers={OUTPUT_TOKENS: "7"}) as answer:
            return (await answer.json())["meta_info"]["completion_tokens"], seen

    assert run(test) == (7, [50])


def test_the_conversation_so_far_is_cached_even_when_sent_as_text():
    async def ask(session, messages):
        body = {"model": "m", "messages": messages, "max_tokens": 30}
        async with session.post("/v1/chat/completions", json=body) as answer:
            return await answer.json()

    async def test(_, session):
        messages = [{"role": "user", "content": "Tell me, what's a fair share of 3,000 tokens?"}]
        first = await ask(session, messages)
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        return first["usage"], (await ask(session, messages))["usage"]

    first, second = run(test)
    assert first["completion_tokens"] == 30
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    so_far = first["prompt_tokens"] + 30
    assert second["prompt_tokens_details"] == {"cached_tokens": so_far - 1}
    assert second["prompt_tokens"] > so_far


@pytest.mark.parametrize("chat", [False, True])
def test_openai_streams_add_up_to_the_answer_and_end_with_the_usage(chat):
    async def test(_, session):
        prompt = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        body = {"model": "m", "max_tokens": 50, "stream": True, **prompt}
        body["stream_options"] = {"include_usage": True}
        async with session.post(path, json=body) as answer:
            return await events(answer)

    *chunks, last = run(test)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 50
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = [choice["delta"]["content"] if chat else choice["text"] for choice in choices]
    assert len("".join(texts).split()) == 50
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [
        "length"
    ]


def test_the_official_client_reads_the_stream():
    openai = pytest.importorskip("openai")

    async def test(_, session):
        async with session.get("/health") as answer:
            url = f"{answer.url.origin()}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=9, stream=True
            )
            return [chunk.choices[0].delta.content async for chunk in stream]

    assert len("".join(run(test)).split()) == 9


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", b"{"),
        ("/generate", b"{}"),
        ("/generate", b'{"input_ids": []}'),
        ("/generate", b'{"input_ids": [[1], [2]]}'),
        ("/generate", b'{"input_ids": [-1]}'),
        ("/generate", b'{"text": ""}'),
        ("/generate", b'{"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}'),
        ("/generate", b'{"input_ids": [1], "sampling_params": {"max_new_tokens": 1e9}}'),
        ("/v1/completions", b'{"prompt": "x", "n": 2}'),
        ("/v1/completions", b'{"prompt": ["a", "b"]}'),
        ("/v1/chat/completions", b'{"messages": []}'),
        ("/v1/chat/completions", b"[" * 10_000),
    ],
)
def test_unsupported_requests_are_bad_requests(path, body):
    async def test(emulator, session):
        async with session.post(path, data=body) as answer:
            return answer.status, await answer.json(), emulator.engine.finished

    status, answer, finished = run(test)
    assert (status, finished) == (400, 0)
    message = answer["error"]["message"] if path == "/generate" else answer["message"]
    assert message
    assert "\n" not in message


def test_only_the_first_tokens_of_a_text_that_can_never_fit_are_counted():
    """Tokenizing millions of tokens takes so long that a router would think the emulator dead."""

    async def test(emulator, session):
        text = "a," * 400_000
        async with session.post("/v1/completions", json={"prompt": text}) as answer:
            return len(emulator.text.encode(text)), answer.status, await answer.json()

    found, status, answer = run(test, settings={"engine.max_total_tokens": 100})
    assert (found, status) == (101, 400)
    assert "do not fit into the KV pool of 100 tokens" in answer["message"]


def test_a_request_that_can_never_fit_is_refused_immediately():
    async def test(_, session):
        body = {"input_ids": [1] * 80, "sampling_params": {"max_new_tokens": 30}}
        async with session.post("/generate", json=body) as answer:
            return answer.status, (await answer.json())["error"]["message"]

    status, message = run(test, settings={"engine.max_total_tokens": 100})
    assert status == 400
    assert (
        message
        == "at least 80 input tokens and 30 output tokens do not fit into the KV pool of 100 tokens"
    )


def test_a_request_above_the_rate_limit_gets_429():
    async def test(_, session):
        statuses = []
        for client in ("a", "a", "a", "b"):
            body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
            body["routing_key"] = client
            async with session.post("/generate", json=body) as answer:
                statuses.append((answer.status, "Retry-After" in answer.headers))
        return statuses

    statuses = run(
        test, local="rpm", settings={"rpm.limit": 2}, time_scale=1.0
    )  # well within a minute
    assert statuses == [(200, False), (200, False), (429, True), (200, False)]


def test_a_client_that_leaves_aborts_its_request():
    async def test(emulator, session):
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 100_000}, "stream": True}
        async with session.post("/generate", json=body) as answer:
            await answer.content.readline()
        while not emulator.engine.aborted:
            await asyncio.sleep(0.01)
        assert len(emulator.worker.batch) == emulator.engine.finished == 0
        return emulator.engine.aborted, emulator.totals.clients["default"].output_tokens

    aborted, tokens = run(test, time_scale=1.0)  # the whole answer would take ten minutes
    assert aborted == 1
    assert tokens < 100_000


@pytest.mark.slow
def test_a_request_that_leaves_while_waiting_never_runs():
    async def test(emulator, session):
        first = asyncio.create_task(generate(session, [1], new=300, routing_key="a"))
        while not len(emulator.worker.batch):
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(generate(session, [2], new=300, routing_key="b"))
        while not len(emulator.worker.waiting):
            await asyncio.sleep(0.01)
        waiting.cancel()
        while emulator.engine.aborted == 0:
            await asyncio.sleep(0.01)
        await first
        return dict(emulator.totals.clients)

    clients = run(test, settings={"engine.max_running_requests": 1}, time_scale=2.0)
    assert list(clients) == ["a"]


def test_the_emulator_reports_itself_and_its_scheduler():
    async def test(_, session):
        await generate(session, range(10), new=3, routing_key="x")
        await session.post(
            "/v1/completions", json={"prompt": [1, 2], "max_tokens": 2}, headers={ROUTING_KEY: "y"}
        )
        await session.post(
            "/v1/completions", json={"prompt": [1, 2], "max_tokens": 2}, headers={CLIENT: "z"}
        )
        async with session.get("/server_info") as answer:
            info = await answer.json()
        async with session.get("/v1/models") as answer:
            models = await answer.json()
        async with session.get("/metrics") as answer:
            return info, models, await answer.text()

    info, models, metrics = run(test, local="dlpm", settings={"dlpm.quantum": 5000})
    assert info["emulated"] is True
    assert info["timing_profile"].startswith("a100-80gb/llama-3.1-8b")
    assert info["fairbench"]["local"] == "dlpm"
    assert info["fairbench"]["params"]["dlpm.quantum"] == 5000
    clients = info["fairbench"]["clients"]
    assert clients["x"]["input_tokens"] == 10
    assert clients["x"]["output_tokens"] == 3
    assert set(clients) == {"x", "y", "z"}
    assert models["data"][0]["id"] == "llama-3.1-8b"
    assert 'sglang:num_running_reqs{model_name="llama-3.1-8b"} 0.0' in metrics
    assert 'fairbench:client_tokens_total{client="x",kind="output"} 3.0' in metrics


def test_a_flush_resets_the_local_scheduler():
    async def test(emulator, session):
        def balances():
            return dict(emulator.worker.scheduler.balances())

        await generate(session, range(100), new=5, routing_key="ann")
        served = balances()
        async with session.post("/flush_cache") as answer:
            assert answer.status == 200
        flushed = balances()
        await generate(session, range(100), new=5, routing_key="bob")
        return served, flushed, balances()

    served, flushed, after = run(test, local="lcf")
    assert served == {"ann": 100 + 2 * 5}
    assert flushed == {}
    assert after == {"bob": 100 + 2 * 5}, "neither the cache nor ann's service is left"


def test_the_cache_is_flushed_only_when_idle():
    async def flush(session):
        async with session.post("/flush_cache") as answer:
            return answer.status

    async def test(emulator, session):
        await generate(session, range(100))
        long = asyncio.create_task(generate(session, range(100), new=400))
        while not len(emulator.worker.batch):
            await asyncio.sleep(0.01)
        busy = await flush(session)
        cached = (await long)["meta_info"]["cached_tokens"]
        idle = await flush(session)
        after = (await generate(session, range(100)))["meta_info"]["cached_tokens"]
        return busy, cached, idle, after

    assert run(test, time_scale=5.0) == (400, 99, 200, 0)


def test_a_numbered_emulator_names_itself_and_reads_the_request_id():
    async def test(emulator, session):
        told = {CLIENT: "gold", OUTPUT_TOKENS: "5"}
        body = {"prompt": "one two three", "max_tokens": 50}
        headers = {"X-Request-Id": tag(0, told)}
        async with session.post("/v1/completions", json=body, headers=headers) as answer:
            return answer.headers[WORKER], await answer.json(), dict(emulator.totals.clients)

    worker, answer, clients = run(test, number=3)
    assert (worker, worker_in(answer["id"])) == ("3", 3)
    assert answer["usage"]["completion_tokens"] == 5
    assert list(clients) == ["gold"]


def test_a_rendered_prompt_has_the_served_tokens():
    async def test(_, session):
        found = []
        for kind, body in (
            ("completions", {"prompt": "one two three"}),
            ("completions", {"prompt": [7, 8]}),
            ("chat/completions", {"messages": [{"role": "user", "content": "one two"}]}),
        ):
            asked = {**body, "max_tokens": 1}
            async with session.post(f"/v1/{kind}/render", json=asked) as answer:
                rendered = await answer.json()
            async with session.post(f"/v1/{kind}", json=asked) as answer:
                found.append((rendered, (await answer.json())["usage"]["prompt_tokens"]))
        async with session.post("/v1/completions/render", json={"prompt": 7}) as answer:
            return found, answer.status

    ((text, text_tokens), (ids, ids_tokens), (chat, chat_tokens)), status = run(test)
    assert len(text[0]["token_ids"]) == text_tokens == 3
    assert ids[0]["token_ids"] == [7, 8]
    assert ids_tokens == 2
    assert len(chat["token_ids"]) == chat_tokens
    assert status == 400
