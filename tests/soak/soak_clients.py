"""The clients of a soak, which judge the answer to each request."""

import asyncio
import json
from dataclasses import dataclass

from aiohttp import ClientError

from tests.soak.soak_plugin import LIE
from tests.soak.soak_requests import REFUSED, hostile, valid

LOST_S = 300.0  # a request without an end counts as lost after this many seconds
HOSTILE_SHARE = 0.05


@dataclass
class Ended:
    """The end of a request: ok, refused, failed (with an error), left, lie (of its worker), wrong.

    ``wrong`` must never occur; ``why`` gives the reason. Tokens are those of the answer.
    """

    router: int
    client: str
    how: str
    why: str = ""
    prompt: int = 0
    output: int = 0


class Wrong(Exception):
    """An answer that must not occur."""


async def ask(session, url, number, client, key, sent, router):
    """Send a request, and judge the answer."""
    shown = {"Authorization": f"Bearer {key}", "x-fairbench-program": str(number)}
    shown["Content-Type"] = "application/json"
    try:
        async with asyncio.timeout(sent.leave_s or LOST_S):
            async with session.request(
                sent.method, url + sent.path, data=sent.body, headers={**shown, **sent.headers}
            ) as answer:
                data = await answer.read()
    except TimeoutError:
        if sent.leave_s:
            return Ended(router, client, "left")
        return Ended(router, client, "wrong", f"no end within {LOST_S:g} s: {sent}")
    except (ClientError, OSError) as error:
        return Ended(
            router,
            client,
            "wrong",
            f"no answer: {error!r} to {sent.hostile} {sent.body[:80]!r} of {number} at {router}",
        )
    try:
        return judged(answer, data, number, client, sent, router)
    except (Wrong, ValueError, KeyError, TypeError, AttributeError) as error:
        told = f"{error!r}: {answer.status} {data[:300]!r} to {sent.hostile} {sent.body[:100]!r}"
        return Ended(router, client, "wrong", told)


def judged(answer, data, number, client, sent, router):
    """Return how the request ended. Raises Wrong, or an error of reading an odd answer."""
    if answer.status >= 400:
        check(set(json.loads(data)) == {"error"}, "an error in another shape")
        check((answer.status in REFUSED) == bool(sent.hostile), "the wrong kind of error")
        how = "refused" if sent.hostile else "failed"
        return Ended(router, client, how, str(answer.status))
    named = answer.headers.get("x-request-id", "")
    if named.startswith(LIE):
        return Ended(router, client, "lie")
    check(not sent.hostile, "a hostile request was served")
    check(named == f"{number}:{client}", f"an answer to {named}, not to {number}:{client}")
    if not sent.stream:
        prompt, output = usage_in(json.loads(data))
    else:
        events = [line[6:] for line in data.split(b"\n\n") if line.startswith(b"data: ")]
        if any(b'"error"' in event for event in events):
            return Ended(router, client, "failed", "in a stream")
        check(events[-1:] == [b"[DONE]"], "a stream that ends without a word")
        prompt, output = usage_in(json.loads(events[-2]))
    check(sent.prompt in (None, prompt), f"{prompt} tokens of a prompt of {sent.prompt}")
    check(output == sent.output, f"{output} tokens, not {sent.output}")
    return Ended(router, client, "ok", prompt=prompt, output=output)


def usage_in(body):
    """Return the tokens of prompt and output in an answer of any of the APIs."""
    told = body.get("meta_info") or body["usage"]
    return told["prompt_tokens"], told["completion_tokens"]


def check(holds, why):
    if not holds:
        raise Wrong(why)


class Crowd:
    """Clients by name, each with several loops that send one request after the other.

    The crowd awaits ``turn(number)`` before a request, and ``on_count(finished requests)`` after
    it.
    """

    def __init__(self, session, urls, keys, draw, total, turn, on_count):
        self._session, self._urls, self._keys = session, urls, keys
        self._draw, self._total, self._turn, self._on_count = draw, total, turn, on_count
        self.begun = 0
        self.ended = {}  # number -> Ended

    async def run(self, loops):
        """Run until ``total`` requests have ended."""
        async with asyncio.TaskGroup() as group:
            for client, key in self._keys.items():
                for _ in range(loops):
                    group.create_task(self._loop(client, key))

    async def _loop(self, client, key):
        draw = self._draw
        while self.begun < self._total:
            number, self.begun = self.begun, self.begun + 1
            await self._turn(number)
            router = draw.randrange(len(self._urls))
            sent = hostile(draw) if draw.random() < HOSTILE_SHARE else valid(draw)
            ended = await ask(self._session, self._urls[router], number, client, key, sent, router)
            self.ended[number] = ended
            await self._on_count(len(self.ended))
