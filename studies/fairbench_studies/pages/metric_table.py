"""The catalogue of metrics as a table for the documents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Metric
from fairbench.report.pages.markdown import escaped, table

HEADINGS = ("key", "of", "unit", "better", "without a value", "needs")


def metric_table() -> str:
    """Return a row per metric; neighbours that differ only in the key share a row."""
    rows = groupby(CATALOGUE.values(), _facts)
    lines = table(HEADINGS, ([_keys(group), *map(escaped, facts)] for facts, group in rows), str)
    return "\n".join(lines) + "\n"


def _keys(metrics: Iterator[Metric]) -> str:
    return ", ".join(f"`{metric.key}`" for metric in metrics)


def _facts(metric: Metric) -> tuple[str, ...]:
    """Return the facts of a metric for its row."""
    return (
        metric.of.value,
        metric.unit,
        metric.better.value,
        "" if metric.of_comparison else metric.undefined,
        ", ".join(sorted(needs.value for needs in metric.needs)),
    )
