"""A router in this process, and workers that tests can stop, start and inspect."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import ClientSession, web

from fairbench_load import headers
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.app import SERVICE, router_app
from fairbench_serve.config import RouterConfig
from fairbench_serve.spans import NO_TRACES

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TYPED = (RESPONSES, MESSAGES)  # the events of these APIs name their type
BEFORE = {RESPONSES: 1, MESSAGES: 2}  # number of events before the first word
TURNS = [{"role": "user", "content": "hello"}]
PATHS = {
    GENERATE: {"input_ids": list(range(100)), "sampling_params": {"max_new_tokens": 3}},
    COMPLETIONS: {"model": "m", "prompt": "once upon a time", "max_tokens": 3},
    CHAT: {"model": "m", "messages": TURNS, "max_tokens": 3},
    RESPONSES: {"model": "m", "input": "hello", "max_output_tokens": 3},
    MESSAGES: {"model": "m", "messages": TURNS, "max_tokens": 3},
}
WORDS = ["one", "two", "three"]
POLL_S = 0.01


@dataclass
class Worker:
    """A small worker that answers three words. ``seen`` are its requests.

    With ``held_at``, the worker waits for ``released`` before the word with that number. With a
    ``key``, it answers 401 on every page to requests without that key. ``padding`` is sent before
    the words of a stream, piece by piece. A ``status`` other than 200 is the whole answer. ``says``
    replaces answers that are not streams, and ``ending`` the last event of streams.
    """

    port: int = 0
    key: str | None = None
    held_at: int | None = None
    padding: Sequence[bytes] = ()
    pause_s: float = 0.0  # before each piece and word of a stream
    status: int = 200
    streamed_error: bool = False  # streams begin and end with an error
    says: dict | None = None
    ending: dict | None = None
    info: dict = field(default_factory=dict)
    listed: list = field(default_factory=lambda: [{"id": "m"}])
    load: list | None = None  # waiting, running, and the used share of its pool
    seen: list = field(default_factory=list)
    strangers: list = field(default_factory=list)  # pages that were requested without its key
    aborted: int = 0
    sent_bytes: int = 0
    polls: int = 0  # number of times that its load was requested
    released: asyncio.Event = field(default_factory=asyncio.Event)
    healthy: bool | None = True  # None: it does not answer before ``released`` is set
    runner: web.AppRunner | None = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self):
        """Start on the same port as before, if there was one."""
        app = web.Application(client_max_size=1 << 26, middlewares=[self.guard])
        app.add_routes([web.post(path, self.answer) for path in PATHS])
        app.router.add_get("/health", self.health)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/loads", self.loads)
        app.add_routes(self.pages())
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    def pages(self):
        """Return further routes of a subclass."""
        return []

    @web.middleware
    async def guard(self, request, handler):
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            self.strangers.append(request.path)
            return web.json_response({"error": {"message": "who are you?"}}, status=401)
        answer = await handler(request)
        if isinstance(answer, web.Response) and answer.body:
            answer.enable_compression()  # compressed for clients that accept it, as engines do
        return answer

    async def stop(self):
        """Stop at once: new clients cannot connect, and connections of waiting clients break."""
        if self.runner.server is None:
            return
        for site in list(self.runner.sites):
            await site.stop()
        for connection in list(self.runner.server.connections):
            connection.force_close()
            if connection.transport is not None:
                connection.transport.abort()
        await self.runner.cleanup()

    async def health(self, _):
        if self.healthy is None:
            await self.released.wait()
        return web.Response(status=200 if self.healthy else 503)

    async def server_info(self, _):
        return web.json_response(self.info)

    async def loads(self, _):
        self.polls += 1
        if self.load is None:
            return web.Response(status=404)
        names = "num_waiting_reqs", "num_running_reqs", "token_usage"
        return web.json_response({"loads": [dict(zip(names, self.load, strict=True))]})

    async def models(self, request):
        self.seen.append((request.path, dict(request.headers), None))
        await self.wait_at(0)
        return web.json_response({"data": self.listed})

    async def answer(self, request):
        body = json.loads(await request.read())
        self.seen.append((request.path, dict(request.headers), body))
        if self.status != 200:
            return web.json_response({"error": {"message": "broken"}}, status=self.status)
        try:
            if body.get("stream"):
                return await self.stream(request, body)
            await self.wait_at(0)
            return web.json_response(self.says or whole(request.path))
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise

    async def stream(self, request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in self.padding:
            await asyncio.sleep(self.pause_s)
            await response.write(piece)
            self.sent_bytes += len(piece)
        told = list(events(request.path, body))
        if self.streamed_error:
            told = [{"error": {"message": "broken", "code": 400}}]
        if self.ending is not None:
            told[-1] = self.ending
        for number, event in enumerate(told):
            await self.wait_at(number - BEFORE.get(request.path, 0))
            await asyncio.sleep(self.pause_s)
            await response.write(event_bytes(event))
        if request.path not in TYPED or self.streamed_error or self.ending is not None:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def wait_at(self, number):
        if number == self.held_at:
            await self.released.wait()


def event_bytes(event):
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def usage(path):
    if path == GENERATE:
        meta = {"prompt_tokens": 100, "completion_tokens": len(WORDS), "cached_tokens": 32}
        return {"meta_info": meta}
    if path == MESSAGES:  # cached tokens are counted beside the input
        counts = {"input_tokens": 58, "cache_read_input_tokens": 32}
        return {"usage": {**counts, "cache_creation_input_tokens": 10, "output_tokens": 3}}
    if path == RESPONSES:
        details = {"input_tokens_details": {"cached_tokens": 32}}
        return {"usage": {"input_tokens": 100, "output_tokens": len(WORDS), **details}}
    details = {"prompt_tokens_details": {"cached_tokens": 32}}
    return {"usage": {"prompt_tokens": 100, "completion_tokens": len(WORDS), **details}}


def choice(path, word):
    return {"delta": {"content": word}} if path == CHAT else {"text": word}


def whole(path):
    if path == MESSAGES:
        content = [{"type": "text", "text": " ".join(WORDS)}]
        return {"type": "message", "content": content, "stop_reason": "end_turn", **usage(path)}
    if path == RESPONSES:
        content = [{"type": "output_text", "text": " ".join(WORDS)}]
        output = [{"type": "message", "status": "completed", "content": content}]
        return {"object": "response", "status": "completed", "output": output, **usage(path)}
    return {"choices": [choice(path, " ".join(WORDS))], **usage(path)}


def typed_events(path):
    """Yield the events of the two APIs that name them."""
    if path == RESPONSES:
        begun = {"object": "response", "status": "in_progress", "output": []}
        yield {"type": "response.created", "response": begun}
        for word in WORDS:
            yield {"type": "response.output_text.delta", "delta": word}
        yield {"type": "response.output_text.done", "text": "".join(WORDS)}
        yield {"type": "response.completed", "response": whole(path)}
        return
    told = usage(path)["usage"]
    begun = {"role": "assistant", "content": [], "usage": {**told, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    yield {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}
    for word in WORDS:
        yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    ended = {"output_tokens": len(WORDS)}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ended}
    yield {"type": "message_stop"}


def events(path, body):
    if path in TYPED:
        yield from typed_events(path)
        return
    for number, word in enumerate(WORDS, 1):
        if path == GENERATE:
            yield {"text": " ".join(WORDS[:number]), "meta_info": {"completion_tokens": number}}
        else:
            yield {"choices": [choice(path, word)]}
    if path == GENERATE:
        yield {"text": " ".join(WORDS), **usage(path)}
    elif (body.get("stream_options") or {}).get("include_usage"):
        yield {"choices": [], **usage(path)}


@dataclass
class RouterUnderTest:
    """A router that serves at ``url``, and its ``proxy``."""

    url: str
    proxy: object
    membership: object
    peering: object
    session: ClientSession

    def post(self, path, body=None, **headers):
        return self.session.post(self.url + path, json=body or PATHS[path], headers=headers)

    @property
    def up(self):
        """Return the workers in rotation."""
        return set(self.proxy.dispatcher.up)

    async def status(self, path):
        async with self.session.get(self.url + path) as answer:
            return answer.status

    async def metric(self, name):
        async with self.session.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), 0.0)


@asynccontextmanager
async def router_before(workers, traces=NO_TRACES, **settings):
    """Run a router before these workers, which must have started."""
    settings = {"router": "round-robin", "health_interval_s": 0.05, **settings}
    addresses = [w if isinstance(w, WorkerAddress) else WorkerAddress(w.url) for w in workers]
    app = router_app(RouterConfig(workers=addresses, **settings), traces)
    runner = web.AppRunner(
        app, handler_cancellation=True, shutdown_timeout=0, auto_decompress=False
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with ClientSession() as session:
            service = app[SERVICE]
            parts = service.proxy, service.membership, service.peering
            yield RouterUnderTest(f"http://127.0.0.1:{port}", *parts, session)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def cluster(count, *, router=None, **settings):
    """Run ``count`` workers and a router before them. ``router`` holds its settings."""
    workers = [Worker(**settings) for _ in range(count)]
    for worker in workers:
        await worker.start()
    try:
        async with router_before(workers, **(router or {})) as under_test:
            yield under_test, workers
    finally:
        for worker in workers:
            await worker.stop()


async def until(condition, timeout_s=120.0):
    """Wait until the condition holds. The limit is generous, because the machine may be busy."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(POLL_S)


