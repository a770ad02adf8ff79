"""Requests of a soak's clients: valid requests, and bodies that must be refused."""

import gzip
import json
from dataclasses import dataclass, field

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
VOCABULARY = 32_000
MODEL = "llama-3.1-8b"
REFUSED = (400, 401, 404, 405, 413, 415)


@dataclass
class Sent:
    """A request. ``hostile`` names its defect, and ``leave_s`` is when its client hangs up."""

    path: str
    body: bytes
    stream: bool = False
    output: int = 0
    prompt: int | None = None  # number of tokens, if the answer must have exactly this many
    hostile: str = ""
    leave_s: float | None = None
    method: str = "POST"
    headers: dict = field(default_factory=dict)


def valid(draw):
    """Return a request that must be served."""
    path, stream = draw.choice((GENERATE, GENERATE, COMPLETIONS, CHAT)), draw.random() < 0.5
    output, length = draw.randint(1, 12), draw.randint(1, 120)
    shared = draw.randrange(8)  # one of the prefixes that requests share
    ids = [shared + 16] * 64 + [draw.randrange(16, VOCABULARY) for _ in range(length)]
    words = " ".join(map(str, ids[:40]))
    prompt = len(ids)
    if path == GENERATE:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": output}}
        if draw.random() < 0.1:  # a client that tries to abort others' requests, without effect
            body["rid"] = draw.choice("0123456789abcdef")
        if draw.random() < 0.2:
            del body["input_ids"]
            body["text"], prompt = words, None
    elif path == COMPLETIONS:
        body = {"model": MODEL, "prompt": ids, "max_tokens": output}
    else:
        messages, prompt = [{"role": "user", "content": words}], None
        body = {"model": MODEL, "messages": messages, "max_tokens": output}
    if path != GENERATE and stream:
        body["stream_options"] = {"include_usage": True}
    if stream:
        body["stream"] = True
    leave_s = draw.uniform(0, 0.1) if draw.random() < 0.03 else None
    return Sent(path, json.dumps(body).encode(), stream, output, prompt, leave_s=leave_s)


def _generate(**changes):
    return json.dumps({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 2}, **changes})


def _chat(**changes):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    return json.dumps({**body, **changes})


HOSTILE = {  # defect -> (path, body)
    "no JSON": (GENERATE, b"{"),
    "nothing": (CHAT, b""),
    "random bytes": (GENERATE, bytes(range(256)) * 4),
    "a list": (COMPLETIONS, b"[]"),
    "deep": (CHAT, b'{"messages":' + b"[" * 20_000),
    "unknown token": (GENERATE, _generate(input_ids=[5, 2**31])),
    "negative token": (GENERATE, _generate(input_ids=[-1])),
    "no tokens": (GENERATE, _generate(input_ids=[])),
    "a batch": (GENERATE, _generate(input_ids=[[1], [2]])),
    "a huge number": (GENERATE, b'{"input_ids":[1],"sampling_params":{"max_new_tokens":1e400}}'),
    "many digits": (CHAT, _chat(max_tokens=10**400)),
    "negative length": (CHAT, _chat(max_tokens=-1)),
    "beams": (GENERATE, _generate(sampling_params={"max_new_tokens": 2, "beam_width": 9})),
    "priority": (CHAT, _chat(priority=-5)),
    "bootstrap": (GENERATE, _generate(bootstrap_host="127.0.0.1")),
    "session": (GENERATE, _generate(session_params={"id": "0"})),
    "too many answers": (CHAT, _chat(n=17)),
    "best of": (COMPLETIONS, json.dumps({"model": MODEL, "prompt": "a", "best_of": 4})),
    "text as a number": (COMPLETIONS, json.dumps({"model": MODEL, "prompt": 7})),
    "messages as a text": (CHAT, json.dumps({"model": MODEL, "messages": "hello"})),
    "half a surrogate": (GENERATE, b'{"text": "\\ud800", "stream": 7}'),
    "tokens as text": (GENERATE, _generate(input_ids=["a"])),
    "too many values": (GENERATE, b'{"input_ids":[' + b"1," * 300_000 + b"1]}"),
    "junk gzip": (GENERATE, b"\x1f\x8b" + bytes(90)),
    "a bomb": (GENERATE, gzip.compress(b" " * 80_000_000, 1)),
    "another path": ("/v1/embeddings", b"{}"),
    "a wrong method": (CHAT, b""),
    "an unknown key": (CHAT, _chat()),
    "no key": (GENERATE, _generate()),
    "a program that is no number": (GENERATE, _generate()),
}


def hostile(draw):
    """Return a request that must be refused."""
    name = draw.choice([*HOSTILE][:-6] * 3 + [*HOSTILE])
    path, body = HOSTILE[name]
    sent = Sent(path, body if isinstance(body, bytes) else body.encode(), hostile=name)
    if name in ("junk gzip", "a bomb"):
        sent.headers["Content-Encoding"] = "gzip"
    if name == "a wrong method":
        sent.method = "PUT"
    if name == "an unknown key":
        sent.headers["Authorization"] = "Bearer guess"
    if name == "no key":
        sent.headers["Authorization"] = ""
    if name == "a program that is no number":
        sent.headers["x-fairbench-program"] = "seven"
    return sent
