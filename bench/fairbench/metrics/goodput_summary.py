"""The goodput part of a run's summary; empty if no client has latency targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairbench.metrics.catalogue import CLIENTS
from fairbench.metrics.fairness import entitlement_ratios, jain, max_min
from fairbench.metrics.goodput import TICK_S, ClientGoodput, client_goodput
from fairbench.metrics.notes import Notes
from fairbench.metrics.records import Facts, Floats
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import ratio

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput values by key: of the run, of each client, and of each class in a row."""

    run: Mapping[str, Any] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def goodput(tables: Tables, facts: Facts, notes: Notes) -> Goodput:
    """Return the goodput in the window; empty if there were no targets.

    Args:
        tables: Tables of the run's requests, programs and service.
        facts: Facts about the run that the tables do not contain.
        notes: Notes of the summary under construction, to which new ones are added.
    """
    promised = [index for index, one in enumerate(facts.clients) if any(one.targets.given())]
    if not promised:
        return Goodput()
    each = list(client_goodput(tables, facts, promised))
    length_s = facts.window.length_s
    run: dict[str, Any] = _rates(each, length_s, notes, "") | _spread(each, facts, promised, notes)
    run |= _slack(each, notes) | _waste(each, notes)
    clients = {}
    for index, one in zip(promised, each, strict=True):
        client = facts.clients[index]
        named = {"goodput_class": client.service_class} if client.service_class else {}
        clients[client.name] = {
            "goodput_targets": str(client.targets),
            **named,
            **_rates([one], length_s, notes, f"{CLIENTS}{client.name}."),
        }
    if classes := _classes(facts, promised, each, length_s):
        run["goodput_classes"] = classes
    return Goodput(run, clients)


def _rates(
    each: Iterable[ClientGoodput], length_s: float, notes: Notes | None, prefix: str
) -> dict[str, float]:
    """Return goodput per second of the window, and the fraction of requests in time."""
    counts = list(each)
    met, asked = sum(one.met for one in counts), sum(one.asked for one in counts)
    values = {
        "goodput_req_s": ratio(sum(one.in_window for one in counts), length_s),
        "goodput_tok_s": ratio(sum(one.in_window_tokens for one in counts), length_s),
        "goodput_ratio": ratio(met, asked),
    }
    for key, value in values.items():
        if notes is not None:
            notes.value(prefix + key, value)
    return values


def _spread(
    each: Sequence[ClientGoodput], facts: Facts, promised: list[int], notes: Notes
) -> dict[str, float]:
    """Return how evenly goodput is spread over the clients with targets."""
    weight = facts.client_weights[promised]
    rates = np.array([one.in_window_tokens for one in each], dtype=np.float64)
    got = np.array([one.met_tokens for one in each], dtype=np.float64)
    asked = np.array([one.asked_tokens for one in each], dtype=np.float64)
    shares = entitlement_ratios(got, max_min(float(got.sum()), asked, weight))
    parts = [ratio(one.met, one.asked) for one in each if one.asked]
    values = {
        "goodput_min_ratio": min(parts, default=NAN),
        "goodput_jain_index": jain(rates / weight),
        "goodput_worst_share": float(np.nanmin(shares)) if np.any(shares >= 0) else NAN,
    }
    return {key: notes.value(key, value) for key, value in values.items()}


def _slack(each: Iterable[ClientGoodput], notes: Notes) -> dict[str, float]:
    """Return the median time left of requests in time, and the median excess of others."""
    slack = np.concatenate([one.slack_s for one in each])
    in_time = slack >= -TICK_S
    values = {
        "goodput_slack_p50_s": _median(np.maximum(slack[in_time], 0.0)),
        "goodput_late_p50_s": _median(-slack[~in_time]),
    }
    return {key: notes.value(key, value) for key, value in values.items()}


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else NAN


def _waste(each: Iterable[ClientGoodput], notes: Notes) -> dict[str, float]:
    """Return the tokens computed for requests that missed, and their fraction of all."""
    counts = list(each)
    wasted, computed = sum(one.wasted for one in counts), sum(one.computed for one in counts)
    share = notes.value("goodput_wasted_ratio", ratio(wasted, computed))
    return {"goodput_wasted_tokens": wasted, "goodput_wasted_ratio": share}


def _classes(
    facts: Facts, promised: list[int], each: list[ClientGoodput], length_s: float
) -> list[dict[str, Any]]:
    """Return a row per class, with None for NaN."""
    members: dict[str, list[ClientGoodput]] = {}
    for index, one in zip(promised, each, strict=True):
        if name := facts.clients[index].service_class:
            members.setdefault(name, []).append(one)
    return [
        {"class": name, "clients": len(counts)}
        | {k: v if v == v else None for k, v in _rates(counts, length_s, None, "").items()}
        for name, counts in members.items()
    ]
