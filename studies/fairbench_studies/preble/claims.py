"""Claims 30 to 34 of the Preble paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

import numpy as np

from fairbench.metrics.records import Floats
from fairbench_studies.kit.outcomes import exceeds
from fairbench_studies.kit.parts import Claim, Part, number, rising
from fairbench_studies.kit.tally import Tally, part_of
from fairbench_studies.preble.experiments import (
    ABLATION,
    MEMSERVE,
    ORACLE,
    PREBLE,
    RATES,
    ROUND_ROBIN,
    WINDOWS_S,
    Key,
)
from fairbench_studies.preble.speed import GPUS
from fairbench_studies.preble.store import Results

NEAR = 1.02  # latencies within this ratio count as equal
METRICS = {"mean": "mean_s", "P99": "p99_s"}
PAPER_GAINS = {"mean": (1.5, 14.5), "P99": (2, 10)}
PROGRAMMING, PAPER_PROGRAMMING = "programming", {"mean": (1.56, 1.8), "P99": (3, 4)}


def gains(results: Results, metric: str) -> dict[str, Floats]:
    """Return round robin's latency relative to Preble's by workload, shape (rates, seeds)."""
    return {
        workload: np.array(
            [
                results.each(Key("fig3", workload, ROUND_ROBIN, rate), metric)
                / results.each(Key("fig3", workload, PREBLE, rate), metric)
                for rate in rates
            ]
        )
        for workload, rates in RATES.items()
    }


def judge_end_to_end(results: Results) -> list[Part]:
    """Judge claim 30: Preble is faster than round robin, more so at higher rates."""
    parts = []
    ratios = {name: gains(results, metric) for name, metric in METRICS.items()}
    for name, found in ratios.items():
        loads = {
            f"{workload} at {rate:g}": exceeds(np.ones_like(row), row)
            for workload, rows in found.items()
            for rate, row in zip(RATES[workload], rows, strict=True)
        }
        tally = Tally(name, loads)
        parts.append(part_of(f"Preble's {name} latency is lower", [tally], tally.extremes))
    mean = ratios["mean"]
    rises = {workload: exceeds(rows[0], rows[-1]) for workload, rows in mean.items()}
    parts.append(
        part_of(
            "the gain in the mean grows from the lowest to the highest rate", [Tally("mean", rises)]
        )
    )
    best = {workload: rows.max(axis=0) for workload, rows in mean.items()}
    parts += [
        rising(
            f"the largest gain is larger on {workload} than on {PROGRAMMING}",
            [best[PROGRAMMING], most],
            f"{fmean(most):.1f}x, {fmean(best[PROGRAMMING]):.1f}x",
        )
        for workload, most in best.items()
        if workload != PROGRAMMING
    ]
    for name, found in ratios.items():
        every = [gain for rows in found.values() for gain in rows.mean(axis=1)]
        parts += [
            _range(f"{name}: gains", every, *PAPER_GAINS[name]),
            _range(
                f"{name} on {PROGRAMMING}: gains",
                found[PROGRAMMING].mean(axis=1),
                *PAPER_PROGRAMMING[name],
            ),
        ]
    return parts


def _range(text: str, gains: Sequence[float], low: float, high: float) -> Part:
    """Return the part that all gains are in the paper's range."""
    least, most = min(gains), max(gains)
    worst = least if least < low else most
    shown = f"{least:.2f}x to {most:.1f}x"
    return number(f"{text} from {low:g}x to {high:g}x", worst, low, high, shown)


# Whether a step of the ablation lowers the mean and the P99, as the paper says.
EFFECTS = {
    "E2 alone": (True, True),
    "rebalancing and autoscaling": (True, True),
    "prefill/decode balancing": (True, True),
    "priority groups": (False, True),
}


def judge_ablation(results: Results) -> list[Part]:
    """Judge claim 31: each mechanism helps; rebalancing mostly and groups only the P99."""
    rate = RATES["tool-use"][-1]
    found = {
        step: {
            name: results.each(Key("fig5", "tool-use", step, rate), metric)
            for name, metric in METRICS.items()
        }
        for step in ABLATION
    }
    parts = []
    for before, after in pairwise(found):
        for (name, old), new, helps in zip(
            found[before].items(), found[after].values(), EFFECTS[after], strict=True
        ):
            shown = f"{fmean(old):.2f} s to {fmean(new):.2f} s"
            if helps:
                parts.append(rising(f"{after}: the {name} falls", [new, old], shown))
            else:
                text = f"{after}: the {name} falls by less than 2%"
                parts.append(rising(text, [old, new], shown, flip=1 / NEAR))
        if after == "rebalancing and autoscaling":
            falls = [found[before][name] / found[after][name] for name in METRICS]
            shown = f"P99 {fmean(falls[1]):.2f}x, mean {fmean(falls[0]):.2f}x"
            parts.append(rising(f"{after}: the P99 falls by a larger factor", falls, shown))
    return parts


