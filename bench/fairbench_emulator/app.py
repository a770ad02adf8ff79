"""The HTTP server of an emulated worker: its APIs and its information pages.

The metrics page has SGLang's gauges and counters under SGLang's names, and each client's tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fairbench.errors import RunFailed
from fairbench.version import __version__
from fairbench_emulator.calls import BadRequest, EmulatedCall, Generation
from fairbench_emulator.kv_events import BLOCK_TOKENS
from fairbench_emulator.server_apis import (
    EmulatedApi,
    EmulatedChat,
    EmulatedCompletions,
    EmulatedGenerate,
    OpenAIApi,
)
from fairbench_emulator.worker import EmulatedWorker, EmulatorConfig, build
from fairbench_load.headers import WORKER, answer_id
from fairbench_load.http_server import (
    MAX_BODY_BYTES,
    errors_as_json,
    listening,
    metrics_page,
    no_such_model,
    parsed,
)
from fairbench_load.plugin_config import plugin_params

SERVICE_KINDS = ("input_tokens", "extend_tokens", "recompute_tokens", "output_tokens")


def server_info(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return the fields of SGLang's server info, with ``emulated`` and the timing profile."""
    config, limits = emulator.config, emulator.worker.limits
    publisher = emulator.publisher
    return {
        "emulated": True,
        "version": f"fairbench {__version__}",
        "model_path": config.model,
        "served_model_name": config.model,
        "timing_profile": config.gpu,
        "timing_grade": emulator.profile.grade,
        "time_scale": config.time_scale,
        "slowdown": config.slowdown,
        "stream_interval": config.stream_interval,
        "token_count_method": emulator.text.method,
        "vocab_size": emulator.text.vocab_size,
        "max_total_num_tokens": limits.pool_tokens,
        "chunked_prefill_size": limits.chunked_prefill_size,
        "max_prefill_tokens": limits.max_prefill_tokens,
        "max_running_requests": limits.max_running_requests,
        "kv_events": publisher
        and {
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            "block_size": BLOCK_TOKENS,
        },
        "fairbench": _scheduler_report(emulator),
    }


def _scheduler_report(emulator: EmulatedWorker) -> dict[str, Any]:
    engine, local = emulator.engine, emulator.config.local
    scheduler: Any = emulator.worker.scheduler
    engine.catch_up()
    cap = emulator.worker.limits.load_cap
    return {
        "local": local,
        "params": plugin_params(local, scheduler.params, cap),
        "weights": dict(emulator.config.weights),
        "counters": {
            "finished": engine.finished,
            "refused": engine.refused,
            "aborted": engine.aborted,
        },
        "clients": {name: asdict(total) for name, total in emulator.totals.clients.items()},
    }


