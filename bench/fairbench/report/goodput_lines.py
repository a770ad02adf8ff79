"""Goodput in the summary of a run, for clients with latency targets."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.report.numbers import number, with_unit, written
from fairbench.results.store import Summary


def goodput_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each goodput line's label and text; nothing without targets."""
    if "goodput_ratio" not in summary:
        return
    yield (
        "goodput",
        f"{written(summary, 'goodput_ratio')} of the requests met their targets (worst "
        f"client {written(summary, 'goodput_min_ratio')}): "
        f"{number(summary.get('goodput_req_s'))} requests/s, "
        f"{with_unit(summary.get('goodput_tok_s'), 'tok/s')} of service",
    )
    yield (
        "",
        f"Jain index {written(summary, 'goodput_jain_index')} of goodput; minimum fair "
        f"share of goodput {written(summary, 'goodput_worst_share')}; "
        f"{written(summary, 'goodput_wasted_ratio')} of all computed tokens were for "
        "requests that missed their targets",
    )
    classes = [
        f"{row['class']} {written(row, 'goodput_ratio')}"
        for row in summary.get("goodput_classes", ())
    ]
    if classes:
        yield "", f"on time by class: {', '.join(classes)}"
