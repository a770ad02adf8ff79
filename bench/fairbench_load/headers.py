"""Names of fairbench's HTTP headers, and encodings of their values.

Operators find a request in all logs by the header ``x-request-id``. All known routers forward
``x-request-id``, but may drop custom headers, as sglang-router 0.3.2 does. The request id contains
copies of the header values that an emulated worker needs. The emulator puts its worker number into
the id of each answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from fairbench.core import Request
from fairbench.targets import NOT_DUE, Due

CLIENT = "x-fairbench-client"
CLIENT_ALIASES = (CLIENT, "x-llm-d-inference-fairness-id", "x-smg-routing-key")
DEFAULT_CLIENT = "default"
# ``BODY_CLIENT`` is the body field of OpenAI's APIs that names the client.
BODY_CLIENT = "user"
BODY_CLIENTS = (BODY_CLIENT, "safety_identifier", "prompt_cache_key")
# Metrics have a limited number of client labels; all further clients share the label ``OTHERS``. A
# server's own health checks count as requests of the client ``HEALTH``.
OTHERS, HEALTH = "(others)", "(health)"
# In Anthropic's API, the header ``API_KEY`` replaces the header ``Authorization``.
API_KEY = "x-api-key"
# SGLang stores ``ROUTING_KEY`` in ``Req.routing_key``, where the plugin reads the client.
ROUTING_KEY = "x-smg-routing-key"
# vLLM stores the header ``SESSION`` in ``Request.session_id``, where the plugin reads the client.
SESSION = "x-session-id"

# ``DEADLINE`` holds the milliseconds within which a request should be finished. The headers
# ``OBJECTIVE_ALIASES`` name a request's objective (a set of latency targets) in llm-d and in
# earlier releases of the Gateway API inference extension.
DEADLINE = "x-request-deadline-ms"
OBJECTIVE_ALIASES = ("x-llm-d-inference-objective", "x-gateway-inference-objective")

PROGRAM = "x-fairbench-program"
# If a request lacks the header ``PROGRAM``, other headers or a body field may name its session.
SESSION_ALIASES = ("x-fairbench-session", SESSION)
BODY_SESSION = "prompt_cache_key"
DEPTH = "x-fairbench-depth"
# In an answer of the router, ``WORKER`` is the number of the worker that served the request.
WORKER = "x-fairbench-worker"
# In a request, the header ``ROUTERS`` holds the ids of all routers that have forwarded the request.
# In the answer to a health check, ``ROUTERS`` holds the id of the answering router.
ROUTERS = "x-fairbench-routers"
# In an answer of the router, ``DEMOTED`` is 1 if admission control lowered the request's priority.
DEMOTED = "x-fairbench-demoted"
# In a request to an emulator, ``OUTPUT_TOKENS`` is the number of output tokens to produce.
OUTPUT_TOKENS = "x-fairbench-output-tokens"


REQUEST_ID = "x-request-id"
_TAG = "fairbench?"
_FACTS = frozenset({CLIENT, PROGRAM, DEPTH, OUTPUT_TOKENS})
_ANSWER = re.compile(r"worker-(\d{1,9})-")


def tag(number: int, headers: Mapping[str, str]) -> str:
    """Return an id for request ``number`` that contains the values of fairbench's headers."""
    facts = {name: value for name, value in headers.items() if name in _FACTS}
    return _TAG + urlencode({"n": str(number), **facts})


def with_tag(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers in lower case, with missing headers restored from the request id.

    A received header takes precedence over its copy in the request id.
    """
    text = headers.get(REQUEST_ID, "")
    if not text.startswith(_TAG):
        return headers
    facts = dict(parse_qsl(text.removeprefix(_TAG)))
    told = {name: facts[name] for name in _FACTS & facts.keys()}
    return told | {name.lower(): value for name, value in headers.items()}


def answer_id(worker: int, rid: str) -> str:
    """Return the id of worker ``worker``'s answer to the request ``rid``."""
    return f"worker-{worker}-{rid}"


def worker_in(answer: str) -> int:
    """Return the worker number in the id of an answer, or -1 if the id contains no number."""
    found = _ANSWER.match(answer)
    return int(found[1]) if found else -1


# The tag after a client's name has latency targets in milliseconds, of at most 12 digits each (31
# years).
_MOST_MS = 10**12 - 1
_TAGGED = re.compile(r"(.*);due=(-?\d{1,12})?,(-?\d{1,12})?,(\d{1,12})?", re.DOTALL)


def tagged(client: str, due: Due, now_s: float) -> str:
    """Return a client's name, followed by a tag with the request's latency targets (``due``).

    The tag states the milliseconds from ``now_s`` to each deadline, and the allowed milliseconds
    per output token. If the request has no latency targets, no tag is added.
    """
    ends = [None if at_s is None else at_s - now_s for at_s in (due.first_token_s, due.end_s)]
    left = [
        "" if span_s is None else f"{round(max(-_MOST_MS, min(span_s * 1000, _MOST_MS)))}"
        for span_s in (*ends, due.token_every_s)
    ]
    # A name that already ends like a tag gets an empty tag, so that ``untagged`` keeps the name.
    return f"{client};due={','.join(left)}" if any(left) or _TAGGED.fullmatch(client) else client


def tagged_client(request: Request, now_s: float) -> str:
    """Return the name of a request's client with the request's deadlines as a tag (``tagged``)."""
    due = Due(request.first_token_by_s, request.deadline_s, request.token_every_s)
    return tagged(request.client, due, now_s)


def untagged(name: str, now_s: float, scale: float = 1.0) -> tuple[str, Due]:
    """Return the client's name without its tag, and the latency targets in the tag.

    The returned deadlines are in seconds on a clock that now reads ``now_s``. The clock of the
    deadlines runs ``scale`` times as fast as the clock of the process that wrote the tag.
    """
    found = _TAGGED.fullmatch(name)
    if found is None:
        return name, NOT_DUE
    first_s, end_s, pace_s = (
        None if ms is None else scale * int(ms) / 1000 for ms in found.groups()[1:]
    )
    return found[1], Due(
        None if first_s is None else now_s + first_s,
        None if end_s is None else now_s + end_s,
        pace_s,
    )
