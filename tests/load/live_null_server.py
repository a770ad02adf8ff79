"""A fast HTTP server without a model that answers like SGLang, for tests and benchmarks.

It answers ``/generate``, ``/v1/completions`` and ``/v1/chat/completions`` as streams, and writes
each chunk separately, ``gap_s`` after the previous one. Started as a program, it prints its URL:
python tests/load/live_null_server.py --chunks 16 --gap-ms 5
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"x-fairbench-worker: %d\r\n\r\n"
)
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
FIRST_OUTPUT_ID = 40_000


@dataclass
class Fault:
    """A fault that occurs after a number of chunks.

    ``kind`` is status (answers ``status`` immediately), disconnect, hang, error (an event with an
    error), abort (SGLang's finish reason of that name), cut (the stream ends too early) or junk
    (not JSON).
    """

    kind: str
    after: int = 0
    status: int = 500


@dataclass
class Request:
    """A request as the server received it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at_s: float
    gone: bool = False  # the client hung up before its answer was complete


@dataclass
class NullServer:
    """The server's settings and records. ``worker`` is its number in the header of the answers.

    ``faults(number, request)`` may return a fault for a request. With ``keep``, the server stores
    requests, and the longest prefix shared with an earlier sequence counts as cached. ``one_shot``
    drops a connection at its second request. ``most`` is the highest number of requests in flight.
    """

    chunks: int = 4
    gap_s: float = 0.0
    first_gap_s: float = 0.0
    incremental: bool = False
    queue_time_s: float | None = None
    usage: bool = True
    worker: int = 0
    keep: bool = True
    one_shot: bool = False
    faults: Callable[[int, Request], Fault | None] = lambda number, request: None
    url: str = ""
    seen: int = 0
    requests: list[Request] = field(default_factory=list)
    sequences: list[list] = field(default_factory=list)
    connections: int = 0
    under_way: int = 0
    most: int = 0

    def cached(self, prompt: list) -> int:
        longest = 0
        for other in self.sequences if self.keep else ():
            common = next(
                (n for n, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b),
                min(len(prompt), len(other)),
            )
            longest = max(longest, common)
        return min(longest, len(prompt) - 1)


class Connection(asyncio.Protocol):
    """A connection that answers each request before it reads the next."""

    def __init__(self, server: NullServer) -> None:
        self.server = server
        self.buffer = b""
        self.current: Request | None = None
        self.timer: asyncio.Handle | None = None
        self.used = False

    def connection_made(self, transport):
        self.transport = transport
        self.server.connections += 1

    def connection_lost(self, _):
        if self.timer:
            self.timer.cancel()
        if self.current:
            self.current.gone = True
            self.server.under_way -= 1

    def data_received(self, data):
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        line, *rows = self.buffer[:end].decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (row.partition(":") for row in rows)}
        stop = end + 4 + int(headers.get("content-length", 0))
        if len(self.buffer) < stop:
            return
        body, self.buffer = self.buffer[end + 4 : stop], self.buffer[stop:]
        self.answer(line.split()[1], headers, json.loads(body or b"{}"))

    def answer(self, path, headers, body):
        server = self.server
        if path not in (GENERATE, COMPLETIONS, CHAT):
            self.plain(200, {"data": [{"id": "null"}]})
            return
        if self.used and server.one_shot:
            self.transport.abort()
            return
        self.used = True
        number, server.seen = server.seen, server.seen + 1
        request = Request(path, headers, body, asyncio.get_running_loop().time())
        fault = server.faults(number, request)
        if server.keep:
            server.requests.append(request)
        if fault and fault.kind == "status":
            self.plain(fault.status, {"error": {"message": f"status {fault.status}"}})
            return
        self.current = request
        server.under_way += 1
        server.most = max(server.most, server.under_way)
        self.transport.write(HEAD % server.worker)
        events = events_of(server, request, number, fault)
        self.later(server.first_gap_s, events, 0, fault)

    def later(self, gap_s, events, sent, fault):
        loop = asyncio.get_running_loop()
        self.timer = (
            loop.call_later(gap_s, self.send, events, sent, fault)
            if gap_s
            else loop.call_soon(self.send, events, sent, fault)
        )

    def send(self, events, sent, fault):
        if fault and sent == fault.after and fault.kind == "hang":
            return
        if fault and sent == fault.after and fault.kind == "disconnect":
            self.transport.abort()
            return
        if sent == len(events):
            self.current = None
            self.server.under_way -= 1
            self.transport.write(b"0\r\n\r\n")
            return
        data = b"data: " + events[sent] + b"\n\n"
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        last = sent + 2 >= len(events)  # usage and [DONE] come with the last token
        self.later(0.0 if last else self.server.gap_s, events, sent + 1, fault)

    def plain(self, status, content):
        data = json.dumps(content).encode()
        self.transport.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(data), data)
        )


