"""Test OpenTelemetry traces: what they contain, who receives them, and what they omit."""

import asyncio
import json
import os
import sys

import pytest
from aiohttp import ClientSession, web
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench_load import headers
from fairbench_serve.spans import OtelTraces
from tests.serve.live_router import CHAT, GENERATE, PATHS, Worker, router_before, streamed, until

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
TRACE = int(PARENT.split("-")[1], 16)


@pytest.fixture
def spans():
    """Return where spans go, and the traces that make them."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra otel)")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, OtelTraces(provider)


async def asked(traces, path, body=None, worker=None, router=None, **sent):
    """Send a request through a router to one worker. Return what reached the worker."""
    one = worker or Worker()
    await one.start()
    try:
        async with router_before([one], traces, **(router or {})) as under_test:
            async with under_test.post(path, body, **sent) as answer:
                await answer.read()
            return one.seen
    finally:
        await one.stop()


@pytest.mark.parametrize("path", PATHS)
def test_a_request_is_a_span_with_its_client_worker_and_tokens(spans, path):
    exporter, traces = spans
    sent = {headers.CLIENT: "ann", "traceparent": PARENT}
    seen = asyncio.run(asked(traces, path, streamed(path), **sent))
    (span,) = exporter.get_finished_spans()
    told = dict(span.attributes)
    assert 0 <= told.pop("fairbench.held_s") < 60
    assert told == {
        "fairbench.client": "ann",
        "fairbench.worker": 0,
        "fairbench.outcome": "ok",
        "fairbench.cached_tokens": 32,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 3,
    }
    assert (span.name, span.status.is_ok) == (f"POST {path}", True)
    assert (span.context.trace_id, span.parent.span_id) == (TRACE, int(PARENT.split("-")[2], 16))
    # The worker's own span is a child of this one.
    (_, reached, _), *_ = seen
    assert reached["traceparent"].split("-")[1:3] == [
        f"{TRACE:032x}",
        f"{span.context.span_id:016x}",
    ]


def test_spans_have_no_text_of_prompts_or_answers(spans):
    exporter, traces = spans
    body = {**PATHS[CHAT], "messages": [{"role": "user", "content": "my secret"}]}
    asyncio.run(asked(traces, CHAT, body, worker=Worker(says={"choices": [{"text": "hush"}]})))
    (span,) = exporter.get_finished_spans()
    assert "my secret" not in span.to_json()
    assert "hush" not in span.to_json()


@pytest.mark.parametrize("junk", ["", "x", "00-" + "0" * 32 + "-0123456789abcdef-01", PARENT * 99])
def test_an_invalid_parent_is_ignored(spans, junk):
    exporter, traces = spans
    seen = asyncio.run(asked(traces, GENERATE, traceparent=junk))
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert seen[0][1]["traceparent"].split("-")[1] == f"{span.context.trace_id:032x}"


def test_a_request_that_fails_is_an_error(spans):
    exporter, traces = spans
    asyncio.run(asked(traces, GENERATE, worker=Worker(status=500)))
    (span,) = exporter.get_finished_spans()
    assert (span.attributes["fairbench.outcome"], span.status.is_ok) == ("error", False)


@pytest.mark.parametrize(
    ("body", "router", "sent", "status", "client"),
    [
        (b"{", {}, {headers.CLIENT: "ann"}, 400, None),
        (PATHS[GENERATE], {}, {headers.CLIENT: "a" * 200}, 400, None),
        (PATHS[GENERATE], {"keys": {"KEY": "ann"}}, {}, 401, None),
        (b"{", {"keys": {"KEY": "ann"}}, {"Authorization": "Bearer KEY"}, 400, "ann"),
        (PATHS[GENERATE], {"max_body_bytes": 9}, {}, 413, None),
        (PATHS[GENERATE], {"max_queue_per_client": 1}, {headers.CLIENT: "ann"}, 429, "ann"),
    ],
)
def test_a_request_refused_before_any_worker_has_a_span(spans, body, router, sent, status, client):
    """The span names the client if it is known, and is no error of the router."""
    exporter, traces = spans

    async def run():
        worker = Worker(held_at=0)
        await worker.start()
        async with router_before([worker], traces, **router) as under_test:
            first = None
            if status == 429:
                first = asyncio.create_task(ask(under_test))
                await until(lambda: worker.seen)
            assert await ask(under_test) == status
            if first:
                worker.released.set()
                assert await first == 200
        await worker.stop()

    async def ask(under_test):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        shown = {"Content-Type": "application/json", "traceparent": PARENT, **sent}
        async with under_test.session.post(
            under_test.url + GENERATE, data=raw, headers=shown
        ) as answer:
            return answer.status

    asyncio.run(run())
    span = exporter.get_finished_spans()[0]
    assert span.attributes["http.response.status_code"] == status
    assert span.attributes["fairbench.outcome"] == "refused"
    assert span.attributes.get("fairbench.client") == client
    assert "fairbench.worker" not in span.attributes
    assert (span.context.trace_id, span.status.is_unset) == (TRACE, True)


def test_a_client_that_leaves_before_dispatch_counts_as_left(spans):
    exporter, traces = spans

    async def run():
        worker = Worker(held_at=0)
        await worker.start()
        held = {"gateway": "vtc", "settings": {"concurrency.requests": 1}}
        async with router_before([worker], traces, **held) as under_test:

            async def ask():
                async with under_test.post(GENERATE) as answer:
                    await answer.read()

            asked = [asyncio.create_task(ask()) for _ in range(2)]
            await until(lambda: under_test.proxy.dispatcher.under_way == 2)
            asked[1].cancel()
            await until(exporter.get_finished_spans)
            worker.released.set()
            await asked[0]
        await worker.stop()

    asyncio.run(run())
    left, _ = exporter.get_finished_spans()
    assert left.attributes["fairbench.outcome"] == "left"
    assert "fairbench.worker" not in left.attributes


@pytest.mark.slow
def test_serve_sends_spans_where_its_variables_say():
    """The router runs as a process, and exports over OTLP until its end."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra otel)")
    posted = []

    async def collect(request):
        posted.append((request.path, await request.read()))
        return web.Response()

    async def run():
        worker = Worker()
        await worker.start()
        pages = web.Application()
        pages.router.add_post("/v1/traces", collect)
        runner = web.AppRunner(pages)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        where = f"http://127.0.0.1:{runner.addresses[0][1]}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fairbench", "serve", "--port", "0"),
            *("--worker-url", worker.url, "--otel"),
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": where},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            url = (await process.stdout.readline()).decode().strip()
            async with ClientSession() as session:
                sent = {headers.CLIENT: "client-of-the-test"}
                async with session.post(
                    url + GENERATE, json=PATHS[GENERATE], headers=sent
                ) as answer:
                    assert answer.status == 200
        finally:
            process.terminate()
            _, log = await process.communicate()
            await runner.cleanup()
            await worker.stop()
        return process.returncode, log.decode()

    code, log = asyncio.run(run())
    assert code == 0, log
    assert "Traceback" not in log
    ((path, body),) = posted
    assert path == "/v1/traces"
    assert b"client-of-the-test" in body
    assert b"fairbench-router" in body


def test_the_error_without_the_extra_names_the_extra(monkeypatch):
    monkeypatch.setattr("fairbench_serve.spans.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["serve", "--worker-url", "http://127.0.0.1:9", "--otel"])
    assert result.exit_code == 2
    assert "--otel needs the package opentelemetry.sdk: pip install '.[otel]'" in result.stderr
