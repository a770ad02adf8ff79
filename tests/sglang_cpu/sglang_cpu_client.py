"""Clients of a SGLang server: bursts of streamed requests, and each client's service over time."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import aiohttp

from fairbench.core import ServiceWeights
from fairbench_load.headers import WORKER

WEIGHTS = ServiceWeights()
ANSWERED_S = 900  # long, because the machine may be busy
POLL_S = 0.002  # seconds between polls for each awaited request


@dataclass
class Sent:
    """A sent request and its result. Times are on the machine's clock, in seconds."""

    client: str
    prompt: list
    output: int
    tokens: list = field(default_factory=list)  # (time, output tokens so far)
    meta: dict = field(default_factory=dict)  # SGLang's meta_info in the last chunk
    worker: str | None = None  # the worker that fairbench's router chose

    @property
    def received_s(self):
        """Return when the server received the request, which may be well after it was sent."""
        return self.meta["request_received_ts"]

    @property
    def first_s(self):
        return self.tokens[0][0]

    @property
    def finish_s(self):
        return self.tokens[-1][0]

    @property
    def cached(self):
        return self.meta["cached_tokens"]

    @property
    def extend(self):
        return len(self.prompt) - self.cached

    def service_until(self, at_s):
        """Return computed service: computed prompt tokens at the first token, then the output."""
        output = max((count for when, count in self.tokens if when <= at_s), default=0)
        extend = self.extend if self.first_s <= at_s else 0
        return WEIGHTS.extend * extend + WEIGHTS.output * output


def burst(client, requests, prefix, suffix, output, seed=0):
    """Return requests of a client that share a prefix of its own."""
    draw = random.Random(f"{client} {seed}")
    shared = [draw.randrange(3, 2048) for _ in range(prefix)]
    return [
        Sent(client, shared + [draw.randrange(3, 2048) for _ in range(suffix)], output)
        for _ in range(requests)
    ]


def run_bursts(url, *bursts):
    """Send the requests of each ``(delay in seconds, requests)`` together. Wait for all to end."""

    async def run():
        async with _session() as session:
            await asyncio.gather(
                *(_send(session, url, sent, delay) for delay, many in bursts for sent in many)
            )

    asyncio.run(run())


def run_behind(blockers, url, bursts, least_output=0):
    """Queue bursts behind blockers, in order, and wait until all have ended.

    ``blockers`` maps a server's URL to a request that fills its pool. A burst is sent to ``url``
    once the servers report that all earlier ones wait. The blockers are aborted once all bursts
    wait and they have ``least_output`` tokens. Returns whether all did wait, and no blocker ended
    too early. A server's report of its queue may be some steps old:
    ``--load-snapshot-publish-interval=1``.
    """

    async def run():
        async with _session() as session:
            ahead = {
                server: asyncio.create_task(_send(session, server, blocker, rid="blocker"))
                for server, blocker in blockers.items()
            }
            for server, blocker in blockers.items():
                await _output(blocker, 1, ahead[server])
            blocked, behind = True, []
            for requests in bursts:
                behind += [asyncio.create_task(_send(session, url, sent)) for sent in requests]
                while await _waiting(session, blockers) < len(behind):
                    if any(task.done() for task in (*ahead.values(), *behind)):
                        blocked = False  # or a request failed, which is reported below
                        break
                    await asyncio.sleep(POLL_S * len(requests))
            for server, blocker in blockers.items():
                await _output(blocker, least_output, ahead[server])
                async with session.post(f"{server}/abort_request", json={"rid": "blocker"}) as done:
                    done.raise_for_status()
            await asyncio.gather(*ahead.values(), *behind)
            return blocked

    return asyncio.run(run())


def run_once_under_way(url, first, then):
    """Send some requests, and others once all of these produce tokens. Wait for all to end."""

    async def run():
        async with _session() as session:
            ahead = [asyncio.create_task(_send(session, url, sent)) for sent in first]
            for sent, task in zip(first, ahead, strict=True):
                await _output(sent, 1, task)
            await asyncio.gather(*ahead, *(_send(session, url, sent) for sent in then))

    asyncio.run(run())


def _session():
    timeout, connector = aiohttp.ClientTimeout(ANSWERED_S), aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(timeout=timeout, connector=connector)


async def _output(sent, tokens, task):
    """Wait until a running request has the given number of output tokens."""
    while not sent.tokens or sent.tokens[-1][1] < tokens:
        assert not task.done(), task.exception() or "it ended too early"
        await asyncio.sleep(0.01)


async def _waiting(session, servers):
    """Return the number of requests in the queues of the servers' schedulers."""
    waiting = 0
    for server in servers:
        async with session.get(f"{server}/v1/loads?include=core") as answer:
            answer.raise_for_status()
            waiting += sum(load["num_waiting_reqs"] for load in (await answer.json())["loads"])
    return waiting


async def _send(session, url, sent, delay=0.0, rid=None):
    await asyncio.sleep(delay)
    body = {
        "input_ids": sent.prompt,
        "routing_key": sent.client,
        "stream": True,
        "sampling_params": {
            "max_new_tokens": sent.output,
            "min_new_tokens": sent.output,
            "temperature": 0,
        },
    }
    if rid is not None:
        body["rid"] = rid
        # All of its output is reserved, and the server reports little.
        body["sampling_params"] |= {"ignore_eos": True, "stream_interval": 50}
    async with session.post(f"{url}/generate", json=body) as answer:
        answer.raise_for_status()
        sent.worker = answer.headers.get(WORKER)
        async for line in answer.content:
            if line.startswith(b"data: {"):
                sent.meta = json.loads(line[6:])["meta_info"]
                sent.tokens.append((time.time(), sent.meta["completion_tokens"]))


def services_while_all_wait(requests):
    """Return service per client and worker while all clients had waiting requests there.

    Workers are separate, because a faster one finishes a client's requests sooner.
    """
    clients = {sent.client for sent in requests}
    got = dict.fromkeys(clients, 0)
    for worker in {sent.worker for sent in requests}:
        here = [sent for sent in requests if sent.worker == worker]
        if {sent.client for sent in here} != clients:
            continue
        # From the arrival of the last request until a client has no request without a first token.
        start_s = max(sent.received_s for sent in here)
        end_s = min(max(sent.first_s for sent in here if sent.client == c) for c in clients)
        if start_s < end_s:
            for sent in here:
                got[sent.client] += sent.service_until(end_s) - sent.service_until(start_s)
    return got
