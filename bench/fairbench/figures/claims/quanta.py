"""Claims 12 to 14: what figures 10 and 1 show over the quanta."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isnan

from fairbench.figures import fig1, fig10
from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.pairs import Outcome, Pair, Seen, joined
from fairbench.figures.claims.places import BySeed, by_seed, mean_over
from fairbench.figures.claims.throughput import gains
from fairbench.figures.values import chosen
from fairbench.results.comparison import SchedulerResults

SAME_RATE = 0.02  # of a throughput counts as equal
SAME_JAIN = 0.01
PAPER_QUANTA = (2000, 40000)
ALL_ACTIVE = "while all are active"
INDICES = {"Jain's index": "jain_index", ALL_ACTIVE: "jain_index_paper_window"}

Swept = Mapping[int, BySeed]
"""The runs of a swept quantum, ascending."""


def swept_over(
    cells: Sequence[SchedulerResults], quantum_of: Callable[[SchedulerResults], int | None]
) -> Swept:
    """The swept cells, by ascending quantum."""
    found = {quantum_of(cell): by_seed(cell) for cell in cells}
    return {quantum: found[quantum] for quantum in sorted(q for q in found if q is not None)}


def less_fair(metric: str, most: str, least: str) -> Pair:
    """That an index is lower under the quantum ``most`` than under ``least``."""
    return Pair("fairness lost", metric, least, most, 0.0, is_ratio=False)


def judge_worker_quantum(cells: Sequence[SchedulerResults]) -> Finding:
    """Q^w from 2,000 to 40,000: throughput rises above all others, Jain's index falls a little."""
    mine = chosen(cells, scenario="s2")
    least, most = PAPER_QUANTA
    every = swept_over(mine, fig10.quantum_of)
    within = {quantum: runs for quantum, runs in every.items() if least <= quantum <= most}
    others = {c.combined["scheduler"]: by_seed(c) for c in mine if fig10.quantum_of(c) is None}
    at = {str(quantum): runs for quantum, runs in within.items()} | others
    ends = (within[least], within[most])
    drops = {name: mean_over(ends[0], m) - mean_over(ends[1], m) for name, m in INDICES.items()}
    verdicts, ours = {}, []
    for number, rate in enumerate(gains(str(most), str(least))):
        last = rate.seen(at)
        above = {name: gains(str(most), name)[number].seen(at) for name in others}
        steps = [gains(str(b), str(a))[number].seen(at) for a, b in pairwise(within)]
        outcome = joined([last.outcome, *(seen.outcome for seen in above.values())])
        for name, drop in drops.items() if number == 0 else [(rate.name, drops["Jain's index"])]:
            verdicts[name if name == ALL_ACTIVE else rate.name] = _judged(
                outcome,
                last,
                shape=outcome is Outcome.HOLDS and all(map(_loses_nothing, steps)),
                quantity=0.01 <= drop <= 0.06,
                opposite=last.outcome is Outcome.REVERSED,
            )
        listed = ", ".join(f"{name} {_text(seen)}" for name, seen in above.items())
        ours.append(f"{rate.name}: {_text(last)} from {least:,} to {most:,}, over {listed}")
    return _found([*ours, *_indices(*ends)], verdicts)


def judge_all_well_behaved(cells: Sequence[SchedulerResults]) -> Finding:
    """Without a misbehaving client, Jain's index is 1 under every quantum."""
    swept = swept_over(chosen(cells, scenario="none"), fig10.quantum_of)
    least = {
        name: min(mean_over(runs, m) for runs in swept.values()) for name, m in INDICES.items()
    }
    return _found(
        [f"{name} at least {_index(value)}" for name, value in least.items()],
        {
            name: verdict(shape=value >= 0.9, quantity=value >= 0.99, opposite=value < 0.8)
            for name, value in least.items()
        },
    )


