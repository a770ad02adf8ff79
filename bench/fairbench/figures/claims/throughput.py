"""Claims 1 to 4 and 7: service rates of figure 7."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.places import Place, by_place, largest, ratios, smallest
from fairbench.figures.values import mean_of
from fairbench.results.comparison import SchedulerResults

RATE, HIT = "service_rate_tok_s", "cache_hit_rate"
NEARLY = 0.95  # of another's throughput counts as reaching it
PREBLE_WINS = Place("long-qa", "s2", 8)
HARD = ("tot", "s2")


class Band(NamedTuple):
    """A largest ratio from ``low`` to ``high``, and nowhere below ``floor``."""

    low: float
    high: float
    floor: float


def judge_gain(cells: Sequence[SchedulerResults], *, over: str, band: Band) -> Finding:
    """D2LPM's throughput over another's: its largest gain, and that it never loses."""
    gains = ratios(cells, RATE, "d2lpm", over)
    most, least = largest(gains), smallest(gains)
    return Finding(
        f"up to {most}; least {least}",
        verdict(
            shape=most.value > 1 and least.value >= band.floor,
            quantity=band.low <= most.value <= band.high,
            opposite=most.value <= 1,
        ),
    )


def judge_scaling(cells: Sequence[SchedulerResults]) -> Finding:
    """RR+LPM in the hard trees from 4 to 8 replicas: throughput and hit rate."""
    at = by_place(cells)
    four, eight = (at[Place(*HARD, dp)]["lpm"] for dp in (4, 8))
    rates = [mean_of(cell, RATE) or 0.0 for cell in (four, eight)]
    hits = [mean_of(cell, HIT) or 0.0 for cell in (four, eight)]
    return Finding(
        f"{rates[0]:,.0f} to {rates[1]:,.0f} tok/s; hit rate {hits[0]:.0%} to {hits[1]:.0%}",
        verdict(
            shape=rates[1] < rates[0],
            quantity=hits[0] >= 0.88 and 0.40 <= hits[1] <= 0.62,
            opposite=rates[1] > rates[0],
        ),
    )


def judge_preble(cells: Sequence[SchedulerResults]) -> Finding:
    """D2LPM against Preble: at least as good but for the one place where Preble wins."""
    gains = ratios(cells, RATE, "d2lpm", "preble")
    there = next(gain for gain in gains if gain.place == PREBLE_WINS)
    others = [gain for gain in gains if gain.place != PREBLE_WINS]
    reached = sum(gain.value >= NEARLY for gain in others)
    middle = median(gain.value for gain in others)
    return Finding(
        f"{there}; at least {NEARLY:g}x in {reached} of {len(others)} other places, "
        f"least {smallest(others)}, median {middle:.2f}x",
        verdict(shape=there.value < 1 and reached == len(others), opposite=middle < NEARLY),
    )


def judge_missing(cells: Sequence[SchedulerResults]) -> Finding:
    """Preble has no point at one replica, and at 8 in the hard trees it does not come to an end."""
    at = by_place(cells)
    alone = any("preble" in at[place] for place in at if place.dp == 1)
    cell = at[Place(*HARD, 8)]["preble"]
    done_s = mean_of(cell, "time_to_100pct_s")
    ended = "they never all finish" if done_s is None else f"all finished after {done_s:,.0f} s"
    return Finding(
        f"dp 1: {'run' if alone else 'n/a'}; {HARD[0]} {HARD[1]} at 8: programs of the window, "
        f"{ended}",
        Verdict.REPRODUCED if not alone and done_s is None else Verdict.NOT_REPRODUCED,
    )


CLAIMS = (
    Claim(
        1,
        "D2LPM's throughput is above VTC's everywhere",
        "up to 2.87x",
        "[DLPM] §6.2",
        "fig7",
        partial(judge_gain, over="vtc", band=Band(1.8, 4.0, 0.98)),
        "in tot s2 queues are mostly empty on few replicas, so that there is nothing to gain; "
        "in long-qa VTC finds next to nothing in the cache on many replicas, and loses more "
        "than in the paper",
    ),
    Claim(
        2,
        "D2LPM's throughput is above RR+LPM's everywhere",
        "up to 2.22x",
        "[DLPM] §6.2",
        "fig7",
        partial(judge_gain, over="lpm", band=Band(1.5, 3.3, 0.95)),
        "on few replicas round-robin loses little locality, and in trees LPM, which starves two "
        "clients, keeps more of it than D2LPM, which serves all three",
    ),
    Claim(
        3,
        "RR+LPM has less throughput at 8 replicas than at 4 in tot s2",
        "hit rate from 95% to 50%",
        "[DLPM] §6.2",
        "fig7",
        judge_scaling,
        "round-robin loses less here: each replica computes a tree's question once and then "
        "serves many of its thoughts, so throughput goes on growing with the replicas",
    ),
    Claim(
        4,
        "D2LPM's throughput is at least Preble's, but for long-qa s2 at 8 replicas",
        "Preble wins there only",
        "[DLPM] §6.2",
        "fig7",
        judge_preble,
        "Algorithm 2 charges the whole prompt, cached or not, so a quantum of 20 mean requests "
        "is soon spent and the prefix computed again on another replica; Preble keeps it where "
        "it is",
    ),
    Claim(
        7,
        "Preble has no point at one replica; in tot s2 at 8 it takes too long",
        "both left out",
        "[DLPM] §6.2, Fig. 7",
        "fig7",
        judge_missing,
        "the simulated Preble comes to its end at the default load; the paper does not say how "
        "long it waited",
    ),
)
