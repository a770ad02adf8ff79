"""Pictures of traffic: the load of clients over time, and waits over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf

import numpy as np

from fairbench.errors import printable
from fairbench.metrics.floods import Harm
from fairbench.metrics.records import Flags, Floats
from fairbench.metrics.traffic import LONG_S, Traffic
from fairbench.report.numbers import number, percent
from fairbench.report.pages.chart import Area, HeatRow, area_chart, colour, heat_chart, time_axis
from fairbench.report.pages.page import Figure, Headline
from fairbench.report.palette import SERIES
from fairbench.report.traffic_lines import TTFT, JudgedTraffic, window, window_list

BINS = 60
VISIBLE = 0.02  # A client's area can be seen if it is at least this fraction of all load.
ROWS = 10
SHORT_S = LONG_S / 2  # Users do not notice a time to first token below this number of seconds.
# The wait with the darkest colour is at least ten times the wait with the lightest colour.
MOST_TIMES = 10.0


def shown_clients(traffic: Traffic, heavy: Sequence[str]) -> list[str]:
    """Return the clients that have a colour in figures: heavy clients, then the largest clients."""
    order = np.argsort(-traffic.client_tokens, kind="stable").tolist()
    largest = [traffic.clients[code] for code in order]
    return [*heavy, *(name for name in largest if name not in heavy)][: len(SERIES)]


def visible_clients(
    traffic: Traffic, shown: Sequence[str], heavy: Collection[str]
) -> Sequence[str]:
    """Return the clients whose area in a chart of the load is large enough to be seen.

    Heavy clients are returned even if their area is small. If only one area is too small to be
    seen, its client is returned, too.
    """
    tokens = traffic.client_tokens
    part = dict(zip(traffic.clients, (tokens / tokens.sum()).tolist(), strict=True))
    seen = [name for name in shown if name in heavy or part[name] >= VISIBLE]
    return seen if len(traffic.clients) - len(seen) > 1 else shown


def client_series(shown: Sequence[str], heavy: Collection[str]) -> dict[str, int]:
    """Return the index in ``palette.SERIES`` of each client's colour.

    Heavy clients get the first colours, which stand out. Clients that are not heavy get the
    remaining colours in order; colours repeat if needed.
    """
    first = [name for name in shown if name in heavy]
    found = {name: number % len(SERIES) for number, name in enumerate(first)}
    left = [number for number in range(len(SERIES)) if number not in found.values()]
    others = [name for name in shown if name not in found]
    left = left or list(range(len(SERIES)))
    return found | {name: left[number % len(left)] for number, name in enumerate(others)}


def traffic_figures(
    found: JudgedTraffic, measured: str = TTFT, shown: Sequence[str] = ()
) -> Iterator[Figure]:
    """Yield a picture of the load over time and, if waits are known, a picture of the waits.

    Each client in ``shown`` (by default, the clients with the most load) has its own colour.
    """
    traffic, heavy = found.traffic, found.heavy
    if traffic.span_s <= 0:
        return
    yield _load_figure(found, shown or shown_clients(traffic, heavy), _edges(traffic))
    if traffic.knows_waits:
        clients = waiting_clients(traffic, heavy, found.harm)
        yield waits_figure(traffic, heavy, clients, wait_limits(traffic, measured), measured)


def _edges(traffic: Traffic) -> Floats:
    return np.linspace(traffic.arrival_s[0], traffic.arrival_s[-1], BINS + 1)


def _load_figure(found: JudgedTraffic, shown: Sequence[str], edges: Floats) -> Figure:
    traffic, heavy = found.traffic, found.heavy
    series = client_series(shown, heavy)
    shown = visible_clients(traffic, shown, heavy)
    # Heavy clients are on top of the stack, so that a flood can be seen.
    rest = ~np.isin(traffic.client, [traffic.clients.index(name) for name in shown])
    others = len(traffic.clients) - len(shown)
    areas = [Area(f"{others:,} others", _rate(traffic, rest, edges), None)] if others else []
    for name in reversed(shown):
        own = traffic.client == traffic.clients.index(name)
        areas.append(Area(printable(name), _rate(traffic, own, edges), series[name]))
    axis = time_axis(traffic.clock, float(edges[0]), float(edges[-1]))
    chart = area_chart(
        "Load over time by client",
        edges,
        areas,
        x_label=axis.label,
        x_ticks=axis.ticks,
        y_label="load, weighted tokens/s",
        shaded=[(one.start_s, one.end_s) for one in found.floods if not one.throughout],
    )
    caption = f"Load (input + 2 x output tokens of arriving requests), {_bins(edges)}."
    if heavy:
        names = ", ".join(map(printable, heavy))
        shaded = any(not one.throughout for one in found.floods)
        caption += (
            f" Shaded: the flood of {names}, which is on top."
            if shaded
            else (f" The flood of {names} is on top.")
        )
    return Figure(chart, caption)


def _rate(traffic: Traffic, rows: Flags, edges: Floats) -> Floats:
    tokens, _ = np.histogram(traffic.arrival_s[rows], edges, weights=traffic.tokens[rows])
    rate: Floats = tokens / (edges[1] - edges[0])
    return rate


def waits_figure(
    traffic: Traffic,
    heavy: Sequence[str],
    clients: Sequence[str],
    limits: tuple[float, float],
    measured: str,
) -> Figure:
    """Draw median waits over time.

    Each heavy client, all other clients together, and each client in ``clients`` have a row.
    """
    edges = _edges(traffic)
    rows = [
        HeatRow(printable(name), _medians(traffic, [name], edges), colour(number))
        for number, name in enumerate(heavy)
    ]
    good = [name for name in traffic.clients if name not in heavy]
    if len(good) > 1:
        called = f"{len(good):,} others" if heavy else "all clients"
        rows.append(HeatRow(called, _medians(traffic, good, edges), "var(--ink)"))
    rows += [
        HeatRow(printable(name), _medians(traffic, [name], edges), "var(--c1)") for name in clients
    ]
    axis = time_axis(traffic.clock, float(edges[0]), float(edges[-1]), "time of arrival")
    chart = heat_chart(
        *("Waits over time", edges, rows),
        x_label=axis.label,
        x_ticks=axis.ticks,
        unit="s",
        limits=limits,
    )
    caption = (
        f"Median {measured} by time of arrival, {_bins(edges)}; a stronger colour is a longer "
        f"wait, and waits up to {limits[0]:.2g} s have the lightest colour."
    )
    shown = (
        " The clients that waited longest have their own rows." if len(clients) < len(good) else ""
    )
    return Figure(chart, caption + shown)


def wait_limits(traffic: Traffic, measured: str = TTFT) -> tuple[float, float]:
    """Return the waits (s) that are drawn in the lightest and in the darkest colour.

    A time to first token that users do not notice has the lightest colour. If waits are response
    times, the shortest 5% of them have the lightest colour.
    """
    known = traffic.wait_s[np.isfinite(traffic.wait_s)]
    least_s = SHORT_S
    if measured != TTFT and len(known):
        least_s = max(SHORT_S, float(np.percentile(known, 5)))
    longest_s = float(np.percentile(known, 99)) if len(known) else 0.0
    return least_s, max(longest_s, MOST_TIMES * least_s)


def waiting_clients(traffic: Traffic, heavy: Sequence[str], harm: Harm | None) -> list[str]:
    """Return the clients most delayed by heavy clients' bursts, or the longest-waiting clients."""
    if harm is not None:
        return [traffic.clients[one.client] for one in harm.victims][:ROWS]
    good = [name for name in traffic.clients if name not in heavy]
    waits = {name: _median(traffic.wait_s[_of(traffic, [name])]) for name in good}
    return sorted(good, key=lambda name: -waits[name])[:ROWS]


