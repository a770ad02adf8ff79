"""Requests to every generating endpoint of a real engine, through a router."""

import asyncio

from fairbench_load import headers
from fairbench_load.processes.addresses import WorkerAddress
from tests.serve.live_router import CHAT, COMPLETIONS, MESSAGES, RESPONSES, router_before

OUTPUT = 4
TURNS = [{"role": "user", "content": "one two three four five six seven eight"}]
ASKED = {
    COMPLETIONS: {"prompt": "one two three", "max_tokens": OUTPUT},
    CHAT: {"messages": TURNS, "max_tokens": OUTPUT},
    RESPONSES: {"input": TURNS, "max_output_tokens": OUTPUT},
    MESSAGES: {"messages": TURNS, "max_tokens": OUTPUT},
}
TOTALS = ("input", "output")


def totals_of(url, path, stream, answers=1):
    """Return the status of a request, and the tokens that the router charged for it."""

    async def run():
        async with router_before([WorkerAddress(url)]) as under_test:
            body = {**ASKED[path], "model": "m", "stream": stream}
            body |= {"n": answers} if answers > 1 else {}  # not with greedy sampling
            async with under_test.post(path, body, **{headers.CLIENT: "ann"}) as answer:
                said = await answer.read()
            names = [f'fairbench_{name}_tokens_total{{client="ann"}}' for name in TOTALS]
            return answer.status, said, [await under_test.metric(name) for name in names]

    return asyncio.run(run())


def check_endpoints(url, answers=3, shorter=None):
    """Check that each endpoint charges what it produces, and equal prompts in each API.

    ``shorter`` maps an endpoint to the number of tokens by which the engine shortens its answers.
    """
    prompts = set()
    shorter = shorter or {}
    for path in ASKED:
        for stream in (False, True):
            status, said, (read, produced) = totals_of(url, path, stream)
            due = OUTPUT - shorter.get(path, 0)
            assert (status, produced) == (200, due), (path, stream, said[-500:])
            prompts |= {read} if path != COMPLETIONS else set()
    assert len(prompts) == 1
    status, said, (_, produced) = totals_of(url, CHAT, True, answers)
    assert (status, produced) == (200, answers * OUTPUT), said[-500:]
