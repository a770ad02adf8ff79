"""The page of recorded traffic, with load and waits over time, and each client's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np

from fairbench.errors import printable
from fairbench.metrics.records import Floats
from fairbench.metrics.traffic import Traffic
from fairbench.report.numbers import percent, seconds, whole
from fairbench.report.pages import page
from fairbench.report.pages.traffic_figures import flood_headlines, traffic_figures
from fairbench.report.traffic_lines import TTFT, JudgedTraffic, traffic_lines
from fairbench_logs.overload import overload_line, overload_of

MOST_ROWS = 30
NOBODY = "There is no flood: no client sends much more than other clients."
PEAK_S = 60.0


def traffic_page(
    name: str,
    provenance: str,
    found: JudgedTraffic,
    measured: str,
    *,
    warnings: Sequence[str] = (),
    sections: Sequence[page.Section] = (),
) -> page.Page:
    """Return the page of recorded traffic, with load, waits and clients.

    Args:
        measured: Name of the recorded latency, such as "time to first token", or "".
        sections: More sections, which follow the section on clients.
    """
    said = list(traffic_lines(found, "in the log", measured)) or [NOBODY]
    overload = None if found.floods or measured != TTFT else overload_of(found.traffic)
    if overload is not None:
        said.append(overload_line(found.traffic, overload, "in the log"))
    if not measured:
        said.append("The file has no latencies, so waits are not known.")
    return page.Page(
        title=_title(name, found, overloaded=overload is not None),
        provenance=provenance,
        headlines=list(_log_cards(found, measured)),
        warnings=warnings,
        sections=[
            page.Section("Floods and waits over time", [page.Bullets(said)]),
            *page.filled("Load and waits", list(traffic_figures(found, measured))),
            page.Section("Clients", list(_client_rows(found.traffic, measured))),
            *sections,
        ],
    )


def _title(name: str, found: JudgedTraffic, *, overloaded: bool) -> str:
    if not found.floods:
        also = ", but the servers are overloaded" if overloaded else ""
        return f"{printable(name)}: nobody floods{also}"
    verb = "floods" if len(found.heavy) == 1 else "flood"
    hurt = "" if found.harm is None else f", {len(found.harm.victims):,} clients wait"
    return f"{printable(name)}: {', '.join(map(printable, found.heavy))} {verb}{hurt}"


def _log_cards(found: JudgedTraffic, measured: str) -> Iterator[page.Headline]:
    traffic = found.traffic
    yield from flood_headlines(found)
    clients = f"of {len(traffic.clients):,} clients in {whole(traffic.span_s)} s"
    yield page.Headline("requests", f"{len(traffic.client):,}", clients)
    if traffic.span_s > 0:
        rate = float(traffic.tokens.sum()) / traffic.span_s
        since_s = traffic.arrival_s - traffic.arrival_s[0]
        tokens = np.bincount((since_s // PEAK_S).astype(np.int64), traffic.tokens)
        peak = float(tokens.max()) / min(PEAK_S, traffic.span_s)
        yield page.Headline("load, tok/s", whole(rate), f"busiest minute {whole(peak)}")
    if measured:
        known = traffic.wait_s[~np.isnan(traffic.wait_s)]
        p95 = _observed_percentile(known, 95)
        yield page.Headline(
            f"{measured}, P95",
            _wait(p95, " s"),
            f"median {_wait(_observed_percentile(known, 50), ' s')}",
        )


def _client_rows(traffic: Traffic, measured: str) -> Iterator[page.Grid | page.Paragraph]:
    tokens = traffic.client_tokens
    order = np.argsort(-tokens, kind="stable").tolist()
    rows = []
    for code in order[:MOST_ROWS]:
        own = traffic.client == code
        waits = traffic.wait_s[own & ~np.isnan(traffic.wait_s)]
        ranks = (
            [page.Cell(_wait(_observed_percentile(waits, rank))) for rank in (50, 95)]
            if measured
            else []
        )
        name, count = printable(traffic.clients[code]), f"{int(own.sum()):,}"
        share = percent(tokens[code] / tokens.sum())
        rows.append([page.Cell(name), page.Cell(count), page.Cell(share), *ranks])
    times = [f"{measured} P50, s", "P95, s"] if measured else []
    yield page.Grid(["client", "requests", "share of the load", *times], rows)
    if len(order) > MOST_ROWS:
        rest = tokens[order[MOST_ROWS:]].sum() / tokens.sum()
        yield page.Paragraph(
            f"And {len(order) - MOST_ROWS:,} more clients with {percent(rest)} of the load."
        )


def _wait(wait_s: float | None, unit: str = "") -> str:
    """Return a wait in seconds as text; an infinite wait means that the request failed."""
    return "failed" if wait_s == inf else f"{seconds(wait_s)}{unit}"


def _observed_percentile(waits: Floats, rank: int) -> float | None:
    if not len(waits):
        return None
    return float(np.percentile(waits, rank, method="inverted_cdf"))
