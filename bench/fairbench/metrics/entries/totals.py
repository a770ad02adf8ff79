"""Counts and rates of a whole run, and the times of program completion."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Display, Kind, Metric, Of, Presence, Shown
from fairbench.metrics.reasons import NO_TIME

METRICS = (
    Metric(key="duration", heading="duration", unit="s", presence=Presence.ALWAYS),
    Metric(key="num_programs", heading="programs made", kind=Kind.COUNT, presence=Presence.ALWAYS),
    Metric(key="num_requests", heading="requests made", kind=Kind.COUNT, presence=Presence.ALWAYS),
    Metric(
        key="completed",
        heading="requests completed",
        kind=Kind.COUNT,
        better=Better.MORE,
        presence=Presence.ALWAYS,
    ),
    Metric(
        key="demoted",
        heading="requests demoted by admission control",
        better=Better.LESS,
        of=Of.BOTH,
        kind=Kind.COUNT,
    ),
    Metric(
        key="failed",
        heading="requests failed",
        kind=Kind.COUNT,
        better=Better.LESS,
        presence=Presence.ALWAYS,
    ),
    Metric(
        key="refused",
        heading="requests refused",
        kind=Kind.COUNT,
        better=Better.LESS,
        presence=Presence.ALWAYS,
    ),
    Metric(
        key="unfinished",
        heading="requests unfinished",
        kind=Kind.COUNT,
        better=Better.LESS,
        presence=Presence.ALWAYS,
    ),
    Metric(key="total_input_tokens", heading="input of completed requests", kind=Kind.COUNT),
    Metric(
        key="total_output_tokens",
        heading="output of completed requests",
        kind=Kind.COUNT,
        better=Better.MORE,
    ),
    Metric(
        key="request_throughput",
        heading="requests completed",
        unit="1/s",
        better=Better.MORE,
        undefined=NO_TIME,
        shown=(Shown(Display.LIVE, 4),),
    ),
    Metric(
        key="output_throughput",
        heading="output of completed requests",
        unit="tok/s",
        better=Better.MORE,
        undefined=NO_TIME,
        presence=Presence.ALWAYS,
    ),
    *(
        Metric(
            key=f"time_to_{part}pct_s",
            heading=f"time to {part}% completion",
            column=f"{part}% done\ns",
            unit="s",
            better=Better.LESS,
            undefined=f"fewer than {part}% of the programs that arrived by the window's end "
            "finished",
            shown=(Shown(Display.COMPARISON, 8, dropped=1),) if part == 90 else (),
        )
        for part in (50, 90, 100)
    ),
    Metric(
        key="window_start_s", heading="start of the window", unit="s", presence=Presence.IN_REPORTS
    ),
    Metric(key="window_end_s", heading="end of the window", unit="s", presence=Presence.IN_REPORTS),
    Metric(
        key="programs",
        heading="programs",
        of=Of.CLIENT,
        kind=Kind.COUNT,
        presence=Presence.ALWAYS,
        shown=(Shown(Display.CLIENTS, 0, dropped=3),),
    ),
    Metric(key="requests", heading="requests", of=Of.CLIENT, kind=Kind.COUNT),
)
