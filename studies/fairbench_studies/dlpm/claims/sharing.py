"""Claims 41 and 49: computed service under unfair schedulers, and idle workers under D2LPM."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.leads import idle_while_waiting
from fairbench_studies.dlpm.claims.pairs import Pair, tally
from fairbench_studies.dlpm.claims.places import AT_FOUR, CALLED, PREBLES, by_place
from fairbench_studies.dlpm.claims.throughput import run_of
from fairbench_studies.kit.parts import Claim, Part, in_every
from fairbench_studies.kit.tally import part_of
from fairbench_studies.kit.values import chosen

COMPUTED = "jain_index_actual"
IDLE = 0.001  # a smaller share of the worker seconds counts as never


def judge_computed_service(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge that RR+LPM and both Prebles share computed service less equally than D2LPM."""
    at = by_place(cells)
    parts = []
    for name in run_of(("lpm", *PREBLES), cells):
        one = tally(Pair(COMPUTED, COMPUTED, "d2lpm", name, 0.0, is_ratio=False), at)
        gaps = [seen.value for seen in one.values.values() if seen.value is not None]
        ours = f"median gap of Jain's index {median(gaps):+.3f}" if gaps else ""
        parts.append(
            part_of(f"{CALLED[name]} shares computed service less equally than D2LPM", [one], ours)
        )
    return parts


def judge_idle_workers(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge that under D2LPM no worker idles while a request waits at another worker."""
    found = {
        cell.place: fmean(idle_while_waiting(one.run) for one in cell.runs)
        for cell in chosen(cells, scheduler="d2lpm")
        if cell.combined["dp"] > 1
    }
    if not found:
        return []
    most = max(found, key=lambda place: found[place])
    ours = f"{found[most]:.1%} of the worker seconds in {most.replace(' dp ', ' at ')}"
    text = f"no worker idles while a request waits at another (at most {IDLE:.1%} of the time)"
    part = in_every(text, [share <= IDLE for share in found.values()], f"at most {ours}")
    return [part]


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
