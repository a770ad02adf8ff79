"""The Preble paper's claims that fairbench numbers 30 to 34, 57 and 58."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from fairbench.metrics.records import Floats
from fairbench_studies.kit.outcomes import exceeds
from fairbench_studies.kit.parts import Claim, Part, in_every, mean_within, number, rising
from fairbench_studies.kit.tally import Tally, part_of
from fairbench_studies.preble.experiments import (
    ABLATION,
    MEMSERVE,
    MIX_RATES,
    ORACLE,
    PREBLE,
    RATES,
    ROUND_ROBIN,
    SCALES,
    WINDOWS_S,
    Key,
)
from fairbench_studies.preble.speed import GPUS
from fairbench_studies.preble.store import Results

NEAR = 1.02  # two latencies count as equal if their ratio is at most this
METRICS = {"mean": "mean_s", "P99": "p99_s"}
PAPER_GAINS = {"mean": (1.5, 14.5), "P99": (2, 10)}
PROGRAMMING, PAPER_PROGRAMMING = "programming", {"mean": (1.56, 1.8), "P99": (3, 4)}


def gains(results: Results, metric: str) -> dict[str, Floats]:
    """Return round robin's latency divided by Preble's, by workload, with shape (rates, seeds)."""
    keys = [
        Key("fig3", workload, system, rate)
        for workload, rates in RATES.items()
        for system in (ROUND_ROBIN, PREBLE)
        for rate in rates
    ]
    found = results.each(keys, metric)
    return {
        workload: np.array(
            [
                found[Key("fig3", workload, ROUND_ROBIN, rate)]
                / found[Key("fig3", workload, PREBLE, rate)]
                for rate in rates
            ]
        )
        for workload, rates in RATES.items()
    }


def judge_end_to_end(results: Results) -> list[Part]:
    """Judge claim 30: Preble is faster than round robin, above all at high request rates."""
    parts = []
    ratios = {name: gains(results, metric) for name, metric in METRICS.items()}
    for name, found in ratios.items():
        loads = {
            f"{workload} at {rate:g}": exceeds(np.ones_like(row), row)
            for workload, rows in found.items()
            for rate, row in zip(RATES[workload], rows, strict=True)
        }
        faster = Tally(name, loads)
        parts.append(part_of(f"Preble's {name} latency is lower", [faster], faster.extremes))
    rises = {workload: exceeds(rows[0], rows[-1]) for workload, rows in ratios["mean"].items()}
    text = "the gain in the mean grows from the lowest to the highest rate"
    parts.append(part_of(text, [Tally("mean", rises)]))
    best = {workload: rows.max(axis=0) for workload, rows in ratios["mean"].items()}
    least = best.pop(PROGRAMMING)
    parts += [
        rising(
            f"the largest gain is larger on {workload} than on {PROGRAMMING}",
            [least, most],
            "{1:.1f}x, {0:.1f}x",
        )
        for workload, most in best.items()
    ]
    for name, found in ratios.items():
        every = np.concatenate([*found.values()])
        parts.append(_range(name, every, *PAPER_GAINS[name]))
        parts.append(
            _range(f"{name} on {PROGRAMMING}", found[PROGRAMMING], *PAPER_PROGRAMMING[name])
        )
    return parts


def _range(name: str, found: Floats, low: float, high: float) -> Part:
    gains = found.mean(axis=1)
    least, most = float(gains.min()), float(gains.max())
    worst = least if least < low else most
    text = f"{name}: gains from {low:g}x to {high:g}x"
    return number(text, worst, low, high, f"{least:.2f}x to {most:.1f}x")


def judge_ablation(results: Results) -> list[Part]:
    """Judge claim 31: each mechanism of Preble lowers latency.

    In the paper, rebalancing lowers P99 latency most, and priority groups lower only P99 latency.
    """
    rate = RATES["tool-use"][-1]
    steps = {step: Key("fig5", "tool-use", step, rate) for step in ABLATION}
    both = [results.each(steps.values(), metric) for metric in METRICS.values()]
    found = {step: [latencies[key] for latencies in both] for step, key in steps.items()}
    parts = []
    for before, after in pairwise(found):
        for name, old, new in zip(METRICS, found[before], found[after], strict=True):
            if after == "priority groups" and name == "mean":
                text, form = f"{after}: the mean does not fall by 2%", "from {:.2f} s to {:.2f} s"
                parts.append(rising(text, [old, new], form, 1 / NEAR))
            else:
                form = "from {1:.2f} s to {0:.2f} s"
                parts.append(rising(f"{after}: the {name} falls", [new, old], form))
        if after == "rebalancing and autoscaling":
            falls = [old / new for old, new in zip(found[before], found[after], strict=True)]
            text, form = f"{after}: the P99 falls more than the mean", "by {1:.2f}x, {0:.2f}x"
            parts.append(rising(text, falls, form))
    return parts


def judge_baselines(results: Results) -> list[Part]:
    """Judge claim 32 on the mean latencies under MemServe, the oracle and Preble.

    MemServe must be slower than Preble, and the oracle must not be faster than Preble.
    """
    compared = {MEMSERVE: ("tool-use", "video-qa"), ORACLE: tuple(RATES)}
    keys = {
        (system, workload): Key("baselines", workload, system, RATES[workload][1])
        for system, workloads in {**compared, PREBLE: tuple(RATES)}.items()
        for workload in workloads
    }
    found = results.each(keys.values(), "mean_s")
    slower, oracle = (
        {
            workload: found[keys[system, workload]] / found[keys[PREBLE, workload]]
            for workload in workloads
        }
        for system, workloads in compared.items()
    )
    even = np.sqrt(oracle["tool-use"] * oracle["agent"])
    uneven = np.sqrt(oracle["video-qa"] * oracle[PROGRAMMING])
    one = np.ones_like(even)
    texts = "the oracle is at best on par on {} (0.98x or more)", "MemServe is slower on {}"
    last = "the oracle is slower on video QA and programming than on tool use and agents"
    return [
        *(
            rising(text.format(workload), [one, ratio], "{1:.2f}x", flip)
            for text, ratios, flip in ((texts[1], slower, 1.0), (texts[0], oracle, 1 / NEAR))
            for workload, ratio in ratios.items()
        ),
        rising(last, [even, uneven], "geometric means {1:.2f}x, {0:.2f}x"),
    ]


def judge_window(results: Results) -> list[Part]:
    """Judge claim 33: mean latency changes by at most 10% with router windows of 1 to 6 minutes."""
    parts = []
    for workload in ("tool-use", "video-qa"):
        keys = [Key("window", workload, PREBLE, window_s) for window_s in WINDOWS_S]
        found = results.each(keys, "mean_s")
        means = {key.value: float(of.mean()) for key, of in found.items()}
        largest = max(abs(mean_s / means[180.0] - 1) for mean_s in means.values())
        shown = ", ".join(f"{window_s:g} s: {mean_s:.2f} s" for window_s, mean_s in means.items())
        text = f"{workload}: the mean changes by at most 10%"
        parts.append(number(text, largest, 0, 0.1, f"{shown} (at most {largest:.0%})"))
    return parts


MIXED = {
    "mean latency": "mean_s",
    "P99 latency": "p99_s",
    "mean TTFT": "ttft_s",
    "mean TPOT": "tpot_s",
}


def judge_mix(results: Results) -> list[Part]:
    """Judge claim 57: Preble has lower latencies than round robin on tool use mixed with videos."""
    keys = {
        (system, rate): Key("fig4", "preble-mix", system, rate)
        for system in (ROUND_ROBIN, PREBLE)
        for rate in MIX_RATES
    }
    parts = []
    for name, metric in MIXED.items():
        found = results.each(keys.values(), metric)
        loads = {
            f"at {rate:g}": exceeds(found[keys[PREBLE, rate]], found[keys[ROUND_ROBIN, rate]])
            for rate in MIX_RATES
        }
        lower = Tally(name, loads)
        parts.append(part_of(f"Preble's {name} is lower", [lower], lower.extremes))
    return parts


SUSTAINED_S = 20.0  # maximum mean latency of Preble (s) in claim 58


def judge_scale(results: Results) -> list[Part]:
    """Judge claim 58: Preble's latency stays similar if GPUs and documents grow together."""
    keys = {
        (system, gpus): Key("scale", "loogle", system, gpus)
        for system in (ROUND_ROBIN, PREBLE)
        for gpus in SCALES
    }
    found = results.each(keys.values(), "mean_s")
    preble, slower = (
        {gpus: found[keys[system, gpus]] for gpus in SCALES} for system in (PREBLE, ROUND_ROBIN)
    )
    gain = {gpus: slower[gpus] / preble[gpus] for gpus in SCALES}
    tally = Tally("mean", {f"{gpus} GPUs": exceeds(preble[gpus], slower[gpus]) for gpus in SCALES})
    means = ", ".join(f"{float(of.mean()):.2f} s" for of in preble.values())
    listed = ", ".join(map(str, SCALES))
    first, second, *_ = SCALES
    same = mean_within(
        f"the gain over round-robin stays similar from {first} to {second} GPUs (within 25%)",
        gain[second] / gain[first],
        0.75,
        1.25,
        "{:.2f}x",
    )
    gains = f"{float(gain[first].mean()):.1f}x and {float(gain[second].mean()):.1f}x"
    return [
        *(
            mean_within(
                f"Preble's mean latency stays similar from {few} to {many} GPUs (within 10%)",
                preble[many] / preble[few],
                0.9,
                1.1,
                "{:.2f}x",
            )
            for few, many in pairwise(SCALES)
        ),
        in_every(
            f"Preble's mean is at most {SUSTAINED_S:g} s at the same rate per GPU on {listed} GPUs",
            np.all([of <= SUSTAINED_S for of in preble.values()], axis=0).tolist(),
            means,
        ),
        part_of("Preble's mean latency is below round-robin's", [tally], tally.extremes),
        replace(same, ours=f"{same.ours} ({gains})"),
    ]


