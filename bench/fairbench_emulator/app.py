"""The HTTP server of an emulated worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fairbench.errors import RunFailed
from fairbench.live.headers import WORKER
from fairbench.live.http_server import MAX_BODY_BYTES, listening, metrics_page, parsed
from fairbench.live.json_errors import errors_as_json, no_such_model
from fairbench.live.request_tag import answer_id
from fairbench_emulator.calls import BadRequest, EmulatedCall, Generation
from fairbench_emulator.pages import model_card, models, registry_of, server_info
from fairbench_emulator.server_apis import (
    EmulatedApi,
    EmulatedChat,
    EmulatedCompletions,
    EmulatedGenerate,
    OpenAIApi,
)
from fairbench_emulator.worker import EmulatedWorker, EmulatorConfig, build

TOO_MANY, RETRY_AFTER_S = HTTPStatus.TOO_MANY_REQUESTS, 60  # a rate limit is counted per minute

_encode = msgspec.json.Encoder().encode


def emulator_app(emulator: EmulatedWorker) -> web.Application:
    """Return the application.

    Run it with ``handler_cancellation``: a disconnect aborts a request.
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
            call = await _call(request, api, emulator)
            if (number := emulator.config.number) is not None:
                call = replace(call, rid=answer_id(number, call.rid))
            generation = emulator.engine.submit(call)
        except BadRequest as error:
            return _refused(api, str(error))
        try:
            if emulator.engine.may_refuse:  # known after the delays of HTTP and tokenizer
                await generation.begun()
            if generation.refused:
                answer = _refused(api, "the client has exceeded its rate limit", TOO_MANY)
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
    """Return a handler that tokenizes prompts, as vllm-router asks before choosing a worker."""

    async def render(request: web.Request) -> web.Response:
        try:
            return _json(api.rendered(await _call(request, api, emulator)))
        except BadRequest as error:
            return _refused(api, str(error))

    return render


async def _call(request: web.Request, api: EmulatedApi, emulator: EmulatedWorker) -> EmulatedCall:
    return await parsed(await request.read(), api.call, request.headers, emulator.text)


def _refused(api: EmulatedApi, why: str, status: int = HTTPStatus.BAD_REQUEST) -> web.Response:
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
    """Serve until SIGINT or SIGTERM; ``on_ready`` is called with the URL.

    Raises UsageError if a setting or a port cannot be used, RunFailed if the scheduler fails, which
    ends a SGLang server too.
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
