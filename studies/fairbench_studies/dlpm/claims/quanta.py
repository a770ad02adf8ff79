"""The DLPM paper's claims on the quantum (fairbench's claims 12 to 14; figures 10 and 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isnan

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm import fig1, fig10
from fairbench_studies.dlpm.claims.pairs import Pair
from fairbench_studies.dlpm.claims.places import CALLED, At, BySeed, by_seed, mean_over
from fairbench_studies.dlpm.claims.throughput import RATE, gains
from fairbench_studies.kit.outcomes import Outcome, Seen, joined
from fairbench_studies.kit.parts import Claim, Part, interval_of, number
from fairbench_studies.kit.tally import MOST, decided
from fairbench_studies.kit.values import chosen

SAME_RATE = 0.02  # two throughputs count as equal if they differ by at most this fraction
PAPER_QUANTA = (2000, 40000)
INDICES = {"while all are active": "jain_index_paper_window", "over the window": "jain_index"}

Swept = Mapping[int, BySeed]
"""The runs with each value of a quantum, in ascending order of the quantum."""


def swept_over(
    cells: Sequence[SchedulerResults], quantum_of: Callable[[SchedulerResults], int | None]
) -> Swept:
    """Group runs by quantum, in ascending order."""
    found = {quantum_of(cell): by_seed(cell) for cell in cells}
    return {quantum: found[quantum] for quantum in sorted(q for q in found if q is not None)}


def judge_worker_quantum(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether D2LPM becomes the fastest scheduler, and less fair, as Q^w grows."""
    mine = chosen(cells, scenario="s2")
    least, most = PAPER_QUANTA
    swept = swept_over(mine, fig10.quantum_of)
    drops = [mean_over(swept[least], m) - mean_over(swept[most], m) for m in INDICES.values()]
    shown = _course(swept, "jain_index_paper_window")
    fell = f"Jain's index falls by 0.01 to 0.06 from {least:,} to {most:,}"
    return [
        *_rises(mine, "with a heavy client"),
        number(fell, drops[0], 0.01, 0.06, shown),
        *_still_fairer(mine, swept),
    ]


def _rises(mine: Sequence[SchedulerResults], where: str) -> list[Part]:
    """Judge whether D2LPM's throughput rises with Q^w and finally exceeds all other schedulers.

    The paper says that D2LPM "eventually" surpasses all other schedulers, so the verdict uses the
    largest quantum Q^w.
    """
    least, most = PAPER_QUANTA
    swept = swept_over(mine, fig10.quantum_of)
    others = {c.combined["scheduler"]: by_seed(c) for c in mine if fig10.quantum_of(c) is None}
    at = {str(quantum): runs for quantum, runs in swept.items()} | others
    late = [str(quantum) for quantum in swept if quantum >= most]
    text = f"throughput rises from {least:,} to {most:,}, {where}"
    return [
        _part(text, gains(str(most), str(least)), at),
        *(_finally(late, name, at, where) for name in others),
        *([_stable(swept, where)] if len(swept) > 2 else []),
    ]


def _stable(swept: Swept, where: str) -> Part:
    before, last = list(swept)[-2:]
    rise = mean_over(swept[last], RATE) / mean_over(swept[before], RATE)
    text = f"throughput is stable in the end (within {SAME_RATE:.0%}), {where}"
    shown = f"{rise:.3f}x from {before:,} to {last:,}"
    return number(text, rise, 1 - SAME_RATE, 1 + SAME_RATE, shown)


def _finally(late: Sequence[str], name: str, at: At, where: str) -> Part:
    one = _part(f"finally above {CALLED[name]}, {where}", gains(late[-1], name), at)
    return replace(one, under={_called(q): gains(q, name)[0].seen(at).outcome for q in late})


def _still_fairer(mine: Sequence[SchedulerResults], swept: Swept) -> list[Part]:
    preble = [by_seed(c) for c in chosen(mine, scheduler="preble")]
    if not preble:
        return []
    at: At = {str(quantum): runs for quantum, runs in swept.items()} | {"preble": preble[0]}
    metric = INDICES["while all are active"]
    seen = {
        quantum: Pair("", metric, str(quantum), "preble", 0.0, is_ratio=False).seen(at)
        for quantum in swept
    }
    above = sum(one.outcome is Outcome.HOLDS for one in seen.values())
    shown = f"in {above} of {len(seen)}; Preble {_index(mean_over(preble[0], metric))}"
    return [
        Part(
            "Jain's index stays above Preble's for every Q^w",
            joined(one.outcome for one in seen.values()),
            shown,
            under={_called(str(quantum)): one.outcome for quantum, one in seen.items()},
        )
    ]


def _called(quantum: str) -> str:
    return f"Q^w {int(quantum):,}"


def _course(swept: Swept, metric: str) -> str:
    return ", ".join(f"{_index(mean_over(runs, metric))} at {q:,}" for q, runs in swept.items())


