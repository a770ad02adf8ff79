"""The choice of latency percentiles in tables: by the user, or by the number of latencies.

A high percentile is mostly noise unless at least three latencies lie above it. A P99 needs 300
latencies, and a P95 needs 60. The summary of a single run always shows the P99; if there are too
few latencies, the P99 is marked and the P95 follows. Tables of clients and of several runs show
either the P99 or the P95.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairbench.errors import UsageError

KEY = "percentiles"  # Summaries and experiments store the chosen percentiles under this key.

ALLOWED = "must be different whole numbers from 1 to 99 with commas between, such as 50,90,95,99"


def parse_percentiles(text: str) -> tuple[int, ...]:
    """Parse percentiles such as ``50,90,99``; return them in ascending order.

    Raises UsageError if ``text`` is not a list of percentiles.
    """
    # An experiment file that a user has edited may contain a number instead of a text.
    if not isinstance(text, str):
        raise UsageError(f"{KEY} = {text!r}: {ALLOWED}")
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    ranks = sorted(int(word) for word in words if re.fullmatch(r"[0-9]{1,2}", word))
    if len(set(ranks)) < len(words) or 0 in ranks:
        raise UsageError(f"{KEY} = {text!r}: {ALLOWED}")
    return tuple(ranks)


def written_percentiles(ranks: tuple[int, ...]) -> str:
    """Return percentiles as a text that ``parse_percentiles`` reads."""
    return ",".join(map(str, ranks))


def chosen_percentiles(summary: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chosen percentiles of a run's summary, or of a summary of combined runs."""
    return parse_percentiles(summary.get(KEY) or "")


def common_percentiles(summaries: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the percentiles chosen for several runs; an empty tuple if the choices differ."""
    chosen = {chosen_percentiles(summary) for summary in summaries}
    return chosen.pop() if len(chosen) == 1 else ()


P95, P99 = 95, 99
TAILS = (P95, P99)  # the high percentiles, which need many latencies
# A table shows a P95 only with at least 60 latencies, and a P99 only with at least 300.
ENOUGH = {P95: 60, P99: 300}


def shown_tail(summaries: Iterable[Mapping[str, Any]]) -> int:
    """Return P99 if each well-behaved client has enough latencies in every run, otherwise P95."""
    return _tail((one.get("victim_n"), "victim_p95_s" in one) for one in summaries)


def shown_client_tail(summaries: Iterable[Mapping[str, Any]]) -> int:
    """Return P99 if each client has enough latencies in every run, otherwise P95."""
    rows = (row for one in summaries for row in one["clients"])
    return _tail((row.get("latency_n") or None, "p95_s" in row) for row in rows)


def is_carried(n: int | None, tail: int) -> bool:
    """Return whether ``n`` latencies suffice for the percentile ``tail``; True if ``n`` is None."""
    return n is None or n >= ENOUGH[tail]


def is_few(n: int | None, rank: int) -> bool:
    """Return whether ``rank`` is a high percentile that ``n`` latencies are too few to estimate."""
    return rank in TAILS and not is_carried(n, rank)


def _tail(known: Iterable[tuple[int | None, bool]]) -> int:
    """Return P95 if every sample has a P95 and any sample is too small for a P99, otherwise P99.

    ``known`` has a pair for each sample: the number of latencies, and whether a P95 is known.
    """
    found = list(known)
    carried = all(is_carried(n, P99) for n, _ in found)
    return P99 if carried or not all(has_p95 for _, has_p95 in found) else P95