def models(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return the list of models in OpenAI's format, with only the emulated model."""
    return {"object": "list", "data": [model_card(emulator)]}


def model_card(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return the description of the emulated model in OpenAI's format."""
    return {
        "id": emulator.config.model,
        "object": "model",
        "created": 0,
        "owned_by": "fairbench",
        "max_model_len": emulator.worker.limits.pool_tokens,
    }


class _Collector(Collector):
    def __init__(self, emulator: EmulatedWorker) -> None:
        self._emulator = emulator

    def collect(self) -> Iterator[Metric]:
        emulator = self._emulator
        emulator.engine.catch_up()
        label = [emulator.config.model]
        for kind, values in (
            (GaugeMetricFamily, _gauges(emulator)),
            (CounterMetricFamily, _counters(emulator)),
        ):
            for name, value in values.items():
                family = kind(f"sglang:{name}", f"{name}, emulated", labels=["model_name"])
                family.add_metric(label, value)
                yield family
        yield _service(emulator)


def _gauges(emulator: EmulatedWorker) -> dict[str, float]:
    worker, cache = emulator.worker, emulator.engine.cache
    used = cache.capacity - cache.free - cache.evictable
    hits, inputs = emulator.engine.cached_tokens, emulator.engine.input_tokens
    return {
        "num_running_reqs": len(worker.batch),
        "num_queue_reqs": len(worker.waiting),
        "token_usage": used / cache.capacity,
        "num_used_tokens": used,
        "kv_available_tokens": cache.free,
        "kv_evictable_tokens": cache.evictable,
        "kv_used_tokens": used,
        "cache_hit_rate": hits / inputs if inputs else 0.0,
    }


def _counters(emulator: EmulatedWorker) -> dict[str, float]:
    engine, totals = emulator.engine, emulator.totals.clients.values()
    return {
        "prompt_tokens": sum(total.input_tokens for total in totals),
        "generation_tokens": sum(total.output_tokens for total in totals),
        "cached_tokens": engine.cached_tokens,
        "num_requests": engine.finished,
        "num_aborted_requests": engine.aborted,
    }


def _service(emulator: EmulatedWorker) -> Metric:
    service = CounterMetricFamily(
        "fairbench:client_tokens",
        "Emulated tokens of each client by kind",
        labels=["client", "kind"],
    )
    for client, total in emulator.totals.clients.items():
        for kind in SERVICE_KINDS:
            service.add_metric([client, kind.removesuffix("_tokens")], getattr(total, kind))
    return service


def registry_of(emulator: EmulatedWorker) -> CollectorRegistry:
    """Return the Prometheus registry for the metrics page (``generate_latest``)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(emulator))
    return registry


# A refused client may try again after ``RETRY_AFTER_S`` seconds, because schedulers limit tokens
# per minute.
TOO_MANY, RETRY_AFTER_S = HTTPStatus.TOO_MANY_REQUESTS, 60

_encode = msgspec.json.Encoder().encode


def emulator_app(emulator: EmulatedWorker) -> web.Application:
    """Return the aiohttp application of the emulator.

    The application needs aiohttp's ``handler_cancellation``, which aborts a request if its client
    disconnects.
    """
    registry = registry_of(emulator)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_json])
    app.add_routes(
        [
            web.get("/health", _answering(web.Response)),
            web.get("/health_generate", _answering(web.Response)),
            web.get("/server_info", _answering(lambda: _json(server_info(emulator)))),
            web.get("/v1/models", _answering(lambda: _json(models(emulator)))),
            web.get("/v1/models/{model:.+}", _model(emulator)),
            web.get("/metrics", _answering(lambda: metrics_page(registry))),
            web.route("*", "/flush_cache", _answering(lambda: _flush_cache(emulator))),
            web.post("/generate", _serve(emulator, EmulatedGenerate())),
            web.post("/v1/completions", _serve(emulator, EmulatedCompletions())),
            web.post("/v1/completions/render", _render(emulator, EmulatedCompletions())),
            web.post("/v1/chat/completions", _serve(emulator, EmulatedChat())),
            web.post("/v1/chat/completions/render", _render(emulator, EmulatedChat())),
        ]
    )
    number = emulator.config.number
    if number is not None:

        async def sign(_: web.Request, response: web.StreamResponse) -> None:
            response.headers[WORKER] = str(number)

        app.on_response_prepare.append(sign)
    return app


def _answering(answer: Callable[[], web.Response]) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return answer()

    return handle


def _model(emulator: EmulatedWorker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != emulator.config.model:
            return no_such_model(name)
        return _json(model_card(emulator))

    return handle


def _flush_cache(emulator: EmulatedWorker) -> web.Response:
    if emulator.engine.flush_cache():
        return web.Response(text="Cache flushed.\n")
    return web.Response(
        text="Not flushed: there are running or waiting requests.\n", status=HTTPStatus.BAD_REQUEST
    )


def _json(content: Any, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=_encode(content), status=status, content_type="application/json")


def _serve(emulator: EmulatedWorker, api: EmulatedApi) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            call = await _parsed_call(request, api, emulator)
            if (number := emulator.config.number) is not None:
                call = replace(call, rid=answer_id(number, call.rid))
            generation = emulator.engine.submit(call)
        except BadRequest as error:
            return _refusal(api, str(error))
        try:
            # A refused client, too, gets its answer only after the emulated HTTP delay.
            if emulator.engine.may_refuse:
                await generation.begun()
            if generation.refused:
                answer = _refusal(api, "the client has exceeded its rate limit", TOO_MANY)
                answer.headers["Retry-After"] = str(RETRY_AFTER_S)
                return answer
            if call.stream:
                return await _stream(request, api, generation)
            while not generation.done:
                await generation.changed()
            return _json(api.whole(generation))
        finally:
            emulator.engine.abort(generation)

    return serve


def _render(emulator: EmulatedWorker, api: OpenAIApi) -> Handler:
    """Return a handler that tokenizes a prompt for vllm-router, which routes by token ids."""

    async def render(request: web.Request) -> web.Response:
        try:
            return _json(api.rendered(await _parsed_call(request, api, emulator)))
        except BadRequest as error:
            return _refusal(api, str(error))

    return render


async def _parsed_call(
    request: web.Request, api: EmulatedApi, emulator: EmulatedWorker
) -> EmulatedCall:
    return await parsed(await request.read(), api.call, request.headers, emulator.text)


def _refusal(api: EmulatedApi, why: str, status: int = HTTPStatus.BAD_REQUEST) -> web.Response:
    return _json(api.error(why, status), status)


async def _stream(
    request: web.Request, api: EmulatedApi, generation: Generation
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with suppress(ConnectionError):
        await response.prepare(request)
        done = False
        while not done:
            await generation.changed()
            done = generation.done
            events = [b"data: %b\n\n" % _encode(chunk) for chunk in api.chunks(generation)]
            if done:
                events.append(b"data: [DONE]\n\n")
            if events:
                await response.write(b"".join(events))
    return response


async def serve_emulator(
    config: EmulatorConfig, on_ready: Callable[[str, EmulatedWorker], None]
) -> None:
    """Serve requests until SIGINT or SIGTERM.

    ``on_ready`` is called with the server's URL and the emulated worker.

    Raises UsageError for an invalid setting or an unavailable port. Raises RunFailed if the local
    scheduler raises an error, because a real SGLang server ends after such an error.
    """
    emulator = build(config, asyncio.get_running_loop())
    try:
        async with listening(emulator_app(emulator), config.host, config.port) as server:
            emulator.engine.on_failure = server.stop.set
            on_ready(server.url, emulator)
            await server.stop.wait()
    finally:
        if emulator.publisher is not None:
            await emulator.publisher.close()
    if (failure := emulator.engine.failure) is not None:
        raise RunFailed(f"{config.local} failed: {failure!r}") from failure
