"""Claims 1 to 4 and 7 of the DLPM paper: throughput in figure 7, by several measures.

The service rate counts cached input, so over a fixed window, the rate favours schedulers that serve
the client with the most cached input. Two other measures favour no scheduler: the number of output
tokens, and the time until all programs have finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import nan

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.pairs import MAKESPAN, Pair, tally
from fairbench_studies.dlpm.claims.places import (
    CALLED,
    PREBLES,
    At,
    Place,
    by_place,
    is_alone,
    mean_over,
    schedulers_of,
)
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part, number
from fairbench_studies.kit.tally import Tally, part_of

RATE, OUTPUT, HIT = "service_rate_tok_s", "output_rate_tok_s", "cache_hit_rate"
ACTIVE = "service_rate_paper_window_tok_s"
NEARLY = 0.95  # throughputs count as equal if their ratio is at least this
PREBLE_WINS = Place("long-qa", "s2", 8)
HARD = ("tot", "s2")
SEVERAL = ", on several replicas"  # added to statements that leave out runs with one replica
WORST = "long-qa"


def gains(above: str, below: str, flip: float = 1.0) -> tuple[Pair, ...]:
    """Return the claim that ``above`` has more throughput than ``below``, by four measures.

    The gain in makespan is the makespan under ``below`` divided by the makespan under ``above``.
    """
    return (
        Pair("service rate", RATE, above, below, flip),
        Pair("service rate while all are active", ACTIVE, above, below, flip),
        Pair("output tok/s", OUTPUT, above, below, flip),
        Pair("makespan", MAKESPAN, below, above, flip),
    )


OVER_VTC = gains("d2lpm", "vtc")
OVER_LPM = gains("d2lpm", "lpm")
OVER_PREBLE = gains("d2lpm", "preble", NEARLY)


def judge_gain(
    cells: Sequence[SchedulerResults], *, below: str, paper: float, low: float, high: float
) -> list[Part]:
    """Judge where, and by how much, D2LPM's throughput exceeds that of the scheduler ``below``."""
    at = by_place(cells)
    tallies = [tally(pair, at) for pair in gains("d2lpm", below)]
    largest = _largest(tallies[0])
    return [
        *parts_apart(f"D2LPM above {CALLED[below]}", tallies, extremes),
        number(f"up to {paper}x ({low} to {high})", largest, low, high, f"up to {largest:.2f}x"),
    ]


def parts_apart(
    text: str, tallies: Sequence[Tally], ours: Callable[[Sequence[Tally]], str]
) -> list[Part]:
    """Return the parts of a claim: one for several replicas, and one for a single replica.

    A claim has a single part if clients compete for service only with one replica, or only with
    several replicas. With one replica, RR+LPM is LPM, and D2LPM is DLPM. ``ours`` describes the
    results of ``tallies`` in words. The first element of ``tallies`` uses the paper's measure of
    throughput.
    """
    alone = [one.within(is_alone) for one in tallies]
    several = [one.within(lambda place: not is_alone(place)) for one in tallies]
    if not (alone[0].counted and several[0].counted):
        return [part_of(text, tallies, ours(tallies))]
    return [
        part_of(f"{text}{SEVERAL}", several, ours(several)),
        part_of(f"{text}, on one replica", alone[:1], ours(alone)),
    ]


def extremes(tallies: Sequence[Tally]) -> str:
    """Return the range of throughput gains by [DLPM]'s measure as text."""
    return tallies[0].extremes


def _largest(one: Tally) -> float:
    return max((seen.value or 0.0 for seen in one.values.values()), default=nan)


