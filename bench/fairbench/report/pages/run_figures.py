"""The figures of one run's report: service, latencies, gap and bound, and many clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairbench.metrics.censored_latency import Sample, pooled, samples
from fairbench.metrics.fairness import shares
from fairbench.metrics.records import Facts, Floats
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.tables import Tables
from fairbench.report.client_table import is_crowd
from fairbench.report.crowd import (
    Lorenz,
    counts_by_ratio,
    lorenz,
    lorenz_of_service,
    share_ratios,
    worst_clients,
)
from fairbench.report.numbers import with_unit
from fairbench.report.pages.chart import LEFT, RIGHT, WIDTH, Scale, drawing, line, rect, text
from fairbench.report.pages.chart_rows import bar_chart
from fairbench.report.pages.chart_series import Series, line_chart
from fairbench.report.pages.page import Figure
from fairbench.report.pages.traffic_figures import client_series, traffic_figures
from fairbench.report.palette import SERIES
from fairbench.report.traffic_lines import Judged
from fairbench.results.store import Summary


def crowd_figures(summary: Summary, tables: Tables, facts: Facts) -> Iterator[Figure]:
    """Yield the figures for which the run has numbers."""
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
    return Figure(
        bar_chart("Clients by fraction of their fair share", list(counts_by_ratio(ratios))),
        f"Number of the {len(ratios):,} clients by the fraction of their max-min fair "
        "share that they received.",
    )


BINS = 60
POINTS = 150  # limit on the points of a distribution
BAR_PX = 22
# colours of clients, as numbers in ``palette.SERIES``
OF_GROUPS = {"misbehaving": 0, "well-behaved": 1}


def run_figures(summary: Summary, tables: Tables, facts: Facts, found: Judged) -> Iterator[Figure]:
    """Yield the figures for which the run has numbers; each client has one colour."""
    shown, rest = _shown(summary, facts, found)
    names = [facts.clients[n].name for n in shown]
    swatches = client_series(names, found.heavy)
    yield from traffic_figures(found, shown=names)
    if is_crowd(summary):
        yield from crowd_figures(summary, tables, facts)
    if facts.horizon_s > 0:
        yield _service_over_time(tables, facts, shown, rest, swatches)
    each = samples(tables.requests, tables.programs, facts)
    if is_crowd(summary):
        lines, rest = _by_behaviour(each, facts), " All clients together."
    else:
        lines = {facts.clients[n].name: each[n] for n in shown}
    if any(len(sample.known_s) for sample in lines.values()):
        yield _latencies(lines, facts, rest, swatches)
    if summary["max_service_gap"] is not None and summary["service_gap_bound"]:
        yield _gap_and_bound(summary)


def _shown(summary: Summary, facts: Facts, found: Judged) -> tuple[list[int], str]:
    """Return the clients with their own line, and a sentence if some have none."""
    most, total = len(SERIES), len(facts.clients)
    if total <= most:
        return list(range(total)), ""
    numbers = {client.name: number for number, client in enumerate(facts.clients)}
    heavy = [numbers[name] for name in found.heavy]
    if is_crowd(summary):
        others = [numbers[row["client"]] for row in worst_clients(summary, most)]
    else:
        others = list(range(total))
    shown = [*heavy, *(number for number in others if number not in heavy)][:most]
    which = "came off worst" if is_crowd(summary) else "come first"
    also = f"{', '.join(found.heavy)} and the {most - len(heavy)}" if heavy else f"the {most}"
    return shown, f" Shown: {also} of {total} clients that {which}."


def _by_behaviour(each: Sequence[Sample], facts: Facts) -> dict[str, Sample]:
    """Return the latencies of all clients, those of heavy clients separately."""
    found: dict[str, Sample] = {}
    for name, wrong in (("well-behaved", False), ("misbehaving", True)):
        own = [
            sample
            for client, sample in zip(facts.clients, each, strict=True)
            if client.misbehaving is wrong
        ]
        if own:
            found[name] = pooled(own)
    return found


def _service_over_time(
    tables: Tables, facts: Facts, shown: list[int], rest: str, swatches: Mapping[str, int]
) -> Figure:
    width_s = facts.horizon_s / BINS
    edges = np.linspace(0.0, facts.horizon_s, BINS + 1)
    total = cumulative(tables.service, View.CLIENT, edges, len(facts.clients), facts.weights)
    rates = np.diff(total, axis=1) / width_s
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    chart = line_chart(
        "Service over time",
        [
            Series(name, middles, rates[n].tolist(), swatches[name])
            for n, name in ((n, facts.clients[n].name) for n in shown)
        ],
        x_label="time, s",
        y_label="service, tok/s",
        shaded=(facts.window.start_s, facts.window.end_s),
    )
    return Figure(
        chart,
        f"Service (input + 2 x output tokens) of each client, means over {width_s:,.3g} s. "
        f"Shaded: the window in which rates are measured.{rest}",
    )


def _latencies(
    samples: Mapping[str, Sample], facts: Facts, rest: str, swatches: Mapping[str, int]
) -> Figure:
    chart = line_chart(
        "Distribution of latency",
        [
            Series(name, *_distribution(sample), swatches.get(name, OF_GROUPS.get(name)))
            for name, sample in samples.items()
            if len(sample.known_s)
        ],
        x_label="time to first token, s" if facts.latency == "ttft" else "latency of a program, s",
        y_label="fraction of all that arrived in the window",
        log_x=True,
        percent=True,
    )
    return Figure(
        chart,
        "Fraction that was finished within a time. A line that ends below 100% means "
        f"that the rest were unfinished or refused.{rest}",
    )


def _distribution(sample: Sample) -> tuple[list[float], list[float]]:
    """Return known latencies, and the fraction of the sample that is at most as long."""
    known: Floats = np.sort(sample.known_s)
    picked = np.unique(np.linspace(0, len(known) - 1, min(POINTS, len(known))).astype(np.int64))
    return np.maximum(known[picked], 1e-6).tolist(), ((picked + 1) / sample.n).tolist()


def _gap_and_bound(summary: Summary) -> Figure:
    gap, bound = summary["max_service_gap"], summary["service_gap_bound"]
    scale = Scale(0.0, max(gap, bound), LEFT, WIDTH - RIGHT)
    end, limit = scale.at(gap), scale.at(bound)
    parts = [
        rect(LEFT, 24, limit - LEFT, BAR_PX, 'class="shade"'),
        rect(LEFT, 24, max(1.0, end - LEFT), BAR_PX, 'style="fill:var(--c1)"'),
        line(limit, 18, limit, 30 + BAR_PX, "axis"),
        text(LEFT, 14, f"largest gap {with_unit(gap, 'tokens')}"),
        text(limit, 48 + BAR_PX, f"bound {with_unit(bound, 'tokens')}", "end"),
    ]
    return Figure(
        drawing(80, "Largest service gap and its bound", parts),
        "Largest difference in service between two clients while both wait at every "
        f"worker, and the bound of {summary['bound_source']}.",
    )
