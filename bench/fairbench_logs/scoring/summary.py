"""Summaries of other tools' records and of stored runs, over a time window."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, nextafter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fairbench.config.resolve import read_spec
from fairbench.core import ServiceBound
from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.metrics import records
from fairbench.metrics.catalogue import forget_metrics, forget_needing, needing
from fairbench.metrics.metric import Needs
from fairbench.metrics.optional_entries import STALLS
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.metrics.traffic import traffic_of
from fairbench.report.pages.page import Definitions, Page, Paragraph, Section
from fairbench.report.pages.run_page import session_section, stall_section
from fairbench.report.result_lines import notes_of, results_of
from fairbench.report.traffic_lines import TTFT, judged
from fairbench.results.run_facts import cluster_bound, read_tables, stored_facts
from fairbench.results.store import EXPERIMENT, SUMMARY, read_run
from fairbench.results.summary import NOBODY_NAMED, check_whole
from fairbench.schedulers.base import checked_weights
from fairbench.schedulers.registry import build_local, build_router
from fairbench.targets import named_targets
from fairbench.tenants import with_tenants
from fairbench_logs.scoring.records import Scored
from fairbench_logs.traffic_page import traffic_page

NO_BOUND = "the scheduler of these records is not known"
NO_ADMISSION = "the records do not say when requests were admitted"
NO_CACHED = "the records do not say how many tokens were cached"


def scored_summary(
    scored: Scored,
    service: records.Service,
    window: ScoredWindow,
    *,
    misbehaving: Collection[str] = (),
    weights: Mapping[str, float] | None = None,
    goodput: Mapping[str, str] | None = None,
    latency: Literal["program", "ttft"] = "program",
    percentiles: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return every metric that the records allow; ``notes`` explains missing values.

    Raises UsageError for an unknown client, an invalid weight, or a latency target in multiples of
    the latency on an idle replica.

    Args:
        scored: The records.
        service: The service log of the records.
        window: The period of time for which metrics are computed.
        misbehaving: Names of the clients that count as heavy; all others count as well-behaved.
        weights: Weights by name of a client or tenant; the default weight is 1.
        goodput: Latency targets; each key is the name of a latency, or CLIENT.LATENCY.
        latency: The latency to report: "program" for whole programs, "ttft" for first tokens.
        percentiles: Percentiles that replace the default percentiles; () keeps the defaults.
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
            "--goodput: a target such as 3x (3 times the latency on an idle replica) needs a "
            "timing profile; give a time, such as 500ms"
        )
    facts = records.Facts(
        clients=tuple(
            records.Client(name, name in misbehaving, weights.get(name, 1.0), targets[name])
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
        sessions=bool((scored.programs.requests > 1).any()),
    )
    tables = Tables(list(scored.clients), scored.requests, scored.programs, service)
    summary = summarize(
        tables,
        facts,
        records.Measurements(
            gaps_s=scored.gaps_s, token_gaps=scored.token_gaps, sessions=scored.sessions
        ),
    )
    if not scored.knows_admission:
        forget_needing(summary, Needs.ADMISSION, NO_ADMISSION)
    if not scored.knows_cached:
        forget_needing(summary, Needs.CACHED, NO_CACHED)
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


# The scored window ends with the last arrival if arrivals span more than 10% of the time of all
# records. The scored window ends later if a client is served only after the last arrival, because
# the window must contain service of every client.
LEAST_SHARE = 0.1

ASKED = "as requested"
ARRIVALS = "when the last request came, including that request"
SESSIONS = (
    "at the last answer, because programs of several requests continue after the last arrival"
)
AT_ONCE = "at the last answer, because almost all requests arrived at the same time"
NO_TIME = "at the window's start, because no request took any time after the start"
LATE = "at the last answer, because a client came too late to be served before the last arrival"


class ScoredWindow(NamedTuple):
    """A time window, and a text that explains the end of the window."""

    window: records.Window
    reason: str


def scored_window(
    requests: records.Requests,
    programs: records.Programs,
    horizon_s: float,
    start_s: float | None,
    end_s: float | None,
) -> ScoredWindow:
    """Return the time window that metrics cover; the user's start and end override the defaults.

    The window excludes its end time, so the default end is just after the last arrival or the last
    answer.

    Args:
        requests: All requests in the records.
        programs: All programs in the records.
        horizon_s: The time in seconds at which the last answer ends.
        start_s: The start (s) of the window that the user requested; None means 0.
        end_s: The end (s) of the window that the user requested, or None.
    """
    begin_s = start_s or 0.0
    if end_s is not None:
        return ScoredWindow(records.Window(begin_s, end_s), ASKED)
    if horizon_s <= begin_s:
        return ScoredWindow(records.Window(begin_s, begin_s), NO_TIME)
    last_s = float(requests.arrival_s.max())
    least_s = LEAST_SHARE * (horizon_s - begin_s)
    if (programs.requests > 1).any():
        reason = SESSIONS
    elif last_s - begin_s <= least_s:
        reason = AT_ONCE
    elif _came_too_late(requests, last_s, least_s):
        reason = LATE
    else:
        return ScoredWindow(records.Window(begin_s, nextafter(last_s, inf)), ARRIVALS)
    return ScoredWindow(records.Window(begin_s, nextafter(horizon_s, inf)), reason)


def _came_too_late(requests: records.Requests, last_s: float, least_s: float) -> bool:
    """Return whether some client was first served only after the last arrival of any request.

    Clients that first arrive more than ``least_s`` seconds before the last arrival ``last_s`` are
    ignored. Requests must be sorted by arrival.
    """
    _, first = np.unique(requests.client, return_index=True)
    late = requests.client[first][requests.arrival_s[first] > last_s - least_s]
    served_s = requests.first_token_s
    in_time = np.unique(requests.client[served_s <= last_s])
    answered = np.unique(requests.client[~np.isnan(served_s)])
    return bool(np.isin(late, np.setdiff1d(answered, in_time)).any())


def score_page(scored: Scored, summary: dict[str, Any], names: Sequence[str]) -> Page:
    """Return a report page on the metrics of request records.

    Args:
        scored: The records.
        summary: The metrics of all request records, by key.
        names: File names, which appear in the page's title.
    """
    traffic = traffic_of(scored.clients, scored.requests, scored.horizon_s)
    traffic = traffic._replace(clock=scored.clock)
    sections = []
    if summary["num_programs"]:
        sections.append(Section("Results", [Definitions(list(results_of(summary)))]))
    sections += [*session_section(summary), *stall_section(summary)]
    notes = [Paragraph(text) for _, text in notes_of(summary)]
    if notes:
        sections.append(Section("Metrics without a value, and the reason", notes, folded=True))
    provenance = f"Scored from records ({summary['layout']})."
    return traffic_page(", ".join(names), provenance, judged(traffic), TTFT, sections=sections)


def score_run(
    path: Path, start_s: float | None, end_s: float | None, percentiles: tuple[int, ...] = ()
) -> tuple[dict[str, Any], records.Requests]:
    """Compute a stored run's summary for the given window; return it with the run's requests.

    Facts that the stored requests lack, such as the workload, are copied from the stored summary.
    Raises DataError if the directory is not a run, or if its files were changed.

    Args:
        path: The directory of the stored run.
        start_s: Start of the measurement window (s); None keeps the run's start.
        end_s: End of the measurement window (s); None keeps the run's end.
        percentiles: Percentiles that replace the run's percentiles; () keeps the run's percentiles.
    """
    run = read_run(path)
    check_whole(run.summary, path / SUMMARY)
    tables, stored = read_tables(run), run.summary
    window = records.Window(
        stored["window_start_s"] if start_s is None else start_s,
        stored["window_end_s"] if end_s is None else end_s,
    )
    bound, reason = _bound(path, stored)
    scored = summarize(tables, stored_facts(run, window, bound, reason, percentiles))
    if not stored["simulated"]:
        _keep_measurements(scored, stored)
    remarks = {
        key: why
        for key, why in stored["notes"].items()
        if (key not in scored and not key.startswith("clients."))
    }
    notes = {**scored["notes"], **remarks}
    # ``limit_ratio`` keeps its stored value, because the tables alone do not determine this value.
    if "limit_ratio" in stored:
        notes.pop("limit", None)
    return {**stored, **scored, "notes": notes}, tables.requests


def _bound(path: Path, stored: Mapping[str, Any]) -> tuple[ServiceBound | None, str]:
    """Return the proven bound on the service gap of a stored run, or None and the reason."""
    if stored["bound_source"] is None:
        return None, stored["notes"]["bound_source"]
    spec = read_spec(path / EXPERIMENT)
    known = {"workload": spec.workload.name, "scheduler": spec.scheduler, "router": spec.router}
    for key, value in {**known, "local": spec.local, "dp": spec.dp, "seed": spec.seed}.items():
        if value != stored[key]:
            raise DataError(
                f"{path / EXPERIMENT}: {key} = {value!r}: must be {stored[key]!r}, as in {SUMMARY}"
            )
    router = build_router(spec.router, spec.settings, spec.dp)
    return cluster_bound(router, build_local(spec.local, spec.settings), spec.dp)


def _keep_measurements(scored: dict[str, Any], stored: Mapping[str, Any]) -> None:
    """Copy metrics of token gaps, stalls and queueing from the stored summary."""
    for key in [key for key in scored if key.endswith("_itl_ms")]:
        scored[key] = stored[key]
        scored["notes"].pop(key, None)
    if "stall_causes" in stored:
        scored["notes"].pop("stalls", None)
        for row, kept in zip(scored["clients"], stored["clients"], strict=True):
            row |= {one.key: kept[one.key] for one in STALLS if one.key in kept}
    for key in dict.fromkeys([*needing(Needs.ADMISSION), *needing(Needs.CACHED)]):
        if stored.get(key, 0) is None and key in stored["notes"]:
            forget_metrics(scored, [key], stored["notes"][key])
