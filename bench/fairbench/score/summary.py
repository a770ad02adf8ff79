"""The summary of external records: the metrics that the records allow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from fairbench.errors import UsageError, unknown_name
from fairbench.metrics.metric import Needs
from fairbench.metrics.notes import forget_needing
from fairbench.metrics.records import Client, Facts, Service
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import distribution
from fairbench.results.run_facts import metrics_of
from fairbench.schedulers.setup import checked_weights
from fairbench.score.records import Scored
from fairbench.score.window import ScoredWindow
from fairbench.targets import named_targets
from fairbench.tenants import with_tenants

NO_BOUND = "the scheduler of these records is not known"
NO_ADMISSION = "the records do not say when requests were admitted"
NO_CACHED = "the records do not say how many tokens were cached"


NOBODY_NAMED = (
    "every client counts as well-behaved, because --misbehaving names none; "
    "`fairbench diagnose` finds heavy clients"
)


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

    ``weights`` are the clients', by name, 1 where none is given; ``goodput`` holds latency targets
    by LATENCY or CLIENT.LATENCY. Raises UsageError if a name in ``misbehaving``, ``weights`` or
    ``goodput`` is no client, for an invalid weight, or for a multiple of a latency alone.
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
    )
    tables = Tables(list(scored.clients), scored.requests, scored.programs, service)
    summary = metrics_of(tables, facts)
    if not scored.knows_admission:
        forget_needing(summary, Needs.ADMISSION, NO_ADMISSION)
    if not scored.knows_cached:
        forget_needing(summary, Needs.CACHED, NO_CACHED)
    if scored.gaps_s is not None:
        gaps = distribution("itl", scored.gaps_s)
        summary |= gaps
        for key in gaps:
            summary["notes"].pop(key, None)
    summary["failed"] = scored.failed
    summary["refused"] -= scored.failed
    summary["notes"]["window_end_s"] = window.reason
    if not misbehaving and len(scored.clients) > 1:
        summary["notes"]["behaviour"] = NOBODY_NAMED
    if scored.remarks:
        summary["notes"]["records"] = "; ".join(scored.remarks)
    return {
        "layout": ", ".join(scored.layouts),
        "latency": latency,
        "bound_source": None,
        **summary,
    }
