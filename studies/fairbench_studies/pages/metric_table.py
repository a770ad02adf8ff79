"""The catalogue of metrics as a table for the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Metric
from fairbench.report.pages.markdown import escaped, table

HEADINGS = ("key", "meaning", "of", "unit", "better", "null if")


def metric_table() -> str:
    """Return a table of all metrics. Metrics that differ only in their keys share a row."""
    rows = groupby(CATALOGUE.values(), _facts)
    lines = table(HEADINGS, ([_keys(group), *facts] for facts, group in rows), str)
    return "\n".join(lines) + "\n"


def _keys(metrics: Iterator[Metric]) -> str:
    return ", ".join(f"`{metric.key}`" for metric in metrics)


def _facts(metric: Metric) -> tuple[str, ...]:
    missing = [f"the server reports no {needs.value}" for needs in metric.needs]
    if metric.undefined and not metric.of_comparison:
        missing.insert(0, metric.undefined)
    meaning = metric.meaning or escaped(metric.heading)
    return (
        f"{meaning} ({metric.page})" if metric.page else meaning,
        metric.of.value,
        metric.unit,
        metric.better.value,
        escaped("; ".join([*missing[:1], *sorted(missing[1:])])),
    )
