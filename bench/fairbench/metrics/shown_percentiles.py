"""The percentiles of latency that tables show: chosen by the user, or with enough latencies.

A high percentile with hardly any latency beyond it is random. Three latencies beyond it are
required: 300 latencies for a P99, 60 for a P95. The summary of a run always has a P99, which is
marked and followed by a P95 if latencies are too few. Other tables show one of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairbench.errors import UsageError

KEY = "percentiles"  # key of a summary, and of an experiment

ALLOWED = "must be different whole numbers from 1 to 99 with commas between, such as 50,90,95,99"


def parse_percentiles(text: str) -> tuple[int, ...]:
    """Parse ``50,90,99`` as ascending numbers. Raises UsageError for another text."""
    if not isinstance(text, str):  # in a file that someone edited
        raise UsageError(f"{KEY} = {text!r}: {ALLOWED}")
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    ranks = sorted(int(word) for word in words if re.fullmatch(r"[0-9]{1,2}", word))
    if len(set(ranks)) < len(words) or 0 in ranks:
        raise UsageError(f"{KEY} = {text!r}: {ALLOWED}")
    return tuple(ranks)


def written_percentiles(ranks: tuple[int, ...]) -> str:
    """Return the text that ``parse_percentiles`` reads."""
    return ",".join(map(str, ranks))


def chosen_percentiles(summary: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chosen percentiles of a run, or of several combined runs."""
    return parse_percentiles(summary.get(KEY) or "")


def common_percentiles(summaries: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the chosen percentiles of several runs if all agree, else none."""
    chosen = {chosen_percentiles(summary) for summary in summaries}
    return chosen.pop() if len(chosen) == 1 else ()


P95, P99 = 95, 99
TAILS = (P95, P99)
ENOUGH = {P95: 60, P99: 300}  # latencies that a percentile needs


def shown_tail(summaries: Iterable[Mapping[str, Any]]) -> int:
    """Return P99 if all well-behaved clients have enough latencies in every run, else P95."""
    return _tail((one.get("victim_n"), "victim_p95_s" in one) for one in summaries)


def shown_client_tail(summaries: Iterable[Mapping[str, Any]]) -> int:
    """Return the percentile for a table of clients: P99 if all clients have enough latencies."""
    rows = (row for one in summaries for row in one["clients"])
    return _tail((row.get("latency_n") or None, "p95_s" in row) for row in rows)


def is_carried(n: int | None, tail: int) -> bool:
    """Return whether ``n`` latencies support a percentile; True if ``n`` is unknown."""
    return n is None or n >= ENOUGH[tail]


def is_few(n: int | None, rank: int) -> bool:
    """Return whether ``n`` latencies, if known, are too few for a high percentile."""
    return rank in TAILS and not is_carried(n, rank)


def _tail(known: Iterable[tuple[int | None, bool]]) -> int:
    """Return the percentile, given latency counts and whether a P95 exists in each summary."""
    found = list(known)
    carried = all(is_carried(n, P99) for n, _ in found)
    return P99 if carried or not all(has_p95 for _, has_p95 in found) else P95
