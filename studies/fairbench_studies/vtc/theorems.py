"""Claims 54 to 56: the bounds of [VTC] Theorems 4.9, 4.11 and 4.13, in runs under VTC.

All measures are in weighted tokens, and n is the number of clients. U is the bound of Lemma 4.3:
the larger of w_p L_input (the longest prompt at its price) and w_q M (a memory full of output at
its price). If memory is over-committed, U is half of the bound on the run's largest service gap
(docs/appendix/theory.md). Two theorems are judged by their proofs, not by their statements:

- Theorem 4.11 bounds a client's wait by 2 (n - 1) U / ``a``, where ``a`` (a lower bound of the
  capacity) is not in the paper. While a client waits, all other clients together get at least ``a``
  tokens/s. If all other clients get at most 2 (n - 1) U tokens, Theorem 4.11 holds for every ``a``.
- As printed, Theorem 4.13 applies to no client, because its premise would need a negative number of
  requested tokens. The proof of Theorem 4.13 shows that a client with a backlog from t to t2 has
  requested at least T(t, t2) / n - 5U tokens since t. T is the service of all clients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Part, mean_within
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.artifact import WINDOW_S
from fairbench_studies.vtc.extremes import Extremes
from fairbench_studies.vtc.measures import by_seed
from fairbench_studies.vtc.store import Seeds


def judge_lead(seeds: Seeds) -> list[Part]:
    """Judge [VTC] Theorem 4.9: no client gets over 4U more service than a backlogged client."""
    text = "no client gets over 4U more than a client that waits meanwhile"
    return [_bounded(seeds, text, lambda one: one.lead, lambda one: 4 * one.unit)]


def judge_response(seeds: Seeds) -> list[Part]:
    """Judge the bound of [VTC] Theorem 4.11 on the wait of a client's only request."""
    text = "the others get at most 2 (n - 1) U while a client's only request waits"
    return [
        _bounded(seeds, text, lambda one: one.ahead, lambda one: 2 * (one.clients - 1) * one.unit)
    ]


def judge_share(seeds: Seeds) -> list[Part]:
    """Judge Theorem 4.13 of [VTC], and figure 9, with which the paper validates this theorem."""
    text = "a client that waits has requested at least T / n - 5U since its wait began"
    rises = by_seed(seeds, "vtc-increasing vtc", "rise of client 0's TTFT", _rise_s)
    same = "Fig. 9: client 0's time to first token rises by at most 1 s from first to last minute"
    return [
        _bounded(seeds, text, lambda one: one.unasked, lambda one: 5 * one.unit),
        mean_within(same, rises, -1, 1, "{:+.2f} s"),
    ]


def _rise_s(trace: Trace) -> float:
    """Return the growth (s) of the first client's TTFT from the first to the last minute."""
    mine = trace.client == trace.clients[0]
    at_s, taken_s = trace.req_time_s[mine], trace.first_token_latency_s[mine]
    first, last = taken_s[at_s < WINDOW_S], taken_s[at_s >= trace.req_time_s.max() - WINDOW_S]
    return float(np.nanmean(last) - np.nanmean(first))


def _bounded(
    seeds: Seeds,
    text: str,
    measured: Callable[[Extremes], float],
    bound: Callable[[Extremes], float],
) -> Part:
    """Judge whether all runs keep a theorem's bound, and report the run nearest to its bound.

    Raises KeyError if the results contain no run under VTC.
    """
    runs = [of for one in seeds for of in one.extremes.values()]
    if not runs:
        raise KeyError(text)
    held = sum(measured(one) <= bound(one) for one in runs)
    nearest = max(runs, key=lambda one: measured(one) / bound(one))
    largest, share = measured(nearest), measured(nearest) / bound(nearest)
    ours = (
        f"in {held} of {len(runs)} runs; the largest value is {largest:,.0f} tokens, {share:.0%} "
        "of its bound"
    )
    return Part(text, Outcome.HOLDS if held == len(runs) else Outcome.REVERSED, ours)
