"""Request data in the request id, because few external routers forward custom headers.

Routers do forward ``x-request-id``, so that a request can be found in all logs (sglang-router 0.3.2
forwards little else, vllm-router 0.1.17 all headers). The facts that an emulated worker needs are
therefore repeated in that id. The worker's number is encoded in the id of its answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from fairbench.live.headers import CLIENT, DEPTH, OUTPUT_TOKENS, PROGRAM
from fairbench.targets import NOT_DUE, Due

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


_MOST_MS = 10**12 - 1  # the longest time that the tag has digits for: 31 years
_TAGGED = re.compile(r"(.*);due=(-?\d{1,12})?,(-?\d{1,12})?,(\d{1,12})?", re.DOTALL)


def tagged(client: str, due: Due, now_s: float) -> str:
    """Return the name with the time left to each deadline and the target pace, in ms.

    Without any of them the name is returned unchanged.
    """
    ends = [None if at_s is None else at_s - now_s for at_s in (due.first_token_s, due.end_s)]
    left = ["" if span_s is None else f"{_ms(span_s)}" for span_s in (*ends, due.token_every_s)]
    # A name that looks as if it were tagged is tagged too, so that it is not cut.
    return f"{client};due={','.join(left)}" if any(left) or _TAGGED.fullmatch(client) else client


def _ms(span_s: float) -> int:
    return round(max(-_MOST_MS, min(span_s * 1000, _MOST_MS)))


def untagged(name: str, now_s: float, scale: float = 1.0) -> tuple[str, Due]:
    """Return the client of a name, and its request's due times on the clock of ``now_s``.

    The clock is ``scale`` times as fast as that of the tag. All times are in seconds.
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
