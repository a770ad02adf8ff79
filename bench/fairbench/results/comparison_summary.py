"""Comparison metrics of a summary: shares of the best total, and sharing incentives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.metrics.fairness import max_min
from fairbench.metrics.metric import NOT_CONTENDED
from fairbench.results.sharing import LIVE, PERCENTS, Bound, Incentive, incentive, worst
from fairbench.results.store import Summary
from fairbench.results.sweep_store import AloneRows


def compared_summary(
    summary: Summary, best: float, alone: AloneRows, *, contended: bool = True
) -> dict[str, Any]:
    """Return a summary with the metrics that only a comparison can provide.

    ``best_service_rate_tok_s`` is ``best``, the most that any scheduler delivered at this
    configuration and seed. ``min_entitlement_best_ratio`` is the worst client's fraction of its
    max-min fair share of that. ``sharing_incentive_p50``, ``_p95`` and ``_p99`` are those of
    the worst-off well-behaved client. Each client gets ``entitlement_best_tok_s``,
    ``entitlement_best_ratio`` and the incentives. Ratios of fair shares are undefined unless
    the configuration was ``contended`` under some scheduler. ``upper_bounds`` lists incentives
    that are upper bounds; lower bounds are in ``censored``. Reasons for nulls are in ``notes``.
    """
    notes, censored = dict(summary["notes"]), list(summary["censored"])
    upper_bounds: list[str] = []

    def noted(key: str, ratio: Incentive) -> float | None:
        if ratio.value is None:
            notes[key] = ratio.reason
        elif ratio.bound is not Bound.EXACT:
            (censored if ratio.bound is Bound.LOWER else upper_bounds).append(key)
        return ratio.value

    clients = _entitled(summary["clients"], best)
    if not contended:
        notes["min_entitlement_best_ratio"] = NOT_CONTENDED
        for client in clients:
            client["entitlement_best_ratio"] = None
            notes[f"clients.{client['client']}.entitlement_best_ratio"] = NOT_CONTENDED
    incentives = {percent: _incentives(summary, alone, percent) for percent in PERCENTS}
    for client in clients:
        for percent, ratios in incentives.items():
            key, name = f"sharing_incentive_p{percent}", client["client"]
            ratio = ratios.get(name, Incentive(None, reason="it misbehaves"))
            client[key] = noted(f"clients.{name}.{key}", ratio)
    shares = [one["entitlement_best_ratio"] for one in clients]
    additions = {
        "best_service_rate_tok_s": best,
        "min_entitlement_best_ratio": min((s for s in shares if s is not None), default=None),
    }
    for percent, ratios in incentives.items():
        key = f"sharing_incentive_p{percent}"
        additions[key] = noted(key, worst(list(ratios.values())))
    lists = {"clients": clients, "notes": notes, "censored": censored, "upper_bounds": upper_bounds}
    return {**summary, **additions, **lists}


def _entitled(clients: Sequence[Mapping[str, Any]], best: float) -> list[dict[str, Any]]:
    """Return the clients' rows with their max-min fair shares of the best total, in tokens/s."""
    entitlement = max_min(
        best,
        [client["demand_tok_s"] or 0.0 for client in clients],
        [client.get("weight", 1.0) for client in clients],
    )
    return [
        {
            **client,
            "entitlement_best_tok_s": float(share),
            "entitlement_best_ratio": (client["service_rate_tok_s"] or 0.0) / float(share)
            if share > 0
            else None,
        }
        for client, share in zip(clients, entitlement, strict=True)
    ]


def _incentives(summary: Summary, alone: AloneRows, percent: int) -> dict[str, Incentive]:
    """Return the sharing incentive of each well-behaved client, by name."""
    rows = {row["client"]: row for row in alone}
    good = [client for client in summary["clients"] if not client["misbehaving"]]
    if not summary["simulated"]:
        return {client["client"]: Incentive(None, reason=LIVE) for client in good}
    return {
        client["client"]: incentive(
            client,
            rows.get(client["client"]),
            percent,
            censored=f"clients.{client['client']}.p{percent}_s" in summary["censored"],
        )
        for client in good
    }
