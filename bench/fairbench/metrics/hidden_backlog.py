"""A backlog without queues: all requests run at once, and every token is late.

Where an engine admits whatever comes, demand above capacity makes the batch larger and its steps
longer instead of a queue. No scheduler has anything to order then; clients share the GPU in
proportion to how many of their requests run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbench.metrics.records import FINISHED, Facts
from fairbench.metrics.tables import Tables

# 128 running requests of 1,000 tokens, about what operators allow, take 2.6 times as long for a
# token as one alone (A100, 8B); trees at 1.5 times the capacity, none of them waiting, 16 to 25.
SLOW = 4.0
MOSTLY = 0.5  # of the window without any request waiting


def lone_tpot_ratio(tables: Tables, facts: Facts) -> float:
    """Return the median time per output token, relative to that of a lone request.

    Alone is a decode step of the timing profile with the request's own mean context and nothing
    else. NaN without a profile, or if no request that arrived in the window finished with two
    tokens or more.
    """
    if facts.lone is None:
        return float("nan")
    all_of = tables.requests
    window = facts.window
    inside = (all_of.arrival_s >= window.start_s) & (all_of.arrival_s < window.end_s)
    own = all_of.take(inside & (all_of.status == FINISHED) & (all_of.output_tokens > 1))
    if not len(own):
        return float("nan")
    tpot_s = (own.finish_s - own.first_token_s) / (own.output_tokens - 1)
    context = own.input_tokens + own.output_tokens / 2
    alone_s = facts.lone.step_s + facts.lone.context_token_s * context
    return float(np.median(tpot_s / alone_s))


def hides_backlog(summary: Mapping[str, Any]) -> bool:
    """Return whether queues were mostly empty in the window although tokens were slow."""
    slow, empty = summary.get("lone_tpot_ratio"), summary.get("queue_empty_share")
    return slow is not None and empty is not None and bool(slow > SLOW and empty > MOSTLY)
