"""A foreign router: a round-robin proxy that knows nothing of fairbench.

    python live_foreign_router.py PORT [--drop-headers] [--drop-all] [--die-after N] URL,URL...

``--drop-headers`` forwards only the header ``x-request-id``, and no header of an answer.
``--drop-all`` also drops that header, and gives every answer a name of its own. With
``--die-after``, the router exits with code 7 at the N-th request. It has a child process that must
not outlive it.
"""

import argparse
import os
import re
import subprocess
import sys
from itertools import count, cycle

import aiohttp
from aiohttp import web

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("workers")
parser.add_argument("--drop-headers", action="store_true")
parser.add_argument("--drop-all", action="store_true")
parser.add_argument("--die-after", type=int)
options = parser.parse_args()
workers, asked = cycle(options.workers.split(",")), count(1)


def passed_on(headers):
    if options.drop_all:
        return {}
    if options.drop_headers:
        return {"X-Request-Id": headers["X-Request-Id"]}
    return {name: value for name, value in headers.items() if name.lower().startswith("x-")}


async def proxy(request):
    if next(asked) == options.die_after:
        print("out of luck", flush=True)
        os._exit(7)
    url = next(workers) + request.path
    headers = passed_on(request.headers)
    async with request.app["session"].post(url, data=await request.read(), headers=headers) as got:
        bare = options.drop_headers or options.drop_all
        answer = web.StreamResponse(
            status=got.status, headers={} if bare else passed_on(got.headers)
        )
        await answer.prepare(request)
        async for line in got.content:
            if options.drop_all:
                line = re.sub(rb'"id":"[^"]*"', b'"id":"mine"', line)
            await answer.write(line)
    return answer


async def session_of(app):
    async with aiohttp.ClientSession() as app["session"]:
        yield


app = web.Application(client_max_size=2**26)
app.cleanup_ctx.append(session_of)
app.add_routes([web.get("/health", lambda _: web.Response()), web.post("/v1/completions", proxy)])
if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)
