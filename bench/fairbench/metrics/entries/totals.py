"""Counts and rates of a whole run, and the times of program completion."""

from __future__ import annotations

from fairbench.metrics.metric import (
    ALWAYS,
    BOTH,
    CLIENT,
    COUNT,
    IN_REPORTS,
    LESS,
    MORE,
    Display,
    Metric,
    Shown,
)
from fairbench.metrics.reasons import NO_TIME

METRICS = (
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
            shown=(Shown(Display.COMPARISON, 8, dropped=1),) if part == 90 else ())
        for part in (50, 90, 100)
    ),
    Metric("window_start_s", "start of the window", unit="s", presence=IN_REPORTS),
    Metric("window_end_s", "end of the window", unit="s", presence=IN_REPORTS),
    Metric("programs", "programs", of=CLIENT, kind=COUNT, presence=ALWAYS,
        shown=(Shown(Display.CLIENTS, 0, dropped=3),)),
    Metric("requests", "requests", of=CLIENT, kind=COUNT),
)  # fmt: skip