def judge_all_well_behaved(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether, without heavy clients, Jain's index is 1 with every quantum Q^w."""
    mine = chosen(cells, scenario="none")
    swept = swept_over(mine, fig10.quantum_of)
    active, window = (
        min(mean_over(runs, metric) for runs in swept.values()) for metric in INDICES.values()
    )
    ours = f"at least {_index(active)} while all are active, {_index(window)} over the window"
    return [
        number("Jain's index at least 0.99", active, 0.99, 1.0, ours),
        *_rises(mine, "all well-behaved"),
    ]


def judge_quantum(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether a larger quantum Q^u ([DLPM]) gives more throughput and less fairness.

    Runs in which new clients start with credit, unlike in Algorithm 1 of [DLPM], are ignored.
    """
    cells = [cell for cell in cells if not fig1.joins_with_quantum(cell)]
    swept = swept_over(cells, fig1.quantum_of)
    least, most = str(min(swept)), str(max(swept))
    at: dict[str, BySeed] = {str(quantum): runs for quantum, runs in swept.items()}
    steps = [gains(b, a)[0].seen(at) for a, b in pairwise(at)]
    kept = sum((step.value or 0.0) >= 1 - SAME_RATE for step in steps)
    lost = [
        Pair(name, metric, least, most, 0.0, is_ratio=False) for name, metric in INDICES.items()
    ]
    span = f"from {int(least):,} to {int(most):,}"
    ours = _indices(swept[int(least)], swept[int(most)])
    return [
        _part(f"throughput rises {span}", gains(most, least), at),
        Part(
            "throughput no less in most steps",
            Outcome.HOLDS if kept >= MOST * len(steps) else Outcome.REVERSED,
            f"in {kept} of {len(steps)}",
        ),
        _part(f"Jain's index falls {span}", lost, at, ours),
        _falls_in_steps(swept),
        *_frontier(cells, swept),
    ]


def _falls_in_steps(swept: Swept) -> Part:
    metric = INDICES["while all are active"]
    course = [mean_over(runs, metric) for runs in swept.values()]
    falls = sum(later < earlier for earlier, later in pairwise(course))
    ours = f"in {falls} of {len(course) - 1}: {_course(swept, metric)}"
    return Part("Jain's index falls in most steps", decided(falls, len(course) - 1), ours)


def _frontier(cells: Sequence[SchedulerResults], swept: Swept) -> list[Part]:
    """Judge whether DLPM's points extend the Pareto frontier of VTC and LPM.

    A point of DLPM is dominated if VTC or LPM has at least the same throughput and at least the
    same Jain's index.
    """
    ends = [by_seed(c) for name in ("vtc", "lpm") for c in chosen(cells, scheduler=name)]
    if len(ends) < 2:
        return []
    found = {name: _beyond(swept, ends, metric) for name, metric in INDICES.items()}
    texts = ("beyond the line from VTC to LPM", "dominated by neither VTC nor LPM")
    return [
        Part(
            f"DLPM's points are {text}",
            decided(first[part], len(swept)),
            f"in {first[part]} of {len(swept)}",
            under={name: decided(counts[part], len(swept)) for name, counts in found.items()},
        )
        for part, text in enumerate(texts)
        for first in [next(iter(found.values()))]
    ]


def _beyond(swept: Swept, ends: Sequence[BySeed], metric: str) -> tuple[int, int]:
    """Count points beyond the line from VTC to LPM, and points dominated by neither VTC nor LPM.

    VTC or LPM dominates a point if both of its values are at least as good as the point's values.
    """
    (x0, y0), (x1, y1) = ((mean_over(of, metric), mean_over(of, RATE)) for of in ends)
    points = [(mean_over(of, metric), mean_over(of, RATE)) for of in swept.values()]
    # A point beyond the line from VTC (fair, slow) to LPM (fast, less fair) is better than any
    # mixture of VTC and LPM.
    beyond = sum((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0) > 0 for x, y in points)
    free = sum(not any(x <= ax and y <= ay for ax, ay in ((x0, y0), (x1, y1))) for x, y in points)
    return beyond, free


def _part(text: str, pairs: Sequence[Pair], at: At, ours: str = "") -> Part:
    """Judge the statement ``text`` by the first of the ``pairs``, and report the other pairs."""
    first, *beside = (pair.seen(at) for pair in pairs)
    names = [pair.name for pair in pairs[1:]]
    others = {name: seen.outcome for name, seen in zip(names, beside, strict=True)}
    shown = interval_of(first, is_ratio=pairs[0].is_ratio)
    return Part(text, first.outcome, ours or _text(first), others, interval=shown)


def _text(seen: Seen) -> str:
    return "not known" if seen.value is None else f"{seen.bound}{seen.value:.2f}x"


def _indices(first: BySeed, last: BySeed) -> str:
    return ", ".join(
        f"{_index(mean_over(first, metric))} to {_index(mean_over(last, metric))} {name}"
        for name, metric in INDICES.items()
    )


def _index(value: float) -> str:
    return "undefined" if isnan(value) else f"{value:.3f}"


CLAIMS = (
    Claim(
        12,
        "a larger Q^w: throughput rises and finally exceeds all others, Jain's index falls a "
        "little",
        "0.855 to 0.83 from 2,000 to 40,000",
        "[DLPM] §7.2",
        "fig10",
        judge_worker_quantum,
        "the index varies between seeds by more than the paper's drop, and the paper gives "
        "no rates; throughput is judged at the largest Q^w, because the paper says that D2LPM "
        "surpasses the others eventually",
    ),
    Claim(
        13,
        "with well-behaved clients only, Jain's index is 1 and throughput rises with Q^w too",
        "consistently 1; Fig. 10b",
        "[DLPM] Fig. 10",
        "fig10",
        judge_all_well_behaved,
        "programs arrive at random, so clients have different demands in a window under "
        "every scheduler",
    ),
    Claim(
        14,
        "a larger Q^u: more throughput, less fairness",
        "a new Pareto frontier",
        "[DLPM] §7.2",
        "fig1",
        judge_quantum,
        "a client's own requests are ordered by prefix, so its trees stay together even "
        "under a small quantum; the loss between clients depends on the number of clients "
        "that share the pool",
    ),
)