def judge_speed(results: Results) -> list[Part]:
    """Judge claim 34 about routing decisions per second, which are measured on this machine."""
    tools, videos = (results.speeds[name] for name in ("tool-use", "video-qa"))
    form = f"{{:,.0f}}/s ({GPUS} GPUs, Python, one thread)"
    return [
        mean_within("tool use: 245 requests/s or more", tools, 245, inf, form),
        mean_within("video QA: 2,931 requests/s or more", videos, 2931, inf, form),
        rising("tool use is slower than video QA", [tools, videos], "{:,.0f}/s, {:,.0f}/s"),
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
        "rebalancing moves every request with a prefix cached on the most loaded GPU, so the "
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
        "turn, so a split by count is even. The paper's reason, more questions for longer videos, "
        "hardly exists in its data set: the longer half of NExT-QA's videos has 4% more. MemServe "
        "is judged with a least match of one token more than the system prompt, which all prompts "
        "share; with any match, all requests go to one GPU: 176x and 126x",
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
    _claim(
        57,
        "tool use and videos mixed, in bursts: Preble's latencies, TTFT and TPOT are lower",
        '"significant improvements"',
        "[Preble] §4.3, Fig. 4",
        judge_mix,
        "the repository does not contain Azure's trace, so bursts are Gamma arrivals",
    ),
    _claim(
        58,
        "more GPUs and as many more documents: Preble's latency stays similar, so that the load "
        "grows with the GPUs",
        '"linear scalability"; a mean of 20 s is the requirement; the gain over round-robin stays '
        "similar from 2 to 4 GPUs",
        "[Preble] §4.3, §F, Fig. 14, 15",
        judge_scale,
        "round-robin sends every document to every GPU, so the documents that are in use no longer "
        "fit into a GPU's cache when their number doubles with the GPUs, and Preble gains more",
    ),
)
