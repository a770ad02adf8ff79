"""Facts about a trace: load by client, burstiness, lengths, and shared beginnings of prompts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fairbench.workloads.traces.table import Floats, Ints, TraceTable

PERCENTILES = (50, 90, 99)
PEAK_S = 60.0  # seconds over which the peak rate is measured


def facts_of_table(table: TraceTable) -> dict[str, Any]:
    """Return the statistics of all requests and, under ``clients``, of each client, as JSON types.

    Rates are per second and lengths in tokens. ``cv`` is the coefficient of variation of the gaps
    between requests: 1 for a Poisson process, null for fewer than three requests. ``last_end_s`` is
    the time from the first arrival to the last end of an answer, null if no answer has an end.
    """
    sessions = table.session[table.session >= 0]
    by_client = np.argsort(table.client, kind="stable")
    counts = np.bincount(table.client, minlength=len(table.clients))
    parts = np.split(by_client, np.cumsum(counts)[:-1])
    alone = len(table) - len(sessions)
    ends = table.end_s[np.isfinite(table.end_s)]
    return {
        **_request_facts(table, np.arange(len(table))),
        "left_out": table.left_out,
        "who_left_out": table.who_left_out,
        "programs": alone + len(np.unique(sessions)),
        "span_s": table.span_s,
        "last_end_s": float(ends.max() - table.arrival_s.min()) if len(ends) else None,
        "peak_per_s": _peak(table.arrival_s),
        "batched_ratio": 1 - len(np.unique(table.arrival_s)) / len(table),
        **shared_prefixes(table),
        "clients": [
            {"client": name, "share": len(rows) / len(table), **_request_facts(table, rows)}
            for name, rows in zip(table.clients, parts, strict=True)
            if len(rows)
        ],
    }


def _request_facts(table: TraceTable, rows: Ints) -> dict[str, Any]:
    return {
        "requests": len(rows),
        "per_s": len(rows) / table.span_s if table.span_s else None,
        "cv": burstiness(table.arrival_s[rows]),
        **_length_facts("input", table.input_tokens[rows]),
        **_length_facts("output", table.output_tokens[rows]),
    }


def burstiness(arrival_s: Floats) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals, or None if undefined."""
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std() / gaps.mean())


def _length_facts(name: str, tokens: Ints) -> dict[str, Any]:
    ranks = np.percentile(tokens, PERCENTILES, method="inverted_cdf")
    return {
        f"{name}_tokens": int(tokens.sum()),
        f"{name}_mean": float(tokens.mean()),
        **{f"{name}_p{p}": int(one) for p, one in zip(PERCENTILES, ranks, strict=True)},
        f"{name}_max": int(tokens.max()),
    }


def _peak(arrival_s: Floats) -> float:
    """Return the highest rate (1/s) in a whole minute, or in the whole trace if shorter."""
    length_s = min(PEAK_S, float(arrival_s[-1])) or PEAK_S
    return float(np.unique(arrival_s // PEAK_S, return_counts=True)[1].max() / length_s)


def shared_prefixes(table: TraceTable) -> dict[str, float]:
    """Return the shared fractions of all input tokens; both are 0 if the trace has no blocks.

    ``shared_ratio`` is the fraction in blocks that several requests have. ``infinite_hit_rate`` is
    the fraction that an unlimited cache would find at the beginning of earlier prompts.
    """
    total = int(table.input_tokens.sum())
    counts = np.diff(table.first_block)
    row = np.repeat(np.arange(len(table)), counts)
    place = np.arange(len(table.blocks)) - np.repeat(table.first_block[:-1], counts)
    left = table.input_tokens[row] - place * table.block_size[row]
    tokens = np.clip(left, 0, table.block_size[row])
    _, code = np.unique(table.blocks, return_inverse=True)
    pairs = np.unique(np.stack([code, row]), axis=1)[0] if len(code) else code
    several = np.bincount(pairs, minlength=1)[code] > 1 if len(code) else np.zeros(0, bool)
    return {
        "shared_ratio": float(tokens[several].sum() / total),
        "infinite_hit_rate": _hit_tokens(table, code, tokens) / total,
    }


def _hit_tokens(table: TraceTable, code: Ints, tokens: Ints) -> int:
    """Return the number of tokens at the beginning of prompts that an earlier prompt shares."""
    seen: dict[tuple[int, int], int] = {}  # (node, block) -> child in a prefix tree, root 0
    hits = 0
    codes, lengths, first = code.tolist(), tokens.tolist(), table.first_block.tolist()
    for begin, end in pairwise(first):
        node, known = 0, True
        for at in range(begin, end):
            key = (node, codes[at])
            below = seen.get(key)
            if below is None:
                known, below = False, len(seen) + 1
                seen[key] = below
            elif known:
                hits += lengths[at]
            node = below
    return hits
