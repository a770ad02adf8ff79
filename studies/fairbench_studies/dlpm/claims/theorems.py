"""Claims on the DLPM paper's theorems, judged from the runs of figures 1 and 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench_studies.dlpm.claims.leads import newcomer_wait, shortfall_everywhere
from fairbench_studies.dlpm.claims.places import AT_FOUR
from fairbench_studies.dlpm.fig1 import joins_with_quantum
from fairbench_studies.kit.leads import largest_lead
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part
from fairbench_studies.kit.seeds import derived

WAITED = ("the bound holds in every run", "while a newcomer waits, the others receive at most")


class Bounded(NamedTuple):
    """The largest service difference in a run and its bound, in weighted tokens."""

    gap: float
    bound: float


def judge_bound(
    cells: Sequence[SchedulerResults],
    *,
    theorem: str,
    measured: Callable[[StoredRun], float],
    scheduler: str = "d2lpm",
    times: Callable[[StoredRun], float] = lambda _: 1.0,
    texts: tuple[str, str] = ("the bound holds in every run", "the largest difference is"),
) -> list[Part]:
    """Judge whether all runs keep a theorem's bound, and report the run nearest to its bound.

    Args:
        cells: The results of a figure, by configuration and scheduler.
        theorem: The theorem's name in run summaries.
        measured: A function that returns the service difference that the theorem bounds.
        scheduler: The scheduler whose runs are checked.
        times: A function that returns the factor by which a run's stored bound is multiplied.
        texts: The judged statement, and the words that the report puts before the measured tokens.
    """
    runs = [
        one.run for cell in cells for one in cell.runs if _bounded_by(one.run, theorem, scheduler)
    ]
    found = [Bounded(measured(run), times(run) * run.summary["service_gap_bound"]) for run in runs]
    found = [one for one in found if one.gap == one.gap]
    if not found:
        return [Part(texts[0], Outcome.UNCONTENDED, "no run has a gap")]
    nearest = max(found, key=lambda one: one.gap / one.bound)
    held = sum(one.gap <= one.bound for one in found)
    return [
        Part(
            texts[0],
            Outcome.HOLDS if held == len(found) else Outcome.REVERSED,
            f"in {held} of {len(found)} runs; {texts[1]} {nearest.gap:,.0f} tokens, "
            f"{nearest.gap / nearest.bound:.0%} of its bound",
        )
    ]


def _bounded_by(run: StoredRun, theorem: str, scheduler: str) -> bool:
    summary = run.summary
    there = summary["scheduler"] == scheduler and summary.get("bound_source") == theorem
    return there and summary["service_gap_bound"] is not None


def others(run: StoredRun) -> float:
    """Return the number of other clients, a factor in the bounds of Theorems A.2 and A.4."""
    return float(len(run.summary["clients"]) - 1)


def judge_as_printed(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge Theorem A.2 from runs whose clients start without credit, as in Algorithm 1."""
    return judge_bound(
        [cell for cell in cells if not joins_with_quantum(cell)],
        theorem="DLPM Theorem 4.1",
        measured=newcomer_wait,
        scheduler="dlpm",
        times=others,
        texts=WAITED,
    )


def judge_round_robin(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether VTC's bounds hold on several workers (Theorem A.6).

    Theorem A.6 multiplies VTC's bounds for one worker by the number of workers. If U is the largest
    charge for admitted requests, the services of two waiting clients on one worker differ by at
    most 2U ([VTC] Theorem 4.4). The services of a waiting client and any other client differ by at
    most 4U (Theorem 4.9).
    """
    judge = partial(judge_bound, cells, theorem="VTC Theorem A.6", scheduler="vtc")
    said = "the largest difference is"
    return [
        *judge(measured=service_gap, texts=("the bound between backlogged clients holds", said)),
        *judge(
            measured=shortfall_everywhere,
            times=lambda _: 2.0,
            texts=("the bound against other clients holds", said),
        ),
    ]


def service_gap(run: StoredRun) -> float:
    """Return the largest service difference of two clients while both clients wait.

    The result is NaN if no two clients ever waited on all workers at the same time.
    """
    gap = run.summary["max_service_gap"]
    return float("nan") if gap is None else float(gap)


def shortfall(run: StoredRun) -> float:
    """Return the largest lag in service (tokens) of a waiting client behind another client.

    The run must have a single worker, because Theorem 4.2 bounds the deficit on one worker.
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
    Claim(
        42,
        "on several workers: a client that is backlogged everywhere is at most 2 (U + Q^u) per "
        "worker below any other client",
        "Theorem 5.2",
        "[DLPM] Theorem 5.2",
        AT_FOUR,
        partial(judge_bound, theorem="D2LPM Theorem 5.1", measured=shortfall_everywhere),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        43,
        "an idle client's next request waits for at most 2 (n - 1) (U + Q^u) of the others' "
        "service",
        "Theorem A.2",
        "[DLPM] Theorem A.2",
        "fig1",
        judge_as_printed,
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        45,
        "on several workers: an idle client's next request waits for at most 2 (n - 1) (U + Q^u) "
        "per worker of the others' service",
        "Theorem A.4",
        "[DLPM] Theorem A.4",
        AT_FOUR,
        partial(
            judge_bound,
            theorem="D2LPM Theorem 5.1",
            measured=newcomer_wait,
            times=others,
            texts=WAITED,
        ),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        47,
        "round-robin within each client keeps the bounds of a fair local scheduler, times the "
        "number of workers",
        "Theorem A.6",
        "[DLPM] Theorem A.6",
        AT_FOUR,
        judge_round_robin,
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
)
