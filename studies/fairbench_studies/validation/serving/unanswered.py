"""Requests that were sent in a measured run but are missing in its record.

Some load generators record only the requests that were answered before the run ended. A replay
without the unanswered requests has too little load, because they also used the server. If clients
take turns at equal intervals, turns without a record are requests that were sent and not answered.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from fairbench.metrics.records import Flags, Ints
from fairbench_studies.validation.serving.measured import ServingRun

# Clients count as taking turns under two conditions. A run has at least ``FEWEST_CLIENTS`` clients,
# and at least the fraction ``EVEN_SHARE`` of the gaps between requests is near a multiple of one
# interval.
FEWEST_CLIENTS = 3
EVEN_SHARE = 0.95
_NUMBERED = re.compile(r"(\d+)$")


def with_unanswered(run: ServingRun) -> tuple[ServingRun, Flags]:
    """Return a run with its missing requests added, and a mask of the recorded requests.

    Clients are assumed to send requests in turn, until the run's last recorded request is sent. A
    request without a record is replaced by a copy of the client's nearest recorded request, with
    latencies of NaN.
    """
    every = np.ones(len(run), dtype=bool)
    turns = _turns(run) if run.direct else None
    if turns is None:
        return run, every
    numbers = _numbers(run)
    period = int(numbers.max())
    # (turn without a record, index of the recorded request that is copied into this turn)
    missing: list[tuple[int, int]] = []
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        due = np.arange(turns[own[0]], turns[-1] + 1, period)
        missing += [
            (int(turn), int(own[np.abs(turns[own] - turn).argmin()]))
            for turn in np.setdiff1d(due, turns[own])
        ]
    like = np.array([*range(len(run)), *(index for _, index in missing)])
    sent_turns = np.array([*turns, *(turn for turn, _ in missing)])
    order = np.argsort(sent_turns, kind="stable")
    recorded = (np.arange(len(like)) < len(run))[order]
    sent = rows_of(run, like[order])
    unknown = np.where(recorded, 0.0, np.nan)
    return replace(
        sent,
        submit_s=np.interp(sent_turns[order], turns, run.submit_s),
        ttft_s=sent.ttft_s + unknown,
        latency_s=sent.latency_s + unknown,
    ), recorded


def rows_of(run: ServingRun, chosen: Ints | Flags) -> ServingRun:
    """Return the run with only the chosen requests, given as a mask or as indices in order."""
    indices = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    return replace(
        run,
        client=tuple(run.client[index] for index in indices),
        kind=tuple(run.kind[index] for index in indices) if run.kind else (),
        submit_s=run.submit_s[indices],
        prompt_tokens=run.prompt_tokens[indices],
        output_tokens=run.output_tokens[indices],
        ttft_s=run.ttft_s[indices],
        latency_s=run.latency_s[indices],
    )


def _numbers(run: ServingRun) -> Ints:
    """Return the number at the end of each request's client name, or 0 if there is none."""
    found = (_NUMBERED.search(client) for client in run.client)
    return np.array([int(match[1]) if match else 0 for match in found])


def _turns(run: ServingRun) -> Ints | None:
    """Return the turn of each request, counted from 0.

    Returns None if client names do not end in numbers, or if clients do not send requests in turn
    at equal intervals.
    """
    numbers, period = _numbers(run), len(set(run.client))
    if period < FEWEST_CLIENTS or set(numbers.tolist()) != set(range(1, period + 1)):
        return None
    gaps_s, steps = np.diff(run.submit_s), (np.diff(numbers) - 1) % period + 1
    interval_s = float(np.median(gaps_s / steps))
    if not interval_s > 0:
        return None
    steps += period * np.rint((gaps_s / interval_s - steps) / period).astype(np.int64)
    even = np.abs(gaps_s - steps * interval_s) <= interval_s / 2
    if (steps < 1).any() or even.mean() < EVEN_SHARE:
        return None
    return np.concatenate([[0], np.cumsum(steps)])
