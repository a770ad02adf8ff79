"""Claims 1 to 4 and 7: throughput in figure 7, by the paper's service rate and two measures beside.

The service rate counts cached input too, over a window that is the same for every scheduler, so it
favours one that serves the client with the most cached input. Output tokens and the time until all
programs were done do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.pairs import MAKESPAN, Outcome, Pair
from fairbench.figures.claims.places import Place, by_place, mean_over
from fairbench.figures.claims.tally import Tally, found_by, tally
from fairbench.results.comparison import SchedulerResults

RATE, OUTPUT, HIT = "service_rate_tok_s", "output_rate_tok_s", "cache_hit_rate"
NEARLY = 0.95  # of another's throughput counts as reaching it
PREBLE_WINS = Place("long-qa", "s2", 8)
HARD = ("tot", "s2")


def gains(above: str, below: str, flip: float = 1.0) -> tuple[Pair, ...]:
    """That one has more throughput than another, by each measure, the paper's first.

    The gain in makespan is how many times as long the other takes.
    """
    return (
        Pair("service rate", RATE, above, below, flip),
        Pair("output tok/s", OUTPUT, above, below, flip),
        Pair("makespan", MAKESPAN, below, above, flip),
    )


OVER_VTC = gains("d2lpm", "vtc")
OVER_LPM = gains("d2lpm", "lpm")
OVER_PREBLE = gains("d2lpm", "preble", NEARLY)


class Band(NamedTuple):
    """A largest ratio from ``low`` to ``high``."""

    low: float
    high: float


def judge_gain(cells: Sequence[SchedulerResults], *, pairs: Sequence[Pair], band: Band) -> Finding:
    """One's throughput over another's: in how many places it is above, and its largest gain."""
    at = by_place(cells)
    tallies = [tally(pair, at) for pair in pairs]
    return found_by(
        tallies,
        {one.name: one.verdict(quantity=_in_band(one, band)) for one in tallies},
        "; ".join(f"{one.name} {one.score}, {one.extremes}" for one in tallies),
    )


def _in_band(one: Tally, band: Band) -> bool:
    largest = max((seen.value or 0.0 for seen in one.values.values()), default=0.0)
    return band.low <= largest <= band.high


def judge_scaling(cells: Sequence[SchedulerResults]) -> Finding:
    """RR+LPM in the hard trees from 4 to 8 replicas: its hit rate, and its throughput beside."""
    at = by_place(cells)
    both = {str(dp): at[Place(*HARD, dp)]["lpm"] for dp in (4, 8)}
    hits, rates = ([mean_over(runs, metric) for runs in both.values()] for metric in (HIT, RATE))
    fell = Pair("hit rate", HIT, "4", "8", flip=0.0, is_ratio=False).seen(both).outcome
    ours = (
        f"hit rate {hits[0]:.0%} to {hits[1]:.0%} ({fell}); {rates[0]:,.0f} to {rates[1]:,.0f} "
        f"tok/s, by replica {rates[1] / rates[0] / 2:.2f}x"
    )
    if fell is Outcome.UNCONTENDED:
        return Finding(ours, Verdict.NOT_TESTABLE)
    return Finding(
        ours,
        verdict(
            shape=fell is Outcome.HOLDS,
            quantity=hits[0] >= 0.88 and 0.40 <= hits[1] <= 0.62,
            opposite=fell is Outcome.REVERSED,
        ),
    )


def judge_preble(cells: Sequence[SchedulerResults]) -> Finding:
    """D2LPM against Preble: at least as good but for the one place where Preble wins."""
    at = by_place(cells)
    tallies, verdicts, ours = [], {}, []
    for pair in OVER_PREBLE:
        whole = tally(pair, at)
        others = Tally(whole.name, {p: s for p, s in whole.seen.items() if p != PREBLE_WINS})
        there = whole.seen[PREBLE_WINS]
        wins = there.high is not None and there.high < 1
        made = others.verdict()
        if made is Verdict.REPRODUCED and (there.outcome is Outcome.UNCONTENDED or not wins):
            made = Verdict.NOT_REPRODUCED
        tallies.append(others)
        verdicts[pair.name] = made
        shown = "unknown" if there.value is None else f"{there.bound}{there.value:.2f}x"
        ours.append(
            f"{pair.name} at least {NEARLY:g}x {others.score}, {_median(others)}"
            f"{others.extremes}; at {PREBLE_WINS} {shown}"
        )
    return found_by(tallies, verdicts, ". ".join(ours))


def _median(one: Tally) -> str:
    known = [seen.value for seen in one.values.values() if seen.value is not None]
    return f"median {median(known):.2f}x, " if known else ""


def judge_missing(cells: Sequence[SchedulerResults]) -> Finding:
    """Preble has no point at one replica; whose point is missing at 8 the paper does not say."""
    at = by_place(cells)
    alone = any("preble" in at[place] for place in at if place.dp == 1)
    ends = ", ".join(
        f"{name} after {mean_over(runs, MAKESPAN):,.0f} s"
        if all(summary[MAKESPAN] is not None for summary in runs.values())
        else f"{name} not always"
        for name, runs in at[Place(*HARD, 8)].items()
    )
    return Finding(
        f"Preble at dp 1: {'run' if alone else 'n/a'}; {HARD[0]} {HARD[1]} at 8 all done: {ends}",
        Verdict.NOT_TESTABLE,
    )


CLAIMS = (
    Claim(
        1,
        "D2LPM's throughput is above VTC's",
        "up to 2.87x",
        "[DLPM] §6.2",
        "fig7",
        partial(judge_gain, pairs=OVER_VTC, band=Band(1.8, 4.0)),
        "where the prefix is long and the answer short, a scheduler that ignores the cache loses "
        "more than in the paper; where most of the time goes into decoding there is little to gain",
    ),
    Claim(
        2,
        "D2LPM's throughput is above RR+LPM's",
        "up to 2.22x",
        "[DLPM] §6.2",
        "fig7",
        partial(judge_gain, pairs=OVER_LPM, band=Band(1.5, 3.3)),
        "on few replicas round-robin loses little locality, and an LPM that starves two clients "
        "can keep more of it than D2LPM, which serves all three",
    ),
    Claim(
        3,
        "RR+LPM loses its hits in tot s2 from 4 to 8 replicas, and throughput with them",
        "hit rate from 95% to 50%",
        "[DLPM] §6.2",
        "fig7",
        judge_scaling,
        "a replica computes a tree's question once and then serves many of its thoughts, so "
        "round-robin keeps more hits than in the paper",
    ),
    Claim(
        4,
        "D2LPM's throughput is at least Preble's, but for long-qa s2 at 8 replicas",
        "Preble wins there only",
        "[DLPM] §6.2",
        "fig7",
        judge_preble,
        "Algorithm 2 charges the whole prompt, cached or not, so a quantum of few prompts is soon "
        "spent and the prefix computed again on another replica; Preble keeps it where it is",
    ),
    Claim(
        7,
        "Preble has no point at one replica; in tot s2 at 8 one point takes too long",
        "both left out",
        "[DLPM] §6.2, Fig. 7",
        "fig7",
        judge_missing,
        "the paper names no system whose point at 8 is left out, nor how long it waited; the "
        "point at one replica is left out by choice",
        testable=False,
    ),
)
