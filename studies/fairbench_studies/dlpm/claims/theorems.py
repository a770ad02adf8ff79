"""Claims 37 to 39: the bounds of [DLPM] Theorems 4.1, 4.2 and 5.1 in figure 7's runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench_studies.kit.leads import largest_lead
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