def streamed(path):
    return {**PATHS[path], "stream": True}


def payloads(data):
    """Return the JSON payloads of a stream's events, after a check of its end."""
    *events, end = data.split(b"\n\n")
    done = [event for event in events if event == b"data: [DONE]"]
    assert (end, done) == (b"", [] if data.startswith(b"event: ") else events[-1:])
    return [json.loads(event.partition(b"data: ")[2]) for event in events[: -1 if done else None]]


@dataclass
class Flood:
    """Clients by name, each with a fixed number of requests that wait or run at a worker.

    All requests go to ``path`` and have ``prompt`` tokens, all different, until ``requests`` are
    answered.
    """

    clients: Mapping[str, int]
    requests: int
    at_once: int
    prompt: int
    vocab: int
    seed: int = 0
    path: str = GENERATE

    async def against(self, under_test, sampling):
        """Return requests served by client, and how often a slot was empty despite a queue."""
        dispatcher, left = under_test.proxy.dispatcher, self.requests
        had, idle = Counter(), 0

        async def client(name, number):
            nonlocal left, idle
            while left > 0:
                first = self.seed * 977 + number * 7919 + left * 31
                ids = [16 + (first + n * n) % self.vocab for n in range(self.prompt)]
                if self.path == GENERATE:
                    body = {"input_ids": ids, "sampling_params": sampling}
                else:
                    body = {"prompt": ids, **sampling}
                async with under_test.post(self.path, body, **{headers.CLIENT: name}) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
                left -= 1
                had[name] += left >= 0
                held = len(dispatcher.ingress) if dispatcher.ingress else 0
                idle += bool(held) and dispatcher.load(0).in_flight < self.at_once

        names = [name for name, number in self.clients.items() for _ in range(number)]
        await asyncio.gather(*(client(name, number) for number, name in enumerate(names)))
        return had, idle
