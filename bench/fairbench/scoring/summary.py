"""The summary and page of external records: metrics that the records allow in a window."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, nextafter
from typing import Any, Literal, NamedTuple

import numpy as np

from fairbench.errors import UsageError, unknown_name
from fairbench.metrics.catalogue import forget_needing
from fairbench.metrics.metric import Needs
from fairbench.metrics.records import Client, Facts, Programs, Requests, Service, Window
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import distribution
from fairbench.metrics.traffic import traffic_of
from fairbench.report.pages.log_page import log_page
from fairbench.report.pages.page import Definitions, Page, Paragraph, Section
from fairbench.report.result_lines import notes_of, results_of
from fairbench.report.traffic_lines import TTFT, judged
from fairbench.results.header import NOBODY_NAMED
from fairbench.schedulers.setup import checked_weights
from fairbench.scoring.records import Scored
from fairbench.targets import named_targets
from fairbench.tenants import with_tenants

NO_BOUND = "the scheduler of these records is not known"
NO_ADMISSION = "the records do not say when requests were admitted"
NO_CACHED = "the records do not say how many tokens were cached"


def scored_summary(
    scored: Scored,
    service: Service,
    window: ScoredWindow,
    *,
    misbehaving: Collection[str] = (),
    weights: Mapping[str, float] | None = None,
    goodput: Mapping[str, str] | None = None,
    latency: Literal["program", "ttft"] = "program",
    percentiles: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return every metric that the records allow; ``notes`` explains the others.

    ``weights`` are the clients' weights by name, 1 by default; ``goodput`` holds latency targets by
    LATENCY or CLIENT.LATENCY. Raises UsageError if a name in ``misbehaving``, ``weights`` or
    ``goodput`` is not a client, for an invalid weight, or for a multiple of a latency alone.
    """
    weights = checked_weights(weights or {})
    entitled = with_tenants(scored.clients)
    for flag, names, known in (
        ("misbehaving", misbehaving, scored.clients),
        ("weights", weights, entitled),
    ):
        for name in names:
            if name not in known:
                raise unknown_name(f"client in --{flag}", name, known)
    targets = named_targets(goodput or {}, scored.clients)
    if any(one.of_alone for one in targets.values()):
        raise UsageError(
            "--goodput: a target in x (a multiple of the latency on an idle replica) needs a "
            "timing profile; give a time, such as 500ms"
        )
    facts = Facts(
        clients=tuple(
            Client(name, name in misbehaving, weights.get(name, 1.0), targets[name])
            for name in scored.clients
        ),
        window=window.window,
        horizon_s=scored.horizon_s,
        workers=max(1, int(scored.requests.worker.max()) + 1),
        pool_tokens=0,
        latency=latency,
        bound_unavailable=NO_BOUND,
        percentiles=percentiles,
        tenant_weights=weights,
        failed=scored.failed,
    )
    tables = Tables(list(scored.clients), scored.requests, scored.programs, service)
    summary = summarize(tables, facts)
    if not scored.knows_admission:
        forget_needing(summary, Needs.ADMISSION, NO_ADMISSION)
    if not scored.knows_cached:
        forget_needing(summary, Needs.CACHED, NO_CACHED)
    if scored.gaps_s is not None:
        gaps = distribution("itl", scored.gaps_s)
        summary |= gaps
        for key in gaps:
            summary["notes"].pop(key, None)
    summary["notes"]["window_end_s"] = window.reason
    if not misbehaving and len(scored.clients) > 1:
        summary["notes"]["behaviour"] = NOBODY_NAMED
    if scored.remarks:
        summary["notes"]["records"] = "; ".join(scored.remarks)
    return {
        "layout": ", ".join(scored.layouts),
        "latency": latency,
        "began": None if scored.clock is None else scored.clock.iso,
        "bound_source": None,
        **summary,
    }


LEAST_SHARE = 0.1
"""The least fraction of the records' time that must lie before the end of the arrivals, and after
each client's first request; otherwise, a window that ends there could miss all of the service."""

ASKED = "as asked for"
ARRIVALS = "when the last request came, including that request"
SESSIONS = "at the last answer, since programs of several requests go on after they have come"
AT_ONCE = "at the last answer, because the requests came almost all at once"
NO_TIME = "where it begins, because nothing took any time after that"
LATE = "at the last answer, since a client came too late to be served before the last request came"


class ScoredWindow(NamedTuple):
    """A time window of records, and the reason for its end, as text for a reader."""

    window: Window
    reason: str


def scored_window(
    requests: Requests,
    programs: Programs,
    horizon_s: float,
    start_s: float | None,
    end_s: float | None,
) -> ScoredWindow:
    """Return the requested window, with defaults for missing ends.

    A window is half-open. The default end is therefore just after the last arrival, or just after
    the last answer, so that those last events count.

    Args:
        requests: All requests of the records.
        programs: The programs of these requests.
        horizon_s: When the last answer ended, seconds.
        start_s: The start that was asked for, seconds; None means 0.
        end_s: The end that was asked for, seconds; None means the default.
    """
    begin_s = start_s or 0.0
    if end_s is not None:
        return ScoredWindow(Window(begin_s, end_s), ASKED)
    if horizon_s <= begin_s:
        return ScoredWindow(Window(begin_s, begin_s), NO_TIME)
    last_s = float(requests.arrival_s.max())
    least_s = LEAST_SHARE * (horizon_s - begin_s)
    if (programs.requests > 1).any():
        reason = SESSIONS
    elif last_s - begin_s <= least_s:
        reason = AT_ONCE
    elif _came_too_late(requests, last_s, least_s):
        reason = LATE
    else:
        return ScoredWindow(Window(begin_s, nextafter(last_s, inf)), ARRIVALS)
    return ScoredWindow(Window(begin_s, nextafter(horizon_s, inf)), reason)


def _came_too_late(requests: Requests, last_s: float, least_s: float) -> bool:
    """Return whether a client first sent shortly before the end and was served later."""
    _, first = np.unique(requests.client, return_index=True)  # requests are in order of arrival
    late = requests.client[first][requests.arrival_s[first] > last_s - least_s]
    served_s = requests.first_token_s
    in_time = np.unique(requests.client[served_s <= last_s])
    answered = np.unique(requests.client[~np.isnan(served_s)])
    return bool(np.isin(late, np.setdiff1d(answered, in_time)).any())


def score_page(scored: Scored, summary: dict[str, Any], names: Sequence[str]) -> Page:
    """Return the page of records and of their summary.

    Args:
        scored: Records, with their clients.
        summary: Summary of the records.
        names: Names of the files, for the title.
    """
    traffic = traffic_of(scored.clients, scored.requests, scored.horizon_s)
    traffic = traffic._replace(clock=scored.clock)
    sections = []
    if summary["num_programs"]:
        sections.append(Section("Results", [Definitions(list(results_of(summary)))]))
    notes = [Paragraph(text) for _, text in notes_of(summary)]
    if notes:
        sections.append(Section("Metrics without a value, and the reason", notes, folded=True))
    provenance = f"Scored from records ({summary['layout']})."
    return log_page(", ".join(names), provenance, judged(traffic), TTFT, sections=sections)