def judge_baselines(results: Results) -> list[Part]:
    """Judge claim 32: MemServe is slower on average; the oracle is not faster."""
    def over(system: str, workload: str) -> Floats:
        rate = RATES[workload][1]
        rival, ours = (
            results.each(Key("baselines", workload, name, rate), "mean_s")
            for name in (system, PREBLE)
        )
        return rival / ours

    oracle = {workload: over(ORACLE, workload) for workload in RATES}
    even, uneven = (
        np.sqrt(oracle[one] * oracle[other])
        for one, other in (("tool-use", "agent"), ("video-qa", PROGRAMMING))
    )
    return [
        *(
            rising(f"MemServe is slower on {workload}", [np.ones_like(ratio), ratio], _times(ratio))
            for workload in ("tool-use", "video-qa")
            for ratio in [over(MEMSERVE, workload)]
        ),
        *(
            rising(
                f"the oracle is at best on par on {workload} (0.98x or more)",
                [np.ones_like(ratio), ratio],
                _times(ratio),
                flip=1 / NEAR,
            )
            for workload, ratio in oracle.items()
        ),
        rising(
            "the oracle is slower on video QA and programming than on tool use and agents",
            [even, uneven],
            f"geometric means {_times(uneven)}, {_times(even)}",
        ),
    ]


def _times(ratio: Sequence[float]) -> str:
    return f"{fmean(ratio):.2f}x"


def judge_window(results: Results) -> list[Part]:
    """Judge claim 33: a window H from one to six minutes changes the mean by 10% at most."""
    parts = []
    for workload in ("tool-use", "video-qa"):
        found = {
            window_s: results.latencies[Key("window", workload, PREBLE, window_s)].mean_s
            for window_s in WINDOWS_S
        }
        largest = max(abs(mean_s / found[180.0] - 1) for mean_s in found.values())
        shown = ", ".join(f"{window_s:g} s: {mean_s:.2f} s" for window_s, mean_s in found.items())
        text = f"{workload}: the mean changes by at most 10%"
        parts.append(number(text, largest, 0, 0.1, f"{shown} (at most {largest:.0%})"))
    return parts


def judge_speed(results: Results) -> list[Part]:
    """Judge claim 34: decisions per second; informative, because the computer differs."""
    tools, videos = (results.speeds[name] for name in ("tool-use", "video-qa"))
    shown = [f"{fmean(one):,.0f}/s ({GPUS} GPUs, Python, one thread)" for one in (tools, videos)]
    return [
        number("tool use: 245 requests/s or more", fmean(tools), 245, inf, shown[0]),
        number("video QA: 2,931 requests/s or more", fmean(videos), 2931, inf, shown[1]),
        rising(
            "tool use is slower than video QA",
            [tools, videos],
            f"video QA {fmean(videos) / fmean(tools):.2f}x as fast",
        ),
    ]


def _claim(
    number: int,
    text: str,
    paper: str,
    source: str,
    judge: Callable[[Any], Sequence[Part]],
    cause: str,
) -> Claim:
    return Claim(number, text, paper, source, "preble", judge, cause)


CLAIMS = (
    _claim(
        30,
        "Preble is faster than round-robin SGLang, more so at higher rates, and least on "
        "programming",
        "1.5x to 14.5x mean, 2x to 10x P99; programming 1.56x to 1.8x and 3x to 4x",
        "[Preble] §4.3, Fig. 3",
        judge_end_to_end,
        "the gain is largest if round-robin no longer keeps up and Preble does. The paper "
        "has no comparable number, because its rates are for A6000 and H100 GPUs. Agents "
        "leave GPUs idle at these rates, so little can be gained",
    ),
    _claim(
        31,
        "each mechanism helps: E2 both, rebalancing and autoscaling mostly the P99, "
        "prefill/decode both, priority groups the P99 only",
        "in this order (Fig. 5 has no numbers in its text)",
        "[Preble] §4.4, Fig. 5",
        judge_ablation,
        "rebalancing moves every request that would exploit the most loaded GPU, so its "
        "prefix is computed again. The paper gives no values of Th_bal and IMBALR",
    ),
    _claim(
        32,
        "MemServe is slower on average; the oracle partition is at best on par, and much slower "
        "on video QA and programming",
        "in this order",
        "[Preble] §E, §H, Fig. 13, 17",
        judge_baselines,
        "here all videos, problems and documents have equally many requests and arrive in "
        "turn, so a split by count is even; in the paper, longer videos have more questions",
    ),
    _claim(
        33,
        "the length of the window H hardly matters",
        '"insensitive"',
        "[Preble] §3.2",
        judge_window,
        "questions about a video arrive for about a minute, so an H of one minute forgets "
        "prefixes that are still needed. Results change little between three and six "
        "minutes",
    ),
    _claim(
        34,
        "the global scheduler decides fast enough for 70 GPUs and more, slower for complex trees",
        "245 requests/s (tool use), 2,931 (video QA)",
        "[Preble] §4.4",
        judge_speed,
        "measured on this computer; prompts are segments here and not tokens, so that a deep tree "
        "costs little more than a long video",
    ),
)
