"""Claims 30 to 34 of the Preble paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import geometric_mean
from typing import Any

from fairbench_studies.kit.claim import Claim, Finding, verdict
from fairbench_studies.preble.experiments import (
    ABLATION,
    GPUS,
    MEMSERVE,
    ORACLE,
    PREBLE,
    RATES,
    ROUND_ROBIN,
    WINDOWS_S,
    Key,
)
from fairbench_studies.preble.store import Latency, Results

NEAR = 1.02  # latencies within this ratio count as equal


def gains(results: Results, workload: str) -> list[tuple[float, float]]:
    """Return round robin's latency relative to Preble's (mean, P99), by rising rate."""
    found = []
    for rate in RATES[workload]:
        rival = results.latencies[Key("fig3", workload, ROUND_ROBIN, rate)]
        ours = results.latencies[Key("fig3", workload, PREBLE, rate)]
        found.append((rival.mean_s / ours.mean_s, rival.p99_s / ours.p99_s))
    return found


def judge_end_to_end(results: Results) -> Finding:
    """Judge claim 30: Preble is faster than round robin, more so at higher rates."""
    by_workload = {workload: gains(results, workload) for workload in RATES}
    best = {workload: max(mean for mean, _ in ratios) for workload, ratios in by_workload.items()}
    means = [mean for ratios in by_workload.values() for mean, _ in ratios]
    tails = [tail for ratios in by_workload.values() for _, tail in ratios]
    ahead = all(mean >= 1 / NEAR for mean in means)
    rises = sum(ratios[-1][0] >= ratios[0][0] for ratios in by_workload.values())
    least = min(best, key=lambda workload: best[workload])
    ours = (
        f"mean {min(means):.2f}x to {max(means):.1f}x, P99 {min(tails):.2f}x to "
        f"{max(tails):.1f}x; grows with the rate on {rises} of {len(RATES)} workloads; least on "
        f"{least}; at most "
        + ", ".join(f"{workload} {ratio:.1f}x" for workload, ratio in best.items())
    )
    return Finding(
        ours,
        verdict(
            shape=ahead and rises >= 4,
            quantity=1.5 <= max(means) <= 14.5 and least == "programming",
            opposite=all(mean < 1 for mean in means),
        ),
    )


def steps(results: Results) -> Mapping[str, Latency]:
    """Return the latencies of the ablation, step by step."""
    rate = RATES["tool-use"][-1]
    return {step: results.latencies[Key("fig5", "tool-use", step, rate)] for step in ABLATION}


MEAN_TOO = ("E2 alone", "prefill/decode balancing")  # the other mechanisms help only the P99


def judge_ablation(results: Results) -> Finding:
    """Judge claim 31: each mechanism helps; two of them only the P99."""
    found = steps(results)
    text = ", ".join(f"{name} {one.mean_s:.1f} / {one.p99_s:.1f}" for name, one in found.items())
    helps = {
        name: after.p99_s < before.p99_s and (name not in MEAN_TOO or after.mean_s < before.mean_s)
        for (_, before), (name, after) in pairwise(found.items())
    }
    means = [one.mean_s for one in found.values()]
    hurt = [name for name, good in helps.items() if not good]
    said = f"; no help: {', '.join(hurt)}" if hurt else ""
    return Finding(
        f"{sum(helps.values())} of {len(helps)} mechanisms help{said}; mean / P99 in s: {text}",
        verdict(shape=all(helps.values()), opposite=min(means) == means[0]),
    )


def judge_baselines(results: Results) -> Finding:
    """Judge claim 32: MemServe is slower on average; the oracle is not faster."""
    over: dict[str, dict[str, float]] = {MEMSERVE: {}, ORACLE: {}}
    for workload, (_, rate, _) in RATES.items():
        ours = results.latencies[Key("baselines", workload, PREBLE, rate)].mean_s
        for system, ratios in over.items():
            found = results.latencies[Key("baselines", workload, system, rate)]
            ratios[workload] = found.mean_s / ours
    text = "; ".join(
        f"{system} over Preble: "
        + ", ".join(f"{workload} {ratio:.2f}x" for workload, ratio in ratios.items())
        for system, ratios in over.items()
    )
    worse = all(over[MEMSERVE][workload] > 1 for workload in ("tool-use", "video-qa"))
    on_par = all(ratio >= 1 / NEAR for ratio in over[ORACLE].values())
    uneven = geometric_mean([over[ORACLE]["video-qa"], over[ORACLE]["programming"]])
    even = geometric_mean([over[ORACLE]["tool-use"], over[ORACLE]["agent"]])
    return Finding(
        text,
        verdict(
            shape=worse and on_par,
            quantity=uneven > even,
            opposite=all(ratio < 1 for ratios in over.values() for ratio in ratios.values()),
        ),
    )


def judge_window(results: Results) -> Finding:
    """Judge claim 33: a window H from one to six minutes changes the mean by 10% at most."""
    text, largest = [], 0.0
    for workload in ("tool-use", "video-qa"):
        found = {w: results.latencies[Key("window", workload, PREBLE, w)] for w in WINDOWS_S}
        usual = found[180.0].mean_s
        text.append(
            f"{workload} " + ", ".join(f"{w:g} s: {one.mean_s:.2f} s" for w, one in found.items())
        )
        largest = max(largest, *(abs(one.mean_s / usual - 1) for one in found.values()))
    return Finding(
        f"{'; '.join(text)} (at most {100 * largest:.0f}%)", verdict(shape=largest <= 0.1)
    )


def judge_speed(results: Results) -> Finding:
    """Judge claim 34: decisions per second; informative, because the computer differs."""
    by_name = {speed.workload: speed.requests_per_s for speed in results.speeds}
    text = ", ".join(f"{name} {speed:,.0f}/s" for name, speed in by_name.items())
    tools, videos = by_name["tool-use"], by_name["video-qa"]
    return Finding(
        f"{text} ({GPUS} GPUs, Python, one thread)",
        verdict(shape=tools >= 245 and videos >= 2931, quantity=videos > tools),
    )


def _claim(
    number: int, text: str, paper: str, source: str, judge: Callable[[Any], Finding], cause: str
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
