"""The figures of runs with many clients: Lorenz curve, and clients by fraction of their share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fairbench.metrics.fairness import shares
from fairbench.metrics.records import Facts
from fairbench.metrics.tables import Tables
from fairbench.report.crowd import Lorenz, counts_by_ratio, lorenz, lorenz_of_service, share_ratios
from fairbench.report.pages.chart import RIGHT, WIDTH, Scale, drawing, line, text
from fairbench.report.pages.chart_lines import Series, line_chart
from fairbench.report.pages.page import Figure
from fairbench.results.store import Summary

ROW_PX, BAR_PX, LABELS_PX, COUNTS_PX = 26, 18, 118, 44
POINTS = 150  # of a curve, at most


def crowd_figures(summary: Summary, tables: Tables, facts: Facts) -> Iterator[Figure]:
    """Yield the figures for which the run has numbers.

    Args:
        summary: Metrics of the run, by key.
        tables: Tables of the run's requests, programs and service.
        facts: Facts about the run that the tables do not contain.
    """
    if curve := lorenz_of_service(summary):
        got = shares(tables.requests, tables.programs, tables.service, facts, facts.window)
        fair = lorenz(got.entitlement.tolist(), facts.client_weights.tolist())
        yield _lorenz(curve, fair)
    if ratios := share_ratios(summary):
        yield _ratios(ratios)


def _lorenz(curve: Lorenz, fair: Lorenz | None) -> Figure:
    series = [Series(f"service ({curve.gini:.2f})", *_thinned(curve))]
    if fair:
        series.append(Series(f"fair share ({fair.gini:.2f})", *_thinned(fair)))
    series.append(Series("all the same (0)", [0.0, 100.0], [0.0, 1.0]))
    return Figure(
        line_chart(
            "Lorenz curve of service",
            series,
            x_label="clients, smallest first, %",
            y_label="fraction of the service",
            percent=True,
        ),
        "Total service of the smallest clients, with the Gini index in brackets. Clients "
        "ask for different amounts, so a fair allocation is not equal. The further the "
        "service lies below the line of fair shares, the more the small clients were "
        "short of service.",
    )


def _thinned(curve: Lorenz) -> tuple[list[float], list[float]]:
    last = len(curve.clients) - 1
    picked = np.unique(np.linspace(0, last, min(POINTS, last + 1)).astype(np.int64)).tolist()
    return [100 * curve.clients[n] for n in picked], [curve.service[n] for n in picked]


def _ratios(ratios: Sequence[float]) -> Figure:
    rows = list(counts_by_ratio(ratios))
    most = max(count for _, count in rows)
    across = Scale(0.0, float(most), LABELS_PX, WIDTH - RIGHT - COUNTS_PX)
    bottom = 6 + ROW_PX * len(rows)
    parts = [line(LABELS_PX, 2, LABELS_PX, bottom, "axis")]
    for number, (label, count) in enumerate(rows):
        y = 6 + ROW_PX * number
        end = across.at(count)
        parts += [
            text(LABELS_PX - 8, y + 13, label, "end"),
            f'<rect x="{LABELS_PX}" y="{y}" width="{end - LABELS_PX:g}" height="{BAR_PX}" '
            'style="fill:var(--c0)"/>',
            text(end + 6, y + 13, f"{count:,}"),
        ]
    return Figure(
        drawing(bottom + 6, "Clients by fraction of their fair share", parts),
        f"Number of the {len(ratios):,} clients by the fraction of their max-min fair "
        "share that they received.",
    )
