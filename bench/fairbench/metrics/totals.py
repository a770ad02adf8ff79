"""Totals and latencies of a whole run, by vLLM's and SGLang's names, and of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from fairbench.metrics.catalogue import Notes
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Facts,
    Flags,
    Floats,
    Programs,
    Requests,
    Window,
)
from fairbench.metrics.tables import Tables


def totals(tables: Tables, facts: Facts, notes: Notes) -> dict[str, Any]:
    """Return the counts and rates of a whole run (per second).

    As in vLLM and SGLang, the token totals cover completed requests. num_requests = completed +
    failed + refused + unfinished: ``failed`` requests broke off, which never happens in a
    simulation, and ``unfinished`` requests were in progress at the end. ``extend_throughput``
    counts computed extend tokens without recomputation.
    """
    requests, horizon_s = tables.requests, facts.horizon_s
    done = requests.status == FINISHED
    computed = sum(int(part.extend_tokens.sum()) for part in tables.service.parts())
    completed, output = int(np.count_nonzero(done)), int(requests.output_tokens[done].sum())
    return {
        "duration": horizon_s,
        "num_programs": len(tables.programs),
        "num_requests": len(requests),
        "completed": completed,
        "failed": facts.failed,
        "refused": int(np.count_nonzero(requests.status == REFUSED)) - facts.failed,
        "unfinished": int(np.count_nonzero(requests.status == UNFINISHED)),
        "total_input_tokens": int(requests.input_tokens[done].sum()),
        "total_output_tokens": output,
        **notes.values(
            {
                "request_throughput": ratio(completed, horizon_s),
                "output_throughput": ratio(output, horizon_s),
                "extend_throughput": ratio(float(computed), horizon_s),
                "cache_hit_rate": cache_hit_rate(requests, np.ones(len(requests), np.bool_)),
            }
        ),
    }


def lost_as(run: Mapping[str, Any]) -> str:
    """Return the word for a run's requests without an answer: refused, failed, or both."""
    if not run["failed"]:
        return "refused"
    return "failed or refused" if run["refused"] else "failed"


def ratio(amount: float, of: float) -> float:
    """Return ``amount / of``, NaN if ``of`` is 0."""
    return amount / of if of else float("nan")


def cache_hit_rate(requests: Requests, chosen: Flags) -> float:
    """Return cached over all input tokens of chosen, admitted requests; NaN without any."""
    admitted = chosen & ~np.isnan(requests.admitted_s)
    cached = float(requests.cached_tokens[admitted].sum())
    return ratio(cached, cached + float(requests.extend_tokens[admitted].sum()))


def time_to_finish(programs: Programs, window: Window, percent: int) -> float:
    """Return the time at which ``percent`` of the programs had finished, in seconds.

    The programs are those that arrived before the window's end, which are the same under every
    scheduler. The result is NaN without programs, or if too few ever finished.
    """
    fixed = programs.take(programs.arrival_s < window.end_s)
    finishes = np.sort(fixed.finish_s[fixed.status == FINISHED])
    needed = ceil(len(fixed) * percent / 100)
    return float(finishes[needed - 1]) if 0 < needed <= len(finishes) else float("nan")


def request_latency_ms(requests: Requests, percentiles: Sequence[int] = ()) -> dict[str, float]:
    """Return ``{mean,median,std,p50,p99}_{ttft,tpot,itl,e2el}_ms`` of the completed requests.

    TPOT is the mean gap between tokens of a request with two or more. ITL is over single gaps, of
    which the records only give the mean; its other statistics are NaN. ``percentiles`` are
    additional percentiles for all latencies except ITL.
    """
    done = requests.status == FINISHED
    arrival, first, finish = (
        times[done] for times in (requests.arrival_s, requests.first_token_s, requests.finish_s)
    )
    gaps = requests.output_tokens[done] - 1
    decode = (finish - first)[gaps > 0]
    gaps = gaps[gaps > 0]
    latencies = {"ttft": first - arrival, "tpot": decode / gaps, "e2el": finish - arrival}
    statistics: dict[str, float] = {}
    for name, seconds in latencies.items():
        statistics |= distribution(name, seconds)
    statistics |= distribution("itl", np.array([]))
    statistics["mean_itl_ms"] = 1000 * ratio(float(decode.sum()), float(gaps.sum()))
    for name, seconds in latencies.items():
        ms = 1000 * seconds if len(seconds) else np.array([np.nan])
        statistics |= {f"p{one}_{name}_ms": float(np.percentile(ms, one)) for one in percentiles}
    return statistics


def distribution(name: str, seconds: Floats) -> dict[str, float]:
    """Return mean, median, standard deviation and percentiles in ms; NaN without values."""
    ms = seconds * 1000
    if len(ms) == 0:
        ms = np.array([np.nan])
    p50, p99 = np.percentile(ms, [50, 99])
    return {
        f"mean_{name}_ms": float(ms.mean()),
        f"median_{name}_ms": float(p50),
        f"std_{name}_ms": float(ms.std()),
        f"p50_{name}_ms": float(p50),
        f"p99_{name}_ms": float(p99),
    }


def sides_summary(tables: Tables, facts: Facts, notes: Notes) -> Mapping[str, float]:
    """Return the metrics of both sides; empty for colocated replicas.

    Busy time counts the whole run; a transfer counts from its first byte until it has arrived.
    """
    prefills, requests = facts.prefill_workers, tables.requests
    if prefills is None or requests.sent_s is None or requests.received_s is None:
        return {}
    busy_s = np.zeros(2)
    for part in tables.service.parts():
        if part.gpu_s is not None:
            side = (part.worker >= prefills).astype(np.int64)
            busy_s += np.bincount(side, weights=part.gpu_s, minlength=2)
    workers = np.array([prefills, facts.workers - prefills])
    share = busy_s / (workers * facts.horizon_s) if facts.horizon_s else np.full(2, np.nan)
    took_s = requests.received_s - requests.sent_s
    took_s = took_s[~np.isnan(took_s)]
    return notes.values(
        {
            "prefill_busy_ratio": float(share[0]),
            "decode_busy_ratio": float(share[1]),
            "prefill_gpu_s": float(busy_s[0]),
            "decode_gpu_s": float(busy_s[1]),
            "mean_transfer_ms": float(took_s.mean() * 1e3) if len(took_s) else float("nan"),
        }
    )