def judge_quantum(cells: Sequence[SchedulerResults]) -> Finding:
    """A larger Q^u: more throughput, less fairness."""
    swept = swept_over(cells, fig1.quantum_of)
    least, most = str(min(swept)), str(max(swept))
    at = {str(quantum): runs for quantum, runs in swept.items()}
    lost = {
        name: (less_fair(metric, most, least).seen(at),
               [less_fair(metric, b, a).seen(at) for a, b in pairwise(at)])
        for name, metric in INDICES.items()
    }  # fmt: skip
    verdicts, ours = {}, []
    for number, rate in enumerate(gains(most, least)):
        won = rate.seen(at)
        steps = [gains(b, a)[number].seen(at) for a, b in pairwise(at)]
        ours.append(
            f"{rate.name}: {_text(won)}, no less in {sum(map(_loses_nothing, steps))} of "
            f"{len(steps)} steps"
        )
        for name in INDICES if number == 0 else ["Jain's index"]:
            whole, falls = lost[name]
            both = joined([won.outcome, whole.outcome])
            verdicts[name if name == ALL_ACTIVE else rate.name] = _judged(
                both,
                won,
                shape=both is Outcome.HOLDS and all(map(_loses_nothing, steps))
                and all((fall.value or 0.0) >= -SAME_JAIN for fall in falls),
                opposite=won.outcome is whole.outcome is Outcome.REVERSED,
            )  # fmt: skip
    for name, (whole, falls) in lost.items():
        kept = sum((fall.value or 0.0) >= -SAME_JAIN for fall in falls)
        ours.append(f"{name} falls ({whole.outcome}), no higher in {kept} of {len(falls)} steps")
    shown = _indices(swept[int(least)], swept[int(most)])
    return _found([f"Q^u {int(least):,} to {int(most):,}", *ours, *shown], verdicts)


def _loses_nothing(step: Seen) -> bool:
    return (step.value or 0.0) >= 1 - SAME_RATE


def _judged(outcome: Outcome, seen: Seen, **facts: bool) -> Verdict:
    """The verdict on what was seen; where nothing is known or contended nothing was tested."""
    untested = outcome is Outcome.UNCONTENDED or seen.value is seen.low is seen.high is None
    return Verdict.NOT_TESTABLE if untested else verdict(**facts)


def _text(seen: Seen) -> str:
    if seen.value is None:
        return f"({seen.outcome})"
    return f"{seen.bound}{seen.value:.2f}x ({seen.outcome})"


def _indices(first: BySeed, last: BySeed) -> list[str]:
    return [
        f"{name} {_index(mean_over(first, metric))} to {_index(mean_over(last, metric))}"
        for name, metric in INDICES.items()
    ]


def _index(value: float) -> str:
    return "undefined" if isnan(value) else f"{value:.3f}"


def _found(ours: Sequence[str], verdicts: Mapping[str, Verdict]) -> Finding:
    first, *beside = verdicts.items()
    return Finding("; ".join(ours), first[1], dict(beside))


CLAIMS = (
    Claim(
        12,
        "a larger Q^w: throughput rises and stays above all others, Jain's index falls a little",
        "0.855 to 0.83 from 2,000 to 40,000",
        "[DLPM] §7.2",
        "fig10",
        judge_worker_quantum,
        "the index differs between seeds by more than the paper's drop, and the paper gives no "
        "rates",
    ),
    Claim(
        13,
        "with well-behaved clients only, Jain's index is 1",
        "consistently 1",
        "[DLPM] Fig. 10",
        "fig10",
        judge_all_well_behaved,
        "programs arrive at random, so that clients ask for different amounts in a window, whoever "
        "schedules them",
    ),
    Claim(
        14,
        "a larger Q^u: more throughput, less fairness",
        "a new Pareto frontier",
        "[DLPM] §7.2",
        "fig1",
        judge_quantum,
        "a client's own requests come in order of their prefix, so its trees stay together even "
        "under a small quantum; how much is lost between clients depends on how many of them "
        "share the pool",
    ),
)
