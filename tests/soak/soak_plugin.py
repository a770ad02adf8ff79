"""Parts that the servers of a soak load by ``FAIRBENCH_SCHEDULERS``.

Routers record all their calls. Emulated workers fail as the last post to their ``/soak`` says (see
``soak_faults.py``).
"""

import asyncio
import atexit
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.fair_finish import FairFinish
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from fairbench_emulator import app as emulated
from fairbench_load import headers

CREDITS_EVERY = 500  # number of requests between two records of credits
JUNK_BYTES = 300
LIE = "lie:"  # prefix of the ``x-request-id`` of an answer that is well-formed but false
FALSE_ANSWER = {
    "meta_info": {"prompt_tokens": -5, "completion_tokens": 10**15, "cached_tokens": -(10**15)},
    "usage": {"prompt_tokens": 10**15, "completion_tokens": -7},
    "choices": [],
    "text": "",
}


class Log:
    """Lines of JSON: an event and its facts. A request's number is its program's."""

    def __init__(self, name):
        self.file = (Path(os.environ["SOAK_LOG"]) / f"{name}.jsonl").open("w", buffering=2**16)
        atexit.register(self.file.close)

    def __call__(self, *row):
        self.file.write(json.dumps(row, separators=(",", ":")) + "\n")


class _Logged:
    """A base class before a router's own, which logs calls of the router's methods."""

    def __init__(self, params, workers):
        super().__init__(params, workers)
        self._log, self._ended = Log(self.name), 0
        self._log("workers", workers)
        atexit.register(self._credits)  # before the file is closed

    def _credits(self):
        if (credit := getattr(self, "credit", None)) is not None:
            self._log("credits", {client: dict(one) for client, one in credit.items()})

    def route(self, request, now_s):
        worker = super().route(request, now_s)
        number, client = request.program_id, request.client
        self._log("route", request.request_id, number, client, worker, request.input_tokens)
        return worker

    def on_finish(self, request, worker, output, now_s):
        super().on_finish(request, worker, output, now_s)
        number, client = request.program_id, request.client
        self._log("finish", request.request_id, number, client, worker, output.length)
        self._ended += 1
        if self._ended % CREDITS_EVERY == 0:
            self._credits()

    def on_worker_join(self, worker, now_s):
        super().on_worker_join(worker, now_s)
        self._log("join", worker)

    def on_worker_leave(self, worker, now_s):
        super().on_worker_leave(worker, now_s)
        self._log("leave", worker)


class LoggedD2LPM(_Logged, D2LPM):
    name = "logged-d2lpm"
    Params = D2LPM.Params

    def on_failure(self, request, worker, now_s):
        super().on_failure(request, worker, now_s)
        self._log("fail", request.request_id, request.program_id, request.client, worker)


class LoggedFairFinish(_Logged, FairFinish):
    name = "logged-fair-finish"
    Params = FairFinish.Params

    def __init__(self, params, workers):
        super().__init__(params, workers)
        atexit.register(self._left)

    def _left(self):
        left = {worker: sorted(one.backlogged_clients()) for worker, one in self._backlogs.items()}
        self._log("backlogs", left)

    def on_failure(self, request, worker, now_s):
        super().on_failure(request, worker, now_s)
        self._log("fail", request.request_id, request.program_id, request.client, worker)


class LoggedLeastLoaded(_Logged, LeastLoaded):
    name = "logged-least-loaded"
    Params = LeastLoaded.Params

    def on_failure(self, request, worker, now_s):
        self._fleet.end_request(request, worker)
        self._log("fail", request.request_id, request.program_id, request.client, worker)


@dataclass
class Fault:
    """The worker's present fault. ``counts`` says how often each kind occurred."""

    kind: str = ""

    def __post_init__(self):
        self.counts = Counter()


def faulty(make):
    """Return ``emulator_app`` with ``/soak``, and each request's number and client in answers."""

    def app_of(emulator):
        app, fault, draw = make(emulator), Fault(), random.Random(emulator.config.port)

        @web.middleware
        async def fail(request, handler):
            kind = fault.kind
            if not kind or request.path == "/soak":
                return await handler(request)
            if request.path.startswith("/health"):
                down = kind == "flapping" and int(time.monotonic()) % 2
                return web.Response(status=503) if down else await handler(request)
            if request.method == "POST":
                fault.counts[kind] += 1
                if kind == "black hole":
                    return web.json_response({"error": {"message": "broken"}}, status=500)
                if kind == "slow":
                    await asyncio.sleep(draw.uniform(0.2, 1.5))
                if kind == "garbage":
                    return await garbage(request, draw)
            return await handler(request)

        async def change(request):
            fault.kind = (await request.json())["kind"]
            return web.json_response(fault.counts)

        async def sign(request, response):
            mine = request.headers.get(headers.PROGRAM), request.headers.get(headers.ROUTING_KEY)
            prefix = response.headers.get("x-request-id", "")
            response.headers["x-request-id"] = f"{prefix}{mine[0]}:{mine[1]}"

        app.middlewares.append(fail)
        app.router.add_post("/soak", change)
        app.on_response_prepare.append(sign)
        return app

    return app_of


async def garbage(request, draw):
    """Send no answer, or a false one."""
    body = await request.json()
    junk, kind = draw.randbytes(JUNK_BYTES), draw.randrange(4)
    if kind == 0:  # not even HTTP
        request.transport.write(junk)
        request.transport.close()
        return web.Response()
    if kind == 1 or (kind == 3 and not body.get("stream")):
        told = junk if draw.random() < 0.5 else json.dumps(FALSE_ANSWER).encode()
        mark = {} if told is junk else {"x-request-id": LIE}
        return web.Response(body=told, content_type="application/json", headers=mark)
    if kind == 2:
        return web.Response(body=b"<html>" + junk, content_type="text/html")
    return web.Response(
        body=b"data: {" + junk.replace(b"\n", b"") + b"\n\n", content_type="text/event-stream"
    )


emulated.emulator_app = faulty(emulated.emulator_app)
