"""Metrics of a whole run: counts, rates, and latencies of requests and programs."""

from __future__ import annotations

import re
from dataclasses import replace

from fairbench.metrics.metric import (
    ALWAYS,
    BOTH,
    CLIENT,
    COUNT,
    IN_REPORTS,
    LATENCIES,
    LESS,
    MORE,
    NO_COHORT,
    NO_TIME,
    NO_VICTIM,
    NOT_SENT,
    OPTIONAL,
    STATISTICS,
    Display,
    Form,
    Metric,
    Shown,
)
from fairbench.metrics.shown_percentiles import P95, P99, TAILS

TOTALS = (
    Metric("duration", "duration", unit="s", presence=ALWAYS),
    Metric("num_programs", "programs made", kind=COUNT, presence=ALWAYS),
    Metric("num_requests", "requests made", kind=COUNT, presence=ALWAYS),
    Metric("completed", "requests completed", kind=COUNT, better=MORE, presence=ALWAYS),
    Metric("demoted", "requests demoted by admission control", better=LESS,
        of=BOTH, kind=COUNT),
    Metric("failed", "requests failed", kind=COUNT, better=LESS, presence=ALWAYS),
    Metric("refused", "requests refused", kind=COUNT, better=LESS, presence=ALWAYS),
    Metric("unfinished", "requests unfinished", kind=COUNT, better=LESS, presence=ALWAYS),
    Metric("total_input_tokens", "input of completed requests", kind=COUNT),
    Metric("total_output_tokens", "output of completed requests", kind=COUNT, better=MORE),
    Metric("request_throughput", "requests completed", unit="1/s", better=MORE,
        undefined=NO_TIME, shown=(Shown(Display.LIVE, 4),)),
    Metric("output_throughput", "output of completed requests", unit="tok/s", better=MORE,
        undefined=NO_TIME, presence=ALWAYS),
    *(
        Metric(f"time_to_{part}pct_s", f"time to {part}% completion",
            column=f"{part}% done\ns", unit="s", better=LESS,
            undefined=f"fewer than {part}% of the programs that arrived by the window's end "
            "finished",
            shown=shown)
        for part, shown in (
            (50, ()),
            (90, (Shown(Display.COMPARISON, 8, dropped=1),)),
            (100, (Shown(Display.LIVE, 12),)),
        )
    ),
    Metric("window_start_s", "start of the window", unit="s", presence=IN_REPORTS),
    Metric("window_end_s", "end of the window", unit="s", presence=IN_REPORTS),
    Metric("programs", "programs", of=CLIENT, kind=COUNT, presence=ALWAYS,
        shown=(Shown(Display.CLIENTS, 0, dropped=3),)),
    Metric("requests", "requests", of=CLIENT, kind=COUNT),
)  # fmt: skip


def of_requests(statistic: str, latency: str) -> Metric:
    """Return the metric for a statistic, such as p90, of a latency of all completed requests."""
    known = "tpot" if (statistic, latency) == ("mean", "itl") else latency
    return Metric(
        key=f"{statistic}_{latency}_ms",
        heading=f"{statistic} {latency.upper()}",
        unit="ms",
        better=LESS,
        undefined=LATENCIES[known],
    )


def chosen_metric(key: str) -> Metric | None:
    """Return the entry of a user-chosen percentile (``chosen_percentiles``), or None for others."""
    match = re.fullmatch(r"(victim_)?p([1-9][0-9]?)_(s|(?:ttft|tpot|e2el)_ms)", key)
    if match is None or (match[1] and match[3] != "s"):
        return None
    rank = int(match[2])
    if match[3] != "s":
        return of_requests(f"p{rank}", match[3].removesuffix("_ms"))
    usual = VICTIM_P50 if match[1] else CLIENT_P50
    return replace(
        usual,
        key=key,
        heading=usual.heading.replace("50", str(rank)),
        column=usual.column.replace("50", str(rank)),
        presence=OPTIONAL,
    )


VICTIM_P50 = Metric("victim_p50_s", "well-behaved P50", column="P50\ns", unit="s", better=LESS,
    form=Form.SECONDS, undefined=NO_VICTIM, presence=ALWAYS,
    shown=(Shown(Display.COMPARISON, 6, dropped=3), Shown(Display.REPEATS, 12),
        Shown(Display.LIVE, 9)))  # fmt: skip
CLIENT_P50 = Metric("p50_s", "P50", column="P50\ns", unit="s", better=LESS, of=CLIENT,
    form=Form.SECONDS, undefined=NO_COHORT, presence=ALWAYS,
    shown=(Shown(Display.CLIENTS, 5), Shown(Display.COMPARED_CLIENTS, 3),
        Shown(Display.REPEATED_CLIENTS, 4), Shown(Display.LIVE_CLIENTS, 2)))  # fmt: skip

LATENCY = (
    *(of_requests(statistic, latency) for latency in LATENCIES for statistic in STATISTICS),
    VICTIM_P50,
    *(
        Metric(f"victim_p{tail}_s", f"well-behaved P{tail}", column=f"P{tail}\ns", unit="s",
            better=LESS, form=Form.SECONDS, undefined=NO_VICTIM,
            presence=ALWAYS if tail == P99 else OPTIONAL, tail=tail,
            shown=(
                Shown(Display.HEADLINES, 2, heading=f"well-behaved P{tail}", note="{latency}"),
                Shown(Display.COMPARISON, 7), Shown(Display.REPEATS, 13),
                Shown(Display.SEEDS, 2), Shown(Display.LIVE, 10)))
        for tail in TAILS
    ),
    Metric("victim_n", "fewest latencies of a well-behaved client", kind=COUNT,
        presence=IN_REPORTS),
    CLIENT_P50,
    *(
        replace(CLIENT_P50, key=f"p{rank}_s", heading=f"P{rank}", column=f"P{rank}\ns",
            presence=ALWAYS if rank != P95 else OPTIONAL, tail=rank,
            shown=tuple(Shown(display, position + 1) for display, position, *_ in CLIENT_P50.shown))
        for rank in TAILS
    ),
    Metric("latency_n", "n", of=CLIENT, kind=COUNT,
        shown=(Shown(Display.CLIENTS, 7, dropped=2),)),
    Metric("latency_unfinished", "n unfinished", better=LESS, of=CLIENT, kind=COUNT),
    Metric("latency_refused", "n refused", better=LESS, of=CLIENT, kind=COUNT),
    *(
        Metric(f"lateness_{statistic}_ms", f"{statistic} lateness of the load", unit="ms",
            undefined=NOT_SENT)
        for statistic in ("p50", "p99", "max")
    ),
    Metric("held", "requests queued by a limit on concurrency", kind=COUNT),
    *(
        Metric(f"held_{statistic}_s", f"{statistic} wait for a limit on concurrency", unit="s",
            undefined=NOT_SENT)
        for statistic in ("p50", "p99", "max")
    ),
    Metric("estimated", "answers with estimated token counts", kind=COUNT),
)  # fmt: skip

METRICS = (*TOTALS, *LATENCY)
