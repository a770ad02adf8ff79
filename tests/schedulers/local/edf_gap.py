"""Compare the requests that EDF serves in time with the best schedule.

The machine runs one request at a time, on random sets of up to five. ``python -m
tests.schedulers.local.edf_gap`` prints the table of docs/guide/goodput.md.
"""

from math import inf
from random import Random

from fairbench.schedulers.local.edf import EDF
from tests.schedulers.local.one_at_a_time import best, served

SETS = 150


def edf(preempt: str) -> EDF:
    """Return EDF without rescue and aging."""
    return EDF(EDF.Params(aging_s=inf, rescue_s=inf, progress=0, preempt=preempt))


def jobs_of(draw: Random, together: bool) -> list[tuple[int, int, int]]:
    """Draw requests that arrive within seven seconds, or all at once."""
    jobs = []
    for _ in range(draw.randint(2, 5)):
        arrival, tokens = 0 if together else draw.randint(0, 7), draw.randint(1, 5)
        jobs.append((arrival, tokens, arrival + tokens + draw.randint(0, 8)))
    return jobs


def main() -> None:
    print("| arrive | sets | EDF | in time, of the best schedule's | sets as good as the best |")
    print("|---|---|---|---|---|")
    for together in (True, False):
        for feasible in (True, False):
            for preempt in ("recompute", "no"):
                row(together, feasible, preempt)


def row(together: bool, feasible: bool, preempt: str) -> None:
    draw, got, possible, equal, sets = Random(0), 0, 0, 0, 0
    while sets < SETS:
        jobs = jobs_of(draw, together)
        most = best(jobs)
        if (most == len(jobs)) != feasible:
            continue
        mine = served(edf(preempt), jobs)
        sets, got, possible, equal = sets + 1, got + mine, possible + most, equal + (mine == most)
    when = "at once" if together else "one by one"
    kind = "all can be in time" if feasible else "not all can"
    how = "without preemption" if preempt == "no" else "preempting"
    print(f"| {when} | {kind} | {how} | {got / possible:.1%} | {equal / sets:.1%} |")


if __name__ == "__main__":
    main()
