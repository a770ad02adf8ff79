"""Request data in the request id, because few external routers forward custom headers.

Routers do forward ``x-request-id``, so that a request can be found in all logs (sglang-router
0.3.2 little else, vllm-router 0.1.17 all). The facts that an emulated worker needs are
therefore repeated there. The worker's number is encoded in the id of its answer.
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
    """Return the id of request ``number``, which includes fairbench's headers."""
    facts = {name: value for name, value in headers.items() if name in _FACTS}
    return _TAG + urlencode({"n": str(number), **facts})


def with_tag(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers in lower case, with further headers from the request id."""
    text = headers.get(REQUEST_ID, "")
    if not text.startswith(_TAG):
        return headers
    facts = dict(parse_qsl(text.removeprefix(_TAG)))
    told = {name: facts[name] for name in _FACTS & facts.keys()}
    return told | {name.lower(): value for name, value in headers.items()}


def answer_id(worker: int, rid: str) -> str:
    """Return the id of an answer by that worker."""
    return f"worker-{worker}-{rid}"


def worker_in(answer: str) -> int:
    """Return the worker encoded in an answer's id, or -1 if there is none."""
    found = _ANSWER.match(answer)
    return int(found[1]) if found else -1
