"""Client-side metrics of a live run: its own lateness, gaps between tokens, errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fairbench.errors import printable, shortened
from fairbench.live.records import FINISHED, RequestRecord
from fairbench.metrics.records import Floats
from fairbench.metrics.totals import distribution

_MESSAGE = re.compile(r'"(?:message|detail|error)"\s*:\s*"((?:[^"\\]|\\.)*)')


def lateness_ms(requests: Iterable[RequestRecord]) -> dict[str, float]:
    """Return ``lateness_{p50,p99,max}_ms``: the delay between due time and sending of requests.

    The values are NaN if no request was sent.
    """
    late_ms = np.array([1000 * (r.sent_s - r.arrival_s) for r in requests if r.sent_s is not None])
    if not len(late_ms):
        late_ms = np.array([np.nan])
    p50, p99 = np.percentile(late_ms, [50, 99])
    return {
        "lateness_p50_ms": float(p50),
        "lateness_p99_ms": float(p99),
        "lateness_max_ms": float(late_ms.max()),
    }


def itl_ms(requests: Iterable[RequestRecord]) -> dict[str, float]:
    """Return ``{mean,median,std,p50,p99}_itl_ms`` over the token gaps of completed requests.

    Tokens that arrive together share the preceding gap evenly, as in SGLang's benchmark.
    """
    gaps = [token_gaps_s(r.chunk_s, r.chunk_tokens) for r in requests if r.status == FINISHED]
    return distribution("itl", np.concatenate(gaps) if gaps else np.array([]))


def token_gaps_s(chunk_s: Sequence[float], chunk_tokens: Sequence[int]) -> Floats:
    """Return the gap before each token after the first chunk."""
    tokens = np.array(chunk_tokens[1:], dtype=np.int64)
    gaps: Floats = np.repeat(np.diff(chunk_s) / tokens, tokens)
    return gaps


def error_counts(requests: Iterable[RequestRecord]) -> dict[str, int]:
    """Count the errors that ended requests by kind, most frequent first."""
    kinds = Counter(r.error.partition(":")[0] for r in requests if r.error is not None)
    return dict(kinds.most_common())


def first_messages(requests: Iterable[RequestRecord]) -> dict[str, str]:
    """Return the server's text in the first error of each kind, of JSON only the message."""
    messages: dict[str, str] = {}
    for request in requests:
        if request.error is not None:
            kind, _, said = request.error.partition(":")
            by_server = kind.startswith(("HTTP", "stream error"))
            if not messages.get(kind) and by_server:
                messages[kind] = printable(shortened(_message(said.strip())))
    return messages


def _message(said: str) -> str:
    """Return the message of an API's error, perhaps truncated, or the whole text without one."""
    found = _MESSAGE.search(said) if said.startswith("{") else None
    return found[1].replace('\\"', '"') if found else " ".join(said.split())