def events_of(server, request, number, fault):
    """Return the payloads of an answer's events, including those of a fault."""
    if request.path == GENERATE:
        events = generate_events(server, request.body, number)
    else:
        events = openai_events(server, request, number)
    if fault and fault.kind == "error":
        message = {"error": {"message": "it broke", "code": fault.status}}
        events = [*events[: fault.after], json.dumps(message).encode()]
    if fault and fault.kind == "abort":
        reason = {"type": "abort", "message": "too long", "status_code": fault.status}
        events = [*events[: fault.after], generate_event(number, [], 1, 0, reason)]
    if fault and fault.kind == "cut":
        return events[: fault.after]
    if fault and fault.kind == "junk":
        return [*events[: fault.after], b"{junk"]
    return [*events, b"[DONE]"]


def generate_events(server, body, number):
    params, prompt = body["sampling_params"], body["input_ids"]
    output = params.get("min_new_tokens") or params["max_new_tokens"]
    ids = [FIRST_OUTPUT_ID + (number * 7919 + n * 31) % 20_000 for n in range(output)]
    cached = server.cached(prompt)
    if server.keep:
        server.sequences.append(prompt + ids)
    events, chunks = [], min(server.chunks, output)
    for chunk in range(chunks):
        start = output * chunk // chunks if server.incremental else 0
        end = output * (chunk + 1) // chunks
        reason = {"type": "length", "length": output} if end == output else None
        event = generate_event(
            number, ids[start:end], len(prompt), cached, reason, end, server.queue_time_s
        )
        events.append(event)
    return events


def generate_event(number, ids, prompt, cached, reason, done=0, queue_time_s=None):
    meta = {
        "id": str(number),
        "prompt_tokens": prompt,
        "completion_tokens": done,
        "cached_tokens": cached,
        "finish_reason": reason,
    }
    if queue_time_s is not None:
        meta["queue_time"] = queue_time_s
    text = "".join(f" w{token}" for token in ids)
    return json.dumps({"text": text, "output_ids": ids, "meta_info": meta}).encode()


def openai_events(server, request, number):
    """Return the events of OpenAI's API, in which words are tokens."""
    body, chat = request.body, request.path == CHAT
    output = body.get("min_tokens") or body.get("max_completion_tokens") or body["max_tokens"]
    if chat:
        prompt = " ".join(f"<{m['role']}> {m['content']}" for m in body["messages"]).split()
    else:
        prompt = body["prompt"].split()
    words = [f" w{(number * 7919 + n * 31) % 20_000}" for n in range(output)]
    cached = server.cached(prompt)
    if server.keep:
        server.sequences.append(prompt + (["<assistant>"] if chat else []) + "".join(words).split())
    chunks = min(server.chunks, output)
    events = []
    for chunk in range(chunks):
        start, end = output * chunk // chunks, output * (chunk + 1) // chunks
        text = "".join(words[start:end])
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        choice["finish_reason"] = "length" if end == output else None
        events.append({"id": str(number), "choices": [choice]})
    if server.usage:
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": output, **details}
        events.append({"id": str(number), "choices": [], "usage": usage})
    return [json.dumps(event).encode() for event in events]


@asynccontextmanager
async def null_server(**settings):
    """Run a server in this process, on a free port of 127.0.0.1."""
    server = NullServer(**settings)
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(server), "127.0.0.1", 0
    )
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await asyncio.sleep(0)  # lets closed connections report their end


async def serve(settings):
    async with null_server(**settings) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--gap-ms", type=float, default=0.0)
    parser.add_argument("--first-gap-ms", type=float, default=0.0)
    given = parser.parse_args()
    settings = {
        "chunks": given.chunks,
        "gap_s": given.gap_ms / 1000,
        "first_gap_s": given.first_gap_ms / 1000,
        "keep": False,
    }
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
