"""Claims 41 and 49 of the DLPM paper: computed service, and idle workers under D2LPM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from fairbench.metrics.fairness import jain
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import StoredRun
from fairbench_studies.dlpm.claims.leads import IdleShares, idle_while_waiting
from fairbench_studies.dlpm.claims.places import AT_FOUR, CALLED, PREBLES, by_seed, contended
from fairbench_studies.dlpm.claims.throughput import run_of
from fairbench_studies.dlpm.claims.trees import while_all_active
from fairbench_studies.kit.outcomes import Outcome, Seen, exceeds
from fairbench_studies.kit.parts import Claim, Part
from fairbench_studies.kit.tally import Tally, decided, part_of
from fairbench_studies.kit.values import chosen

IDLE = 0.001  # Workers count as never idle if they idle for at most this fraction of the time.


def judge_computed_service(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether RR+LPM and Preble share computed service less equally than D2LPM does.

    Jain's index covers the time in which all clients are active. Over a whole run, Jain's index
    would hardly depend on the scheduler, because every scheduler completes the same programs.
    """
    at: dict[str, dict[str, SchedulerResults]] = {}
    for cell in cells:
        at.setdefault(cell.place, {})[cell.scheduler] = cell
    parts = []
    for name in run_of(("lpm", *PREBLES), cells):
        both = {place: of for place, of in at.items() if {name, "d2lpm"} <= set(of)}
        seen = {
            place.replace(" dp ", " at "): _compared(of[name], of["d2lpm"])
            for place, of in both.items()
        }
        tally = Tally(name, seen)
        gaps = [one.value for one in tally.values.values() if one.value is not None]
        ours = f"median gap of Jain's index {median(gaps):+.3f}" if gaps else ""
        text = f"{CALLED[name]} shares computed service less equally than D2LPM"
        parts.append(part_of(text, [tally], ours))
    return parts


def _compared(less: SchedulerResults, more: SchedulerResults) -> Seen:
    first, second = _indices(less), _indices(more)
    seeds = sorted(first.keys() & second.keys())
    low, high = ([of[seed] for seed in seeds] for of in (first, second))
    seen = exceeds(low, high, 0.0, is_ratio=False)
    fair = contended([by_seed(less), by_seed(more)])
    return seen if fair else seen._replace(outcome=Outcome.UNCONTENDED)


def _indices(cell: SchedulerResults) -> Mapping[int, float]:
    return {one.summary["seed"]: computed_index(one.run) for one in cell.runs}


def computed_index(run: StoredRun) -> float:
    """Return Jain's index of computed service while all clients are active; else NaN."""
    if run.summary["paper_window_start_s"] is None:
        return float("nan")
    return float(jain(while_all_active(run)[0]))


def judge_idle_workers(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge, in each configuration, whether a worker under D2LPM idles while a request waits."""
    found = {
        cell.place.replace(" dp ", " at "): [idle_while_waiting(one.run) for one in cell.runs]
        for cell in chosen(cells, scheduler="d2lpm")
        if cell.combined["dp"] > 1
    }
    if not found:
        return []
    return [
        _idle(f"no worker idles while a request waits in {queue} queue", found, number)
        for number, queue in enumerate(("its own", "another worker's"))
    ]


def _idle(text: str, found: Mapping[str, Sequence[IdleShares]], number: int) -> Part:
    shares = {place: fmean(one[number] for one in several) for place, several in found.items()}
    there = sum(share <= IDLE for share in shares.values())
    most = max(shares, key=lambda place: shares[place])
    ours = f"in {there} of {len(shares)}; {shares[most]:.1%} of the worker seconds in {most}"
    return Part(f"{text} (at most {IDLE:.1%} of the time)", decided(there, len(shares)), ours)


CLAIMS = (
    Claim(
        41,
        "RR+LPM and Preble share computed service unequally across clients",
        "significant unfairness",
        "[DLPM] §7.1",
        AT_FOUR,
        judge_computed_service,
        "the paper shows trees of thought on four A10G; if all clients ask for similar "
        "amounts, no scheduler shares unequally",
    ),
    Claim(
        49,
        "D2LPM is work-conserving: no worker is idle if there are requests in the queue",
        "no request is rejected to enforce fairness",
        "[DLPM] §3, §5.2",
        AT_FOUR,
        judge_idle_workers,
        "D2LPM sends each request to a worker on arrival, where the request stays; other "
        "workers that become idle do not take the request over",
    ),
)
