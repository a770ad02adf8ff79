"""Claims 37 to 39: the bounds of [DLPM] Theorems 4.1, 4.2 and 5.1 in figure 7's runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fairbench.core import OUTPUT_PRICE
from fairbench.metrics.records import Floats, Requests
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting import merged, waits
from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part
from fairbench_studies.kit.seeds import derived


class Bounded(NamedTuple):
    """A run's largest difference in service, and the bound, in weighted tokens."""

    gap: float
    bound: float


def judge_bound(
    cells: Sequence[SchedulerResults], *, theorem: str, measured: Callable[[StoredRun], float]
) -> list[Part]:
    """Judge that no run exceeds a theorem's bound; the part names the run nearest to the bound.

    Args:
        cells: The cells of figure 7.
        theorem: The source of the bound, in the words of a run's summary.
        measured: A function that returns a run's difference in service, which is bounded.
    """
    runs = [one.run for cell in cells for one in cell.runs if _bounded_by(one.run, theorem)]
    found = [Bounded(measured(run), run.summary["service_gap_bound"]) for run in runs]
    found = [one for one in found if one.gap == one.gap]
    if not found:
        return [Part("the bound holds in every run", Outcome.UNCONTENDED, "no run has a gap")]
    nearest = max(found, key=lambda one: one.gap / one.bound)
    held = sum(one.gap <= one.bound for one in found)
    return [
        Part(
            "the bound holds in every run",
            Outcome.HOLDS if held == len(found) else Outcome.REVERSED,
            f"in {held} of {len(found)} runs; the largest difference is {nearest.gap:,.0f} tokens, "
            f"{nearest.gap / nearest.bound:.0%} of its bound",
        )
    ]


def _bounded_by(run: StoredRun, theorem: str) -> bool:
    summary = run.summary
    there = summary["scheduler"] == "d2lpm" and summary.get("bound_source") == theorem
    return there and summary["service_gap_bound"] is not None


def service_gap(run: StoredRun) -> float:
    """Return the largest service difference of two clients while both are backlogged.

    The result is NaN if no two clients were backlogged on all workers at the same time.
    """
    gap = run.summary["max_service_gap"]
    return float("nan") if gap is None else float(gap)


def shortfall(run: StoredRun) -> float:
    """Return the largest service deficit of a backlogged client relative to other clients.

    The run has a single worker. Only the client with the deficit must be backlogged (Theorem 4.2).
    """
    return float(derived(run, "shortfall", lambda: _shortfall(run)))


def _shortfall(run: StoredRun) -> float:
    tables = read_tables(run)
    return largest_lead(
        tables.requests, tables.service, len(tables.clients), run.summary["duration"]
    )


def largest_lead(requests: Requests, service: ServiceRows, clients: int, horizon_s: float) -> float:
    """Return the largest lead of a client over a client that was backlogged all the time.

    Args:
        requests: The requests that one worker served.
        service: The service log of this worker.
        clients: The number of clients.
        horizon_s: The end of the run, seconds.
    """
    history = _History.of(service, clients)
    queued = waits(requests, horizon_s)
    largest = 0.0
    for client in range(clients):
        mine = queued.client == client
        for start_s, end_s in zip(*merged(queued.start[mine], queued.end[mine]), strict=True):
            served = history.between(float(start_s), float(end_s))
            lead = served - served[:, [client]]
            rise = lead - np.minimum.accumulate(lead, axis=0)
            largest = max(largest, float(rise.max(initial=0.0)))
    return largest


class _History(NamedTuple):
    """Cumulative service: ``served`` has shape (n_times, n_clients), in weighted tokens."""

    times: Floats
    served: Floats

    @classmethod
    def of(cls, service: ServiceRows, clients: int) -> _History:
        """Return the history with prompts at admission, and outputs at the end of their stretch."""
        rows = service.between(0, len(service))
        times = np.unique(np.concatenate([[-np.inf], rows.start_s, rows.end_s]))
        served = np.zeros((len(times), clients))
        first, last = (np.searchsorted(times, at) for at in (rows.start_s, rows.end_s))
        np.add.at(served, (first, rows.client), rows.extend_charged_tokens)
        np.add.at(served, (last, rows.client), OUTPUT_PRICE * rows.output_tokens)
        return cls(times, served.cumsum(axis=0))

    def between(self, start_s: float, end_s: float) -> Floats:
        """Return the cumulative service from one instant to another.

        A stretch that begins or ends outside the interval counts as a whole, which overstates a
        lead by at most the outputs of that stretch.
        """
        first = int(np.searchsorted(self.times, start_s))
        after = int(np.searchsorted(self.times, end_s, "right"))
        return self.served[first - 1 : after]


CLAIMS = (
    Claim(
        37,
        "clients backlogged together: their service differs by at most 2 (U + Q^u)",
        "Theorem 4.1",
        "[DLPM] Theorem 4.1",
        "fig7",
        partial(judge_bound, theorem="DLPM Theorem 4.1", measured=service_gap),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        38,
        "a backlogged client's service is at most 2U + 2Q^u below any other client's",
        "Theorem 4.2",
        "[DLPM] Theorem 4.2",
        "fig7",
        partial(judge_bound, theorem="DLPM Theorem 4.1", measured=shortfall),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        39,
        "on several workers: two backlogged clients differ by at most 2 (U + Q^u) per worker",
        "Theorem 5.1",
        "[DLPM] Theorem 5.1",
        "fig7",
        partial(judge_bound, theorem="D2LPM Theorem 5.1", measured=service_gap),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
)