def _medians(traffic: Traffic, names: Sequence[str], edges: Floats) -> Floats:
    mine = _of(traffic, names) & ~np.isnan(traffic.wait_s)
    place = np.clip(np.searchsorted(edges, traffic.arrival_s[mine], "right") - 1, 0, BINS - 1)
    waits = traffic.wait_s[mine]
    return np.array([_median(waits[place == number], np.nan) for number in range(BINS)])


def _median(waits: Floats, without: float = -inf) -> float:
    known = waits[~np.isnan(waits)]
    return float(np.sort(known)[len(known) // 2]) if len(known) else without


def _of(traffic: Traffic, names: Sequence[str]) -> Flags:
    codes = [traffic.clients.index(name) for name in names]
    found: Flags = np.isin(traffic.client, codes)
    return found


def _bins(edges: Floats) -> str:
    return f"in bins of {number(edges[1] - edges[0])} s"


def flood_headlines(found: JudgedTraffic) -> Iterator[Headline]:
    """Yield a headline on clients that flood, and a headline on clients that wait, if any."""
    if not found.floods:
        return
    clock = found.traffic.clock
    notes = []
    for one in found.floods:
        when = "throughout" if one.throughout else window(one.start_s, one.end_s, clock)
        notes.append(f"{when}, {one.share:.0%} of the load then")
    yield Headline("who floods", ", ".join(map(printable, found.heavy)), "; ".join(notes))
    if (harm := found.harm) is not None:
        clients = f"{len(harm.victims):,} client{'s' if len(harm.victims) > 1 else ''}"
        when = window_list([(one.start_s, one.end_s) for one in harm.parts or (harm,)], clock)
        note = f"{when}, median wait {number(harm.median_s)} s"
        yield Headline("who waits", clients, note)
    elif (short := found.shortfall) is not None:
        note = (
            f"{percent(short.share)} of its fair share, {window(short.start_s, short.end_s, clock)}"
        )
        yield Headline("who waits", printable(short.client), note)
    elif found.traffic.knows_waits:
        yield Headline("who waits", "nobody", "no wait is noticeably longer than usual")