def judge_scaling(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge RR+LPM's hit rate and throughput on 4 and 8 replicas (workload tot, scenario s2)."""
    at = by_place(cells)
    both = {str(dp): at[Place(*HARD, dp)]["lpm"] for dp in (4, 8)}
    hits, rates = ([mean_over(runs, metric) for runs in both.values()] for metric in (HIT, RATE))
    fell = Pair("hit rate", HIT, "4", "8", flip=0.0, is_ratio=False).seen(both).outcome
    slower = Pair("throughput of a replica", RATE, "4", "8", flip=0.5).seen(both).outcome
    shown = f"{hits[0]:.0%} to {hits[1]:.0%}"
    near = hits[0] >= 0.88 and 0.40 <= hits[1] <= 0.62
    ours = f"{rates[0]:,.0f} to {rates[1]:,.0f} tok/s, {rates[1] / rates[0] / 2:.2f}x by replica"
    return [
        Part("the hit rate falls", fell, shown),
        Part("hit rate from 95% to 50%", Outcome.HOLDS if near else Outcome.OFF, shown),
        Part("a replica serves less if there are 8 than if there are 4", slower, ours),
    ]


def judge_preble(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether Preble is faster than D2LPM only in long-qa, scenario s2, on 8 replicas."""
    at = by_place(cells)
    return [part for preble in run_of(PREBLES, cells) for part in _against(preble, at)]


def run_of(names: Iterable[str], cells: Sequence[SchedulerResults]) -> list[str]:
    """Return the scheduler names in ``names`` for which ``cells`` contains results."""
    there = schedulers_of(cells)
    return [name for name in names if name in there]


def _against(preble: str, at: Mapping[Place, At]) -> list[Part]:
    called = CALLED[preble]
    wholes = [tally(pair, at) for pair in gains("d2lpm", preble, NEARLY)]
    others = [whole.within(lambda place: place != PREBLE_WINS) for whole in wholes]
    parts = [part_of(f"D2LPM at least {NEARLY:g}x {called}", others, others[0].extremes)]
    there = wholes[0].seen.get(PREBLE_WINS)
    if there is not None:
        wins = tally(Pair("Preble wins", RATE, preble, "d2lpm"), at).seen[PREBLE_WINS]
        shown = "unknown" if there.value is None else f"D2LPM {there.bound}{there.value:.2f}x"
        parts.append(Part(f"{called} above D2LPM in {PREBLE_WINS}", wins.outcome, shown))
    return parts


def judge_worst_case(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether D2LPM's throughput relative to Preble is lowest in the workload long-qa."""
    at = by_place(cells)
    found = {name: tally(Pair("", RATE, "d2lpm", name, NEARLY), at) for name in PREBLES}
    return [
        Part(
            f"long-qa is where D2LPM has the least throughput relative to {CALLED[name]}",
            Outcome.HOLDS if least.workload == WORST else Outcome.REVERSED,
            f"{one.values[least].value or 0.0:.2f}x in {least}",
        )
        for name, one in found.items()
        if WORST in {place.workload for place in one.values}
        for least in [next(iter(one.values))]
    ]


def judge_missing(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Report results that [DLPM] leaves out: Preble on one replica, and ``HARD`` on 8 replicas."""
    at = by_place(cells)
    alone = any("preble" in at[place] for place in at if place.dp == 1)
    ends = ", ".join(
        f"{name} after {mean_over(runs, MAKESPAN):,.0f} s"
        if all(summary[MAKESPAN] is not None for summary in runs.values())
        else f"{name} not always"
        for name, runs in at[Place(*HARD, 8)].items()
    )
    ours = f"Preble at dp 1: {'run' if alone else 'n/a'}; {HARD[0]} {HARD[1]} at 8 all done: {ends}"
    return [Part("both points are left out", Outcome.UNTESTABLE, ours)]


CLAIMS = (
    Claim(
        1,
        "D2LPM's throughput is above VTC's",
        "up to 2.87x",
        "[DLPM] §6.2",
        "fig7",
        partial(judge_gain, below="vtc", paper=2.87, low=1.8, high=4.0),
        "with long prefixes and short answers, a scheduler that ignores the cache loses more "
        "than in the paper; if decoding takes most of the time, locality gains little",
    ),
    Claim(
        2,
        "D2LPM's throughput is above RR+LPM's",
        "up to 2.22x",
        "[DLPM] §6.2",
        "fig7",
        partial(judge_gain, below="lpm", paper=2.22, low=1.5, high=3.3),
        "with few replicas, round-robin loses little locality; LPM starves two clients and "
        "can therefore keep more locality than D2LPM, which serves all three",
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
        "D2LPM's throughput is at least Preble's, except in long-qa s2 at 8 replicas",
        "Preble wins there only",
        "[DLPM] §6.2",
        "fig7",
        judge_preble,
        "Algorithm 2 charges the whole prompt, cached or not, so a quantum pays for few "
        "prompts and another replica computes the prefix again; Preble keeps the prefix on "
        "its replica",
    ),
    Claim(
        40,
        "long-context QA is the worst case for D2LPM's throughput",
        "shown, not stated in numbers",
        "[DLPM] §6.2",
        "fig7",
        judge_worst_case,
        "the published code of Preble is fastest, relative to D2LPM, in the hard trees",
    ),
    Claim(
        7,
        "Preble has no point at one replica; in tot s2 at 8 one point takes too long",
        "both left out",
        "[DLPM] §6.2, Fig. 7",
        "fig7",
        judge_missing,
        "the paper does not name the system whose point at 8 is left out, or its time limit; "
        "the point at one replica is left out by choice",
    ),
)
