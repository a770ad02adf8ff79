"""Test the router's and the emulator's JSON errors, as OpenAI's clients read them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from fairbench_load.processes.addresses import WorkerAddress
from tests.emulator.live_emulator import running
from tests.serve.live_router import cluster, router_before


@asynccontextmanager
async def emulated():
    async with running(asyncio.get_running_loop()) as (_, session):
        yield session, ""


@asynccontextmanager
async def routed():
    async with cluster(1) as (under_test, _):
        yield under_test.session, under_test.url


def ask(server, method, path):
    async def run():
        async with server() as (session, url), session.request(method, url + path) as answer:
            return answer.status, answer.headers, await answer.json()

    return asyncio.run(run())


SERVERS = pytest.mark.parametrize("server", [emulated, routed])


@SERVERS
@pytest.mark.parametrize("path", ["/v1/embeddings", "/", "/v1/chat/completions/", "/%0a::error::"])
def test_a_missing_path_is_a_404_in_json(server, path):
    status, _, said = ask(server, "POST", path)
    assert (status, said["error"]["type"]) == (404, "invalid_request_error")
    assert said["error"]["message"].startswith(f"POST {path}".replace("0a", "0A"))


@SERVERS
def test_a_wrong_method_gets_a_json_405_with_the_allowed_methods(server):
    status, sent, said = ask(server, "GET", "/v1/completions")
    assert (status, sent["Allow"], said["error"]["code"]) == (405, "POST", 405)
    status, sent, _ = ask(server, "DELETE", "/v1/models")
    assert (status, sent["Allow"]) == (405, "GET, HEAD")


def test_an_invalid_model_list_of_a_worker_is_a_502():
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            worker.listed = ["m"]
            async with under_test.session.get(f"{under_test.url}/v1/models/m") as answer:
                return answer.status, (await answer.json())["error"]["message"]

    assert asyncio.run(run()) == (502, "the worker does not list its models")


def with_openai(test, **router):
    """Run ``test(client)`` with OpenAI's client on a router before an emulator."""
    openai = pytest.importorskip("openai")

    async def main():
        async with running(asyncio.get_running_loop()) as (_, session):
            async with session.get("/health") as answer:
                worker = WorkerAddress(str(answer.url.origin()))
            async with router_before([worker], **router) as under_test:
                url = f"{under_test.url}/v1"
                async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                    return await test(openai, client, under_test)

    return asyncio.run(main())


def test_the_official_client_retrieves_models_and_errors():
    async def test(openai, client, _):
        listed = [model.id async for model in client.models.list()]
        found = await client.models.retrieve(listed[0])
        with pytest.raises(openai.NotFoundError) as missed:
            await client.models.retrieve("meta-llama/none")
        with pytest.raises(openai.NotFoundError, match="this path does not exist"):
            await client.embeddings.create(model="m", input="a")
        return listed, found.id, missed.value.body

    listed, found, missed = with_openai(test)
    assert listed == [found] == ["llama-3.1-8b"]
    assert (missed["param"], missed["code"]) == ("model", 404)
    assert "meta-llama/none" in missed["message"]


HI = [{"role": "user", "content": "hi"}]


def test_the_official_client_gets_the_reason_for_refusing_several_answers():
    async def test(openai, client, under_test):
        several = "a request must have one prompt, because workers do not keep the client"
        for path, asked, why in (
            (client.chat.completions, {"messages": HI, "n": 99}, "n: must be from 1 to 16"),
            (client.completions, {"prompt": "a", "best_of": 3}, "answers that are thrown away"),
            (client.completions, {"prompt": ["a", "b"]}, several),
            (client.completions, {"prompt": [[1, 2], [3]]}, several),
        ):
            with pytest.raises(openai.BadRequestError, match=why):
                await path.create(model="m", max_tokens=2, **asked)
        one = await client.completions.create(
            model="m", prompt=["a"], max_tokens=2, n=1, best_of=1, user="ann"
        )
        charged = 'fairbench_output_tokens_total{client="ann"}'
        return one.usage.completion_tokens, await under_test.metric(charged)

    assert with_openai(test) == (2, 2.0)


def test_null_and_float_values_from_the_official_client_are_served():
    async def test(_, client, under_test):
        nullable = ("stop", "seed", "user", "n", "logprobs", "top_p", "stream_options", "tools")
        chat = await client.chat.completions.create(
            model="m", messages=HI, max_tokens=5.0, stream=None, **dict.fromkeys(nullable)
        )
        stream = await client.chat.completions.create(
            model="m", messages=HI, max_tokens=4.0, stream=True, user="ユーザー"
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        charged = 'fairbench_output_tokens_total{client="user-'
        return (
            chat.usage.completion_tokens,
            len("".join(texts).split()),
            await under_test.metric(charged),
        )

    assert with_openai(test) == (5, 4, 4.0)
