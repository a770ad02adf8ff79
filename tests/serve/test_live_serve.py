"""Test ``fairbench serve`` as a process: URL, end, errors, and OpenAI's own client."""

import asyncio
import os
import signal
import socket
import sys
import tomllib
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial

import pytest
from aiohttp import ClientError, ClientSession
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench_load import headers
from fairbench_load.backends.base import LiveOptions
from fairbench_load.http_server import bound
from fairbench_serve import plan as routed_workers
from fairbench_serve.addresses import reserved
from fairbench_serve.plan import started_workers
from tests.load import live_null_server
from tests.serve.live_router import (
    CHAT,
    GENERATE,
    POLL_S,
    WORDS,
    Worker,
    cluster,
    events,
    payloads,
    streamed,
    until,
)

SERVE = [sys.executable, "-m", "fairbench", "serve", "--port", "0"]


@asynccontextmanager
async def serving(*arguments, **worker_settings):
    """Start a router process before one worker. Yield its URL, the process and the worker."""
    worker = Worker(**worker_settings)
    await worker.start()
    process = await asyncio.create_subprocess_exec(
        *SERVE,
        "--worker-url",
        worker.url,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield (await process.stdout.readline()).decode().strip(), process, worker
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        await worker.stop()


def test_the_router_serves_once_its_url_is_printed():
    async def run():
        async with serving() as (url, _, worker), ClientSession() as session:
            assert url.startswith("http://127.0.0.1:")
            async with session.post(url + CHAT, json=streamed(CHAT)) as answer:
                assert payloads(await answer.read()) == list(events(CHAT, {}))
                assert answer.headers[headers.WORKER] == "0"
            assert worker.seen[0][1][headers.ROUTING_KEY] == "default"

    asyncio.run(run())


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopping_router_finishes_streams_and_accepts_no_more(signum):
    async def run():
        async with serving(held_at=1) as (url, process, worker), ClientSession() as session:
            async with session.post(url + GENERATE, json=streamed(GENERATE)) as answer:
                data = await answer.content.readany()
                process.send_signal(signum)
                await until(lambda: not listens(url))
                worker.released.set()
                data += await answer.read()
            assert payloads(data) == list(events(GENERATE, {}))
            assert await process.wait() == 0

    asyncio.run(run())


def listens(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.slow
@pytest.mark.parametrize("grace", ["0.1", "1000"])
def test_streams_that_do_not_end_are_cut_after_the_grace_or_at_a_second_signal(grace):
    async def run():
        async with (
            serving("--grace", grace, held_at=1) as (url, process, worker),
            ClientSession() as session,
            session.post(url + GENERATE, json=streamed(GENERATE)) as answer,
        ):
            await answer.content.readany()
            process.terminate()
            await until(lambda: not listens(url))
            if grace == "1000":
                process.terminate()
            with pytest.raises(ClientError):
                await answer.read()
            assert await process.wait() == 0
            await until(lambda: worker.aborted)

    asyncio.run(run())


def test_the_log_names_neither_keys_nor_prompts(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('"secret-key" = "ann"\n')

    async def run():
        async with (
            serving("--keys", str(keys)) as (url, process, worker),
            ClientSession() as session,
        ):
            body = {"text": "a secret prompt", "stream": True}
            sent = {"Authorization": "Bearer secret-key"}
            async with session.post(url + GENERATE, json=body, headers=sent) as answer:
                await answer.read()
            wrong = {"Authorization": "Bearer secret-other"}
            async with session.post(url + GENERATE, json=body, headers=wrong) as answer:
                assert answer.status == 401
            assert worker.seen[0][1][headers.ROUTING_KEY] == "ann"
            process.terminate()
            _, log = await process.communicate()
            assert b"approximated" in log
            assert b"secret" not in log

    asyncio.run(run())


@pytest.mark.slow
def test_a_client_that_leaves_during_a_write_leaves_no_log_line():
    comments = [b": padding\n\n" * 6_000] * 1_000  # 66 MB, more than sockets buffer
    padding = [b'data: {"text": "a"}\n\n', *comments]

    async def run():
        async with serving(padding=padding) as (url, process, worker), ClientSession() as session:
            for _ in range(10):
                async with session.post(url + GENERATE, json=streamed(GENERATE)) as answer:
                    await answer.content.readany()
                    answer.close()
            await until(lambda: worker.aborted == 10)
            process.terminate()
            _, log = await process.communicate()
            assert b"Traceback" not in log

    asyncio.run(run())


async def until_up(url):
    """Wait until a worker of the router is up."""
    async with asyncio.timeout(60), ClientSession() as session:
        while True:
            async with session.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(POLL_S)


@pytest.mark.slow
def test_openais_client_streams_through_the_server():
    openai = pytest.importorskip("openai")

    async def run():
        async with serving() as (url, _, worker):
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
                messages = [{"role": "user", "content": "hello"}]
                stream = await client.chat.completions.create(
                    model="m", messages=messages, stream=True, user="ann"
                )
                # The client would fail on an event without choices, which it did not ask for.
                assert [chunk.choices[0].delta.content async for chunk in stream] == WORDS
                stream = await client.completions.create(
                    model="m", prompt="a", stream=True, stream_options={"include_usage": True}
                )
                assert [chunk.usage async for chunk in stream][-1].completion_tokens == len(WORDS)
                whole = await client.completions.create(model="m", prompt="a")
                assert whole.usage.prompt_tokens == 100
                assert [model.id async for model in client.models.list()] == ["m"]
                with pytest.raises(openai.BadRequestError, match="n: must be from 1 to 16"):
                    await client.chat.completions.create(model="m", messages=messages, n=20)
                stream = await client.responses.create(model="m", input="a", stream=True)
                events = [event async for event in stream]
                assert [event.delta for event in events if hasattr(event, "delta")] == WORDS
                assert events[-1].response.usage.input_tokens == 100
                worker.held_at = 2
                for ask in (
                    partial(client.completions.create, model="m", prompt="a"),
                    partial(client.responses.create, model="m", input="a"),
                ):
                    stream = await ask(stream=True)
                    await anext(aiter(stream))
                    await worker.stop()
                    with pytest.raises(openai.APIError, match="worker failed"):
                        [chunk async for chunk in stream]
                    await worker.start()
                    await until_up(url)
            assert worker.seen[0][1][headers.ROUTING_KEY] == "ann"

    asyncio.run(run())


@pytest.mark.slow
def test_a_worker_killed_mid_stream_costs_only_its_own_streams():
    """The test uses real processes and a real SIGKILL."""

    async def run():
        async with null_process() as (first, url_1), null_process() as (_, url_2):
            routers = serving("--worker-url", url_1, "--worker-url", url_2, "--router", "d2lpm")
            async with routers as (url, _, own), ClientSession() as session:
                await own.stop()
                async with session.post(url + GENERATE, json=streamed(GENERATE)) as answer:
                    # the dead worker is out of rotation by now
                    assert payloads(await answer.read())
                begun = await asyncio.gather(*(asked(session, url, 100) for _ in range(8)))
                first.kill()
                ends = [payloads(await answer.read())[-1] for answer in begun]
                assert sorted("error" in end for end in ends) == [False] * 4 + [True] * 4
                begun = [await asked(session, url, 1) for _ in range(4)]
                ends = [payloads(await answer.read())[-1] for answer in begun]
                assert not any("error" in end for end in ends)

    asyncio.run(run())


async def asked(session, url, tokens):
    """Open a stream of ``tokens`` tokens. Return once it has begun."""
    params = {"min_new_tokens": tokens, "max_new_tokens": tokens}
    body = {"input_ids": [1, 2, 3], "sampling_params": params, "stream": True}
    answer = await session.post(url + GENERATE, json=body)
    assert answer.status == 200
    return answer


@asynccontextmanager
async def null_process():
    """Run a null server whose streams of 100 tokens take 4 s. Yield its process and its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        live_null_server.__file__,
        "--chunks=100",
        "--gap-ms=40",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.slow
def test_workers_started_by_serve_end_with_serve(tmp_path):
    emulators = ("--dp", "2", "--backend", "emulator", "--log-dir", str(tmp_path))

    async def run():
        process = await asyncio.create_subprocess_exec(
            *SERVE, *emulators, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        url = (await process.stdout.readline()).decode().strip()
        body = {"prompt": "hello", "max_tokens": 4}
        async with ClientSession() as session:
            answers = [await session.post(f"{url}/v1/completions", json=body) for _ in range(2)]
            assert [answer.status for answer in answers] == [200, 200]
            async with session.get(f"{url}/metrics") as answer:
                up = [line for line in (await answer.text()).splitlines() if "worker_up{" in line]
        assert len(up) == 2
        logs = sorted(path.read_text() for path in tmp_path.glob("*.log"))
        workers = [log.split(",")[0].split()[-1] for log in logs]
        assert all(map(listens, workers))
        process.terminate()
        await process.communicate()
        assert process.returncode == 0
        assert not any(map(listens, workers))

    asyncio.run(run())


def test_a_stop_signal_once_workers_are_ready_is_obeyed(tmp_path, monkeypatch):
    @contextmanager
    def told_to_stop(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        yield

    monkeypatch.setattr(routed_workers, "running_workers", told_to_stop)
    flags = {"dp": 1, "backend": {"kind": "emulator"}}
    with (
        pytest.raises(KeyboardInterrupt),
        started_workers(flags, {}, LiveOptions(), tmp_path, {}, parts=()),
    ):
        pytest.fail("nobody is to be served any more")


WORKER = ("--worker-url", "http://127.0.0.1:9")
GATEWAY = (*WORKER, "--gateway", "vtc")
AT_MOST = ("--max-inflight-per-worker", "9")
WRONG = [
    ((), "--worker-url"),
    (
        (*WORKER, "--dp", "2"),
        (
            "workers: give either --worker-url, for workers that already run, or --dp, "
            "to start workers"
        ),
    ),
    ((*WORKER, "--model", "m"), "--model needs --dp"),
    ((*WORKER, "--server-arg", "--x"), "--server-arg needs --dp"),
    ((*WORKER, "--backend", "emulator"), "--backend needs --dp"),
    ((*WORKER, "--server-python", "python"), "--server-python needs --dp"),
    ((*WORKER, "--ready-check-timeout-sec", "9"), "--ready-check-timeout-sec needs --dp"),
    ((*WORKER, "--log-dir", "logs"), "--log-dir needs --dp"),
    ((*WORKER, "--mem-fraction-static", "0.5"), "--mem-fraction-static needs --dp"),
    (
        ("--dp", "1", "--mem-fraction-static", "0.5", "--set", "engine.mem_fraction_static=0.4"),
        "set the same parameter: give only one of them",
    ),
    ((*WORKER, "--set", "dlpm.quantum=1"), "only d2lpm.PARAM can be set here"),
    (
        (*WORKER, "--router", "central-dlpm", "--set", "d2lpm.worker_quantum=1"),
        "only dlpm.PARAM can be set here",
    ),
    ((*WORKER, "--router", "central-dlpm", "--set", "dlpm.quantum=0"), "dlpm.quantum"),
    (("--dp", "2", "--backend", "sim"), "choose from emulator, sglang"),
    (("--dp", "2", "--backend", "emulatr"), "Did you mean 'emulator'?"),
    (("--dp", "2", "--backend", "emulator", "--set", "d2lmp.charge=input"), "d2lmp"),
    (("--dp", "1", "--backend", "emulator", "--set", "tot.branches=2"), "--set tot.branches: only"),
    (("--dp", "1", "--backend", "emulator", "--set", "vtc.lift=none"), "--set vtc.lift: only"),
    (("--worker-url", "127.0.0.1:9"), "must be an address http://HOST[:PORT]"),
    (
        ("--worker-url", "http://127.0.0.1:9,kv=9"),
        "must be kv=tcp://HOST:PORT or replay=tcp://HOST:PORT",
    ),
    (
        ("--worker-url", "http://127.0.0.1:9,ky=tcp://127.0.0.1:9"),
        "must be kv=tcp://HOST:PORT or replay=tcp://HOST:PORT",
    ),
    ((*WORKER, "--router", "d2lmp"), "Did you mean 'd2lpm'?"),
    ((*WORKER, "--scheduler", "d2lmp"), "Did you mean 'd2lpm'?"),
    ((*WORKER, "--set", "d2lpm.worker_quantum=0"), "d2lpm.worker_quantum"),
    ((*WORKER, "--keys", "no-such.toml"), "no-such.toml: cannot be read"),
    ((*WORKER, "--tokenizer", "no-such.json"), "no such file"),
    ((*WORKER, "--max-queue", "0"), "--max-queue"),
    ((*WORKER, "--host", "256.0.0.1"), "--host 256.0.0.1"),
    ((*WORKER, "--gateway", "vtcc"), "unknown gateway 'vtcc'"),
    ((*WORKER, "--saturation", "none"), "--saturation none needs a gateway: give --gateway"),
    ((*WORKER, "--max-inflight-per-worker", "9"), "needs a gateway: give --gateway"),
    ((*GATEWAY, "--saturation", "concurency"), "Did you mean 'concurrency'?"),
    ((*GATEWAY, "--max-inflight-per-worker", "0"), "must be a whole number of at least 1, or auto"),
    (
        (*GATEWAY, "--max-inflight-per-worker", "all"),
        "must be a whole number of at least 1, or auto",
    ),
    ((*GATEWAY, *AT_MOST, "--saturation", "utilization"), "needs --saturation concurrency"),
    (
        (*GATEWAY, *AT_MOST, "--set", "concurrency.requests=3"),
        "set the same limit: give only one of them",
    ),
    ((*GATEWAY, "--set", "gateway.order=longest-prefix"), "choose from fcfs, edf"),
    ((*GATEWAY, "--set", "gateway.ttl=3"), "gateway 'ttl'"),
    ((*GATEWAY, "--set", "dlpm.quantum=3"), "--set dlpm.quantum: only d2lpm.PARAM and vtc.PARAM"),
]


@pytest.mark.parametrize(("arguments", "complaint"), WRONG)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, complaint):
    result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert result.stderr.splitlines()[-1].startswith("fairbench: ")
    assert "Traceback" not in result.stderr


def planned(*arguments):
    told = CliRunner().invoke(app, ["serve", "--port", "0", *arguments, "--dry-run"])
    assert told.exit_code == 0, told.output
    return tomllib.loads(told.stdout)


def test_a_dry_run_prints_its_actions_and_no_key(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '"secret-1" = "ann"\n"secret-2" = "ann"\n"secret-3" = "bob"\n'
        "[clients.bob]\nweight = 2\ntokens_per_min = 600\n[clients.ann]\nweight = 3\n"
    )
    flags = ("--keys", str(keys), "--weights", "ann=4", "--set", "gateway.ttl_s=30")
    plan = planned(*GATEWAY, *flags)
    settings = plan.pop("settings")
    assert plan == {
        "client_limit": True,
        "router": "d2lpm",
        "workers": ["http://127.0.0.1:9"],
        "gateway": "vtc",
        "saturation": "concurrency",
        "max_queue": 10_000,
        "max_queue_per_client": 10_000,
        "clients": ["ann", "bob"],
        "weights": {"ann": 4.0, "bob": 2.0},
        "quotas": {"bob": {"tokens_per_min": 600}},
    }
    assert settings["gateway.ttl_s"] == 30.0
    assert settings["concurrency.requests"] == "auto"
    assert settings["concurrency.headroom"] == "auto"
    assert settings["gateway.outputs"] == "ahead"
    assert settings["vtc.charge"] == "extend"
    assert settings["d2lpm.worker_quantum"] > 0
    assert settings["d2lpm.fill_below"] == 2
    assert planned(*GATEWAY, "--set", "d2lpm.fill_below=0")["settings"]["d2lpm.fill_below"] == 0
    explicit = planned(*GATEWAY, *AT_MOST)["settings"]
    assert explicit["concurrency.requests"] == 9
    assert "concurrency.headroom" not in explicit
    changed = ("--set", "concurrency.headroom=0", "--set", "gateway.outputs=end")
    settings = planned(*GATEWAY, *changed)["settings"]
    assert (settings["concurrency.headroom"], settings["gateway.outputs"]) == (0, "end")


def test_a_dry_run_starts_no_worker(monkeypatch):
    monkeypatch.setattr(routed_workers, "running_workers", None)
    plan = planned("--dp", "2", "--backend", "emulator", "--scheduler", "vtc")
    assert (plan["dp"], plan["backend"], plan["router"]) == (2, "emulator", "client-round-robin")
    assert plan["local"] == "vtc"
    assert "gateway" not in plan


@pytest.mark.parametrize(
    ("arguments", "local"),
    [
        ((), "dlpm"),
        (("--scheduler", "vtc"), "vtc"),
        (("--scheduler", "vtc", "--gateway", "vtc"), "vtc"),
        (("--router", "round-robin"), None),  # no local scheduler was requested
        (("--gateway", "vtc"), None),
    ],
)
def test_a_local_scheduler_is_requested_through_its_pair(arguments, local):
    assert planned(*WORKER, *arguments).get("local") == local


REPORT = {"fairbench": {"local": "dlpm", "params": {}}}


@pytest.mark.parametrize(
    ("local", "info", "warning"),
    [
        ("dlpm", {}, "worker 0 does not run dlpm but its engine's own scheduler"),
        ("vtc", REPORT, "worker 0 does not run vtc but dlpm"),
        ("dlpm", {"internal_states": [REPORT, REPORT]}, ""),
        ("dlpm", {"internal_states": [REPORT, {"fairbench": {"vocab_size": 9}}]}, ""),
        (None, {}, ""),
    ],
)
def test_the_router_warns_of_workers_with_another_scheduler(local, info, warning, caplog):
    async def run():
        async with cluster(1, router={"local": local}, info=info):
            return [one for one in caplog.messages if "does not run" in one]

    told = asyncio.run(run())
    assert len(told) == bool(warning)
    assert all(warning in one for one in told)


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", *WORKER, "--port", port])
    assert result.exit_code == 2
    assert f"--port {port}: " in result.stderr
    assert "address already in use" in result.stderr.lower()


def test_a_reserved_port_is_kept_from_others_and_still_served():
    with ExitStack() as stack:
        port = stack.enter_context(reserved("127.0.0.1", 0, "--port"))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for one in bound("127.0.0.1", port, backlog=1):
            stack.enter_context(one)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert client.getpeername()[1] == port
