"""What a request carries past somebody else's router, of which few pass on headers of ours.

Routers do pass on ``x-request-id``, so that it can be found in everybody's log (sglang-router
0.3.2 little else, vllm-router 0.1.17 all). So the facts that an emulated worker needs stand in it
once more, and its own number in the id of its answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from fairbench.live.headers import CLIENT, DEPTH, OUTPUT_TOKENS, PROGRAM

REQUEST_ID = "x-request-id"
_TAG = "fairbench?"
_FACTS = frozenset({CLIENT, PROGRAM, DEPTH, OUTPUT_TOKENS})
_ANSWER = re.compile(r"worker-(\d{1,9})-")


def tag(number: int, headers: Mapping[str, str]) -> str:
    """The request id of the ``number``-th request, with those of our headers that matter."""
    facts = {name: value for name, value in headers.items() if name in _FACTS}
    return _TAG + urlencode({"n": str(number), **facts})


def with_tag(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, their names in lower case, and those that only stand in the request id now."""
    text = headers.get(REQUEST_ID, "")
    if not text.startswith(_TAG):
        return headers
    facts = dict(parse_qsl(text.removeprefix(_TAG)))
    told = {name: facts[name] for name in _FACTS & facts.keys()}
    return told | {name.lower(): value for name, value in headers.items()}


def answer_id(worker: int, rid: str) -> str:
    """The id of an answer of that worker."""
    return f"worker-{worker}-{rid}"


def worker_in(answer: str) -> int:
    """The worker that made an answer, by its id; -1 if that does not say."""
    found = _ANSWER.match(answer)
    return int(found[1]) if found else -1
