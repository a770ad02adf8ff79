"""The service of tenants in a run's summary; empty if no client belongs to a tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from fairbench.metrics.metric import Form
from fairbench.report.numbers import number, with_unit, written
from fairbench.results.store import Summary

MOST = 10  # tenants in lines of their own, those with the least of their shares


def tenant_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each line's label and text."""
    if "tenants" not in summary:
        return
    yield (
        "tenants",
        f"minimum fair share among siblings {written(summary, 'tree_worst_share')}; Jain "
        f"index of the top-level tenants {written(summary, 'tree_jain_index')}",
    )
    rows = sorted(summary["tenants"], key=_least_first)
    for row in rows[:MOST]:
        weight = f", weight {number(row['weight'])}" if row["weight"] != 1 else ""
        yield (
            "",
            f"{row['tenant']} {written(row, 'tree_share', Form.PERCENT)} of its share: "
            f"{with_unit(row['service_rate_tok_s'], 'tok/s')} of service "
            f"({number(row['clients'])} clients{weight})",
        )
    if len(rows) > MOST:
        yield "", f"and {number(len(rows) - MOST)} with larger shares"


def _least_first(row: Mapping[str, Any]) -> float:
    share = row["tree_share"]
    return inf if share is None else float(share)
