"""Give mutated HTTP requests to a router and to the emulated workers behind it.

``python -m tests.fuzz.fuzz_http 5000 [SEED]`` prints the statuses of the answers, and each request
that got no answer or left an error in a log.
"""

import asyncio
import json
import logging
import random
import sys
from collections import Counter
from contextlib import AsyncExitStack

from aiohttp import ClientError, ClientTimeout

from fairbench_load.http_server import is_our_fault
from fairbench_load.processes.addresses import WorkerAddress
from tests.emulator.live_emulator import running
from tests.fuzz.fuzz_files import mutated
from tests.serve.live_router import router_before, until

LEAVES = ClientTimeout(total=2)  # some requests ask for 2^31 tokens
MODEL = "llama-3.1-8b"
SAMPLING = {"max_new_tokens": 3, "temperature": 0.5, "stop": ["w1"], "stop_token_ids": [7], "n": 1}
BODIES = {
    "/generate": {"input_ids": [5, 6, 7], "sampling_params": SAMPLING, "stream": True, "rid": "a"},
    "/v1/completions": {"model": MODEL, "prompt": [5, 6], "max_tokens": 3, "logprobs": 1, "n": 1},
    "/v1/chat/completions": {
        **{"model": MODEL, "max_tokens": 3, "user": "ann", "stream": True, "logit_bias": {"5": 1}},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    },
}
HEADERS = {
    "x-fairbench-client": ["ann", "", "é", "a" * 900, "(others)", "a;due=1,2,3", "\x7f"],
    "x-fairbench-output-tokens": ["3", "-1", "1e9", "9" * 900, "٣"],
    "x-fairbench-program": ["1", "-1", "x", "9" * 900, "1_0"],
    "x-fairbench-depth": ["1", "", "nan"],
    "x-request-deadline-ms": ["100", "0", "-1", "1e3", "9" * 30, "soon"],
    "traceparent": ["00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x" * 600],
    "Authorization": ["Bearer a", "Basic", "\xff", "Bearer " + "a" * 900],
    "Content-Encoding": ["gzip", "deflate", "nonsense"],
    "Content-Type": ["application/json", "text/plain", "application/json; charset=utf-7", ""],
    "Expect": ["100-continue"],
}
METHODS = ["POST"] * 20 + ["GET", "PUT", "HEAD", "OPTIONS"]


class Trouble(logging.Handler):
    """A log handler that collects the errors of servers."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []
        self.addFilter(is_our_fault)  # as in a separate server process

    def emit(self, record):
        if record.exc_info or record.levelno >= logging.ERROR:
            self.found.append(self.format(record))


def request_of(rng):
    """Return a valid request with a few changes: method, path, body, headers."""
    path = rng.choice(list(BODIES))
    body = mutated(json.dumps(BODIES[path]).encode(), rng) if rng.random() < 0.9 else b""
    names = rng.sample(list(HEADERS), rng.choice((0, 0, 1, 2)))
    headers = {name: rng.choice(HEADERS[name]) for name in names}
    if rng.random() < 0.05:
        path = rng.choice(["/", "/v1/models/" + "a" * 900, "/%00", "/metrics", "/server_info"])
    method = rng.choice(METHODS)
    if method == "HEAD":
        headers.pop("Content-Encoding", None)  # the client's library takes the error for an answer
    return method, path, body, headers


async def sent(session, url, rng):
    """Send a request. Return how it was answered, and the request if it got no answer."""
    asked = method, path, body, headers = request_of(rng)
    try:
        async with session.request(
            method, url + path, data=body, headers=headers, timeout=LEAVES
        ) as answer:
            data = await answer.read()
    except ValueError as error:  # the client's own library refuses to send it
        return "not sent", repr(error)
    except TimeoutError:
        return "left", None
    except (ClientError, OSError) as error:
        return f"no answer: {error!r}", asked
    if answer.status >= 500:
        return f"{answer.status}", (*asked, data)
    plain = method == "HEAD" or "Content-Encoding" in headers  # the HTTP library itself answers
    if answer.status >= 400 and not plain and b'"error"' not in data:
        return f"{answer.status} in another shape", (*asked, data)
    return str(answer.status), None


async def attempts(count, seed):
    """Send half of the requests to a router, half to a worker. Return statuses and failures."""
    rng, ends, wrong, trouble = random.Random(seed), Counter(), [], Trouble()
    logging.getLogger().addHandler(trouble)
    try:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            workers = [await enter(running(asyncio.get_running_loop())) for _ in range(2)]
            urls = [str(session._base_url).rstrip("/") for _, session in workers]
            router = await enter(router_before([WorkerAddress(url) for url in urls]))
            targets = {"router": router.url, "worker": urls[0]}
            for number in range(count):
                name = ("router", "worker")[number % 2]
                end, asked = await sent(router.session, targets[name], rng)
                ends[f"{name} {end}" if end.isdigit() else end] += 1
                well = end in ("not sent", "left") or (end.isdigit() and int(end) < 500)
                if trouble.found or not well:
                    wrong.append((name, end, asked, trouble.found[:]))
                    trouble.found.clear()
            engines = [emulator.engine for emulator, _ in workers]
            # no request is left
            await until(lambda: all(engine.flush_cache() for engine in engines))
            assert router.proxy.dispatcher.under_way == 0
            assert router.up == {0, 1}
    finally:
        logging.getLogger().removeHandler(trouble)
    return ends, wrong


def main(count, seed):
    ends, wrong = asyncio.run(attempts(count, seed))
    for name, end, asked, said in wrong:
        print(f"{name}: {end}: {asked!r}\n{' '.join(said)}\n"[:4000], flush=True)
    print(f"seed {seed}, {count} requests:", dict(sorted(ends.items())), f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
