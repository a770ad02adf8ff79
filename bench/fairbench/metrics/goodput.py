"""Goodput: the requests that met their clients' latency targets, and their service.

Rates count the requests that finished in the window. All other metrics follow the programs that
arrived in the window to the end of the run: unfinished requests missed their targets, and so did
requests that an ended program never sent, because a starved client sends less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbench.metrics.arrays import in_order
from fairbench.metrics.catalogue import CLIENTS, Notes, Part
from fairbench.metrics.fairness import entitlement_ratios, jain
from fairbench.metrics.max_min import max_min
from fairbench.metrics.records import FINISHED, Facts, Floats, Ints, Programs, Requests
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import ratio
from fairbench.targets import Alone, RequestCosts, Targets, alone

TICK_S = 1e-9  # rounding error: a smaller delay counts as in time


def slack_of(requests: Requests, targets: Targets, costs: RequestCosts | None) -> Floats:
    """Return the slack of one client's requests to their tightest target, in seconds.

    The slack is negative if the target was missed, and NaN for unfinished requests; for ``tpot`` it
    covers all tokens together, and is infinite for a single token. ``costs`` gives latencies on an
    idle replica.
    """
    ttft_s = requests.first_token_s - requests.arrival_s
    e2el_s = requests.finish_s - requests.arrival_s
    gaps = np.maximum(requests.output_tokens - 1, 0)
    alone_s = _alone(requests, costs) if targets.of_alone else None
    slack = np.full(len(requests), np.inf)
    for name, target in targets.given():
        usual = np.zeros(len(requests)) if alone_s is None else alone_s[f"{name}_s"]
        limit = np.array([target.seconds(one) for one in usual.tolist()])
        if name == "ttft":
            left = limit - ttft_s
        elif name == "tpot":
            left = limit * gaps - (requests.finish_s - requests.first_token_s)
            left[gaps == 0] = np.inf
        else:
            left = limit - e2el_s
        slack = np.minimum(slack, left)
    slack[requests.status != FINISHED] = np.nan
    return slack


def _alone(requests: Requests, costs: RequestCosts | None) -> dict[str, Floats]:
    """Return the latencies of each request on an idle replica, by name."""
    assert costs is not None, "multiples of the latency alone need a timing profile"
    sizes = zip(requests.input_tokens.tolist(), requests.output_tokens.tolist(), strict=True)
    each = np.array([alone(costs, *size) for size in sizes]).reshape(-1, len(Alone._fields))
    return dict(zip(Alone._fields, each.T, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class ClientGoodput:
    """Counts of one client.

    ``in_window*`` count requests that finished in the window within their targets, and their
    weighted tokens in the client view. The other counts cover the window's programs: ``asked*`` is
    their demand, ``met*`` the part of it within the targets; ``computed`` are tokens of prompts
    (without cached ones, with recomputed ones) and outputs, ``wasted`` those of requests that
    missed; ``slack_s`` has the slack of every finished request that has one.
    """

    in_window: int
    in_window_tokens: int
    asked: int
    asked_tokens: int
    met: int
    met_tokens: int
    computed: int
    wasted: int
    slack_s: Floats


def client_goodput(tables: Tables, facts: Facts, which: Sequence[int]) -> Iterator[ClientGoodput]:
    """Yield the goodput counts of the clients with these indices."""
    clients = len(facts.clients)
    programs, program_bounds = in_order(tables.programs.client, clients)
    requests, request_bounds = in_order(tables.requests.client, clients)
    for index in which:
        own = programs[program_bounds[index] : program_bounds[index + 1]]
        made = requests[request_bounds[index] : request_bounds[index + 1]]
        targets = facts.clients[index].targets
        yield _counted(tables.programs.take(own), tables.requests.take(made), targets, facts)


def _counted(programs: Programs, own: Requests, targets: Targets, facts: Facts) -> ClientGoodput:
    weights = facts.weights
    chosen = programs.take(facts.window.holds(programs.arrival_s))
    slack_s = slack_of(own, targets, facts.costs)
    met = slack_s >= -TICK_S
    tokens: Ints = weights.extend * own.input_tokens + weights.output * own.output_tokens
    computed = own.extend_tokens + own.recompute_tokens + own.output_tokens
    in_window = met & facts.window.holds(own.finish_s)
    ours = np.isin(own.program_id, chosen.program_id)
    met_tokens = int(tokens[met & ours].sum())
    demand = weights.extend * chosen.demand_input_tokens
    demand = demand + weights.output * chosen.demand_output_tokens
    return ClientGoodput(
        in_window=int(np.count_nonzero(in_window)),
        in_window_tokens=int(tokens[in_window].sum()),
        asked=int(np.maximum(chosen.demand_requests, chosen.requests).sum()),
        asked_tokens=max(int(demand.sum()), met_tokens),
        met=int(np.count_nonzero(met & ours)),
        met_tokens=met_tokens,
        computed=int(computed[ours].sum()),
        wasted=int(computed[ours & ~met].sum()),
        slack_s=slack_s[ours & np.isfinite(slack_s)],
    )


NAN = float("nan")


def goodput(tables: Tables, facts: Facts, notes: Notes) -> Part:
    """Return the goodput in the window, and that of each class.

    Precondition: some clients have targets.
    """
    promised = [index for index, one in enumerate(facts.clients) if one.targets]
    each = list(client_goodput(tables, facts, promised))
    length_s = facts.window.length_s
    run: dict[str, Any] = {
        **notes.values(_rates(each, length_s)),
        **notes.values(_spread(each, facts, promised)),
        **notes.values(_slack(each)),
        **_waste(each, notes),
    }
    clients: list[dict[str, Any]] = [{} for _ in facts.clients]
    for index, one in zip(promised, each, strict=True):
        client = facts.clients[index]
        clients[index] = {"goodput_targets": str(client.targets)}
        if client.service_class:
            clients[index]["goodput_class"] = client.service_class
        clients[index] |= notes.values(_rates([one], length_s), f"{CLIENTS}{client.name}.")
    if classes := _classes(facts, promised, each, length_s):
        run["goodput_classes"] = classes
    return Part(run, clients)


def _rates(counts: Sequence[ClientGoodput], length_s: float) -> dict[str, float]:
    met, asked = sum(one.met for one in counts), sum(one.asked for one in counts)
    return {
        "goodput_req_s": ratio(sum(one.in_window for one in counts), length_s),
        "goodput_tok_s": ratio(sum(one.in_window_tokens for one in counts), length_s),
        "goodput_ratio": ratio(met, asked),
    }


def _spread(each: Sequence[ClientGoodput], facts: Facts, promised: list[int]) -> dict[str, float]:
    weight = facts.client_weights[promised]
    rates = np.array([one.in_window_tokens for one in each], dtype=np.float64)
    got = np.array([one.met_tokens for one in each], dtype=np.float64)
    asked = np.array([one.asked_tokens for one in each], dtype=np.float64)
    shares = entitlement_ratios(got, max_min(float(got.sum()), asked, weight))
    parts = [ratio(one.met, one.asked) for one in each if one.asked]
    return {
        "goodput_min_ratio": min(parts, default=NAN),
        "goodput_jain_index": jain(rates / weight),
        "goodput_worst_share": float(np.nanmin(shares)) if np.any(shares >= 0) else NAN,
    }


def _slack(each: Sequence[ClientGoodput]) -> dict[str, float]:
    """Return the median time left of requests in time, and the median excess of others."""
    slack = np.concatenate([one.slack_s for one in each])
    in_time = slack >= -TICK_S
    return {
        "goodput_slack_p50_s": _median(np.maximum(slack[in_time], 0.0)),
        "goodput_late_p50_s": _median(-slack[~in_time]),
    }


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else NAN


def _waste(counts: Sequence[ClientGoodput], notes: Notes) -> dict[str, float]:
    """Return the tokens computed for requests that missed, and their fraction of all."""
    wasted, computed = sum(one.wasted for one in counts), sum(one.computed for one in counts)
    share = notes.value("goodput_wasted_ratio", ratio(wasted, computed))
    return {"goodput_wasted_tokens": wasted, "goodput_wasted_ratio": share}


def _classes(
    facts: Facts, promised: list[int], each: list[ClientGoodput], length_s: float
) -> list[dict[str, Any]]:
    members: dict[str, list[ClientGoodput]] = {}
    for index, one in zip(promised, each, strict=True):
        if name := facts.clients[index].service_class:
            members.setdefault(name, []).append(one)
    return [
        {"class": name, "clients": len(counts), **_rates(counts, length_s)}
        for name, counts in members.items()
    ]
