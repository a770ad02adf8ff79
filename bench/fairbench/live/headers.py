"""Names of fairbench's HTTP headers, and the encoding of the values that they carry.

Few third-party routers forward custom headers, but all known ones forward ``x-request-id``. With
the request id, operators can find a request in all logs. (sglang-router 0.3.2 forwards few other
headers; vllm-router 0.1.17 forwards all headers.) The driver also writes the values that an
emulated worker needs into the request id, because a router may drop custom headers. The emulator
puts its worker number into the id of each answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from fairbench.core import Request
from fairbench.targets import NOT_DUE, Due

CLIENT = "x-fairbench-client"
CLIENT_ALIASES = (CLIENT, "x-llm-d-inference-fairness-id", "x-smg-routing-key")
DEFAULT_CLIENT = "default"  # the client of a request that names no client
# ``BODY_CLIENT`` is the body field of OpenAI's APIs that may name the client. In the body of a
# ``/generate`` request, the client is named by the field "routing_key" instead of ``BODY_CLIENT``.
BODY_CLIENT = "user"
BODY_CLIENTS = (BODY_CLIENT, "safety_identifier", "prompt_cache_key")
# No client can have the names below: ``OTHERS`` is the label of all clients without a label of
# their own, and ``HEALTH`` is the client of a server's health checks.
OTHERS, HEALTH = "(others)", "(health)"
# Anthropic's API sends the client's API key in the header ``API_KEY`` instead of ``Authorization``.
API_KEY = "x-api-key"
# SGLang stores the header ``ROUTING_KEY`` in ``Req.routing_key``, from which fairbench's plugin
# reads the client.
ROUTING_KEY = "x-smg-routing-key"
# vLLM stores the header ``SESSION`` in ``Request.session_id``, from which fairbench's plugin reads
# the client.
SESSION = "x-session-id"

# The header ``DEADLINE`` holds the number of milliseconds within which a request should be
# finished. A header of ``OBJECTIVE_ALIASES`` names the objective of a request (a set of latency
# targets): first llm-d's name, then the older name of the Gateway API inference extension.
DEADLINE = "x-request-deadline-ms"
OBJECTIVE_ALIASES = ("x-llm-d-inference-objective", "x-gateway-inference-objective")

PROGRAM = "x-fairbench-program"  # The header holds the number of a program.
# If a request has no header ``PROGRAM``, the headers ``SESSION_ALIASES`` and the body field
# ``BODY_SESSION`` may name its session.
SESSION_ALIASES = ("x-fairbench-session", SESSION)
BODY_SESSION = "prompt_cache_key"
DEPTH = "x-fairbench-depth"
# A router's answer has the header ``WORKER`` with the number of the worker that served the request.
WORKER = "x-fairbench-worker"
# In a request, the header ``ROUTERS`` holds the ids of the routers that the request has passed; in
# the answer to a health check, the id of the answering router.
ROUTERS = "x-fairbench-routers"
# A router's answer has the header ``DEMOTED`` with value 1 if admission control gave the request a
# lower priority.
DEMOTED = "x-fairbench-demoted"
# A request's header ``OUTPUT_TOKENS`` is the number of output tokens that the emulator produces;
# real servers ignore the header.
OUTPUT_TOKENS = "x-fairbench-output-tokens"


REQUEST_ID = "x-request-id"
_TAG = "fairbench?"
_FACTS = frozenset({CLIENT, PROGRAM, DEPTH, OUTPUT_TOKENS})
_ANSWER = re.compile(r"worker-(\d{1,9})-")


def tag(number: int, headers: Mapping[str, str]) -> str:
    """Return an id for the request ``number`` that repeats fairbench's headers."""
    facts = {name: value for name, value in headers.items() if name in _FACTS}
    return _TAG + urlencode({"n": str(number), **facts})


def with_tag(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers in lower case, with those that the request id repeats added.

    A header that was received takes precedence over the copy in the request id.
    """
    text = headers.get(REQUEST_ID, "")
    if not text.startswith(_TAG):
        return headers
    facts = dict(parse_qsl(text.removeprefix(_TAG)))
    told = {name: facts[name] for name in _FACTS & facts.keys()}
    return told | {name.lower(): value for name, value in headers.items()}


def answer_id(worker: int, rid: str) -> str:
    """Return the id for an answer of worker number ``worker`` to the request ``rid``."""
    return f"worker-{worker}-{rid}"


def worker_in(answer: str) -> int:
    """Return the worker number in the id of an answer, or -1 if the id contains no number."""
    found = _ANSWER.match(answer)
    return int(found[1]) if found else -1


# ``_MOST_MS`` is the longest time in a tag of a client name, in milliseconds (12 digits, 31 years).
_MOST_MS = 10**12 - 1
_TAGGED = re.compile(r"(.*);due=(-?\d{1,12})?,(-?\d{1,12})?,(\d{1,12})?", re.DOTALL)


def tagged(client: str, due: Due, now_s: float) -> str:
    """Return the client's name with a tag.

    The tag states the milliseconds to each deadline, and the promised pace. The promised pace is in
    milliseconds per output token. For a request without deadlines and pace, the name stays
    unchanged.
    """
    ends = [None if at_s is None else at_s - now_s for at_s in (due.first_token_s, due.end_s)]
    left = [
        "" if span_s is None else f"{round(max(-_MOST_MS, min(span_s * 1000, _MOST_MS)))}"
        for span_s in (*ends, due.token_every_s)
    ]
    # A client name that ends like a tag always gets a tag, so that ``untagged`` returns the full
    # name.
    return f"{client};due={','.join(left)}" if any(left) or _TAGGED.fullmatch(client) else client


def tagged_client(request: Request, now_s: float) -> str:
    """Return a request's client with the request's deadlines as a tag (see ``tagged``)."""
    due = Due(request.first_token_by_s, request.deadline_s, request.token_every_s)
    return tagged(request.client, due, now_s)


def untagged(name: str, now_s: float, scale: float = 1.0) -> tuple[str, Due]:
    """Return the client's name without the tag, and the deadlines and pace in the tag.

    The deadlines are seconds on a clock that now reads ``now_s``, and that runs ``scale`` times as
    fast as the clock of the process that wrote the tag.
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
