"""Goodput (the service of requests that meet their latency targets) and useful service.

Goodput per second counts the requests that finished in the window. Goodput metrics that are not
rates count all requests of the programs that arrived in the window, including requests that finish
after the window. Unfinished requests count as late. Requests that a program never sent also count
as late, because a starved client sends fewer requests.

Useful service excludes padding, that is, tokens that a heavy client requests but does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.arrays import in_order, ratio
from fairbench.metrics.fairness import entitlement_ratios, max_min
from fairbench.metrics.reasons import NAN
from fairbench.metrics.records import (
    FINISHED,
    PLAIN,
    Facts,
    Floats,
    Ints,
    Padding,
    Programs,
    Requests,
    Window,
)
from fairbench.metrics.service import booked_in
from fairbench.metrics.tables import Tables
from fairbench.targets import Alone, RequestCosts, Targets, alone

TICK_S = 1e-9  # Lateness below this many seconds is a rounding error and does not count.


def slack_of(requests: Requests, targets: Targets, costs: RequestCosts | None) -> Floats:
    """Return each request's slack in seconds, the lowest over all latency targets of its client.

    The slack is the time from an event, such as the first token, to the deadline of the event. The
    slack is negative if the target was missed, and NaN for unfinished requests. A ``tpot`` target
    sets a deadline for the last token, and no deadline for a request with a single token. ``costs``
    predicts a request's latencies on an idle replica.
    """
    ttft_s = requests.first_token_s - requests.arrival_s
    e2el_s = requests.finish_s - requests.arrival_s
    gaps = np.maximum(requests.output_tokens - 1, 0)
    alone_s: dict[str, Floats] = {}
    if targets.of_alone:
        assert costs is not None, "multiples of the latency alone need a timing profile"
        sizes = zip(requests.input_tokens.tolist(), requests.output_tokens.tolist(), strict=True)
        each = np.array([alone(costs, *size) for size in sizes]).reshape(-1, len(Alone._fields))
        alone_s = dict(zip(Alone._fields, each.T, strict=True))
    slack = np.full(len(requests), np.inf)
    for name, target in targets.given():
        usual = alone_s[f"{name}_s"] if alone_s else np.zeros(len(requests))
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


@dataclass(frozen=True, slots=True, eq=False)
class ClientGoodput:
    """The goodput of one client, counted in requests and in tokens.

    - ``in_window`` is the number of requests that finished in the window within their targets, and
      ``in_window_tokens`` is their weighted tokens.
    - ``asked`` is the number of requests that the window's programs demanded, and ``asked_tokens``
      is their weighted tokens.
    - ``met`` is the number of requests of the window's programs that met their targets, and
      ``met_tokens`` is the weighted tokens of these requests.
    - ``computed`` is the number of uncached prompt tokens, recomputed tokens and output tokens that
      were computed for the window's programs. ``wasted`` counts the computed tokens of late
      requests.
    - ``slack_s`` is the slack in seconds of each finished request whose slack is finite.
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
    """Yield the goodput of the clients with the indices ``which``."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Goodput:
    """The goodput of a run: ``counts`` holds the goodput of each client with latency targets.

    ``promised`` lists the indices of the clients with targets; ``weights`` lists their weights.
    ``length_s`` is the length of the measurement window in seconds.
    """

    counts: list[ClientGoodput]
    promised: list[int]
    clients: int
    length_s: float
    weights: Floats

    def by_client(self, value: Callable[[Sequence[ClientGoodput]], float]) -> list[float | None]:
        """Return ``value`` for each client, by client index; None if a client has no targets."""
        found: list[float | None] = [None] * self.clients
        for index, one in zip(self.promised, self.counts, strict=True):
            found[index] = value([one])
        return found

    def requests_per_s(self, counts: Sequence[ClientGoodput]) -> float:
        """Return how many requests per second finished in the window within their targets."""
        return ratio(sum(one.in_window for one in counts), self.length_s)

    def tokens_per_s(self, counts: Sequence[ClientGoodput]) -> float:
        """Return the weighted tokens per second of requests that met their targets."""
        return ratio(sum(one.in_window_tokens for one in counts), self.length_s)

    @property
    def client_shares(self) -> Floats:
        """Each client's tokens within latency targets, divided by its fair share."""
        got, asked = (
            np.array([getattr(one, field) for one in self.counts], dtype=np.float64)
            for field in ("met_tokens", "asked_tokens")
        )
        return entitlement_ratios(got, max_min(float(got.sum()), asked, self.weights))

    @property
    def slack_s(self) -> Floats:
        """The slack in seconds of every finished request whose slack is finite."""
        return np.concatenate([one.slack_s for one in self.counts])

    def classes(self, facts: Facts) -> list[dict[str, Any]]:
        """Return one row for each service class, with the goodput of the clients of the class."""
        members: dict[str, list[ClientGoodput]] = {}
        for index, one in zip(self.promised, self.counts, strict=True):
            if name := facts.clients[index].service_class:
                members.setdefault(name, []).append(one)
        return [
            {
                "class": name,
                "clients": len(counts),
                "goodput_req_s": self.requests_per_s(counts),
                "goodput_tok_s": self.tokens_per_s(counts),
                "goodput_ratio": met_ratio(counts),
            }
            for name, counts in members.items()
        ]


def goodput_of(tables: Tables, facts: Facts) -> Goodput:
    """Return the goodput of a run in its window. Precondition: at least one client has targets."""
    promised = [index for index, one in enumerate(facts.clients) if one.targets]
    return Goodput(
        list(client_goodput(tables, facts, promised)),
        promised,
        len(facts.clients),
        facts.window.length_s,
        facts.client_weights[promised],
    )


def met_ratio(counts: Sequence[ClientGoodput]) -> float:
    """Return the fraction of requests that met their targets; unsent requests count as missed."""
    return ratio(sum(one.met for one in counts), sum(one.asked for one in counts))


def median(values: Floats) -> float:
    """Return the median of the values, or NaN if there are no values."""
    return float(np.median(values)) if len(values) else NAN


class GroupService(NamedTuple):
    """The useful service that a group of clients received before a given time, in weighted tokens.

    ``served`` is the useful service of the clients before a time t. ``due`` is the demand, without
    padding, of all programs that the group's clients submitted before t. ``programs`` is the number
    of programs that arrived before t; ``finished`` is the number of programs that ended before t.
    """

    served: float
    due: float
    programs: int
    finished: int

    @property
    def fraction(self) -> float:
        """The fraction of due service that was served; NaN if no service was due."""
        return self.served / self.due if self.due else float("nan")

    @property
    def programs_served(self) -> float:
        """The useful service, expressed as a number of programs of mean size."""
        return self.fraction * self.programs if self.due else 0.0


def group_service(tables: Tables, padding: Mapping[int, Padding], end_s: float) -> GroupService:
    """Return the useful service of the clients in ``padding`` up to the time ``end_s``.

    If padding makes answers k times as long, each output token counts as 1/k useful token, because
    a program can use only complete answers.
    """
    weights, clients = ServiceWeights(), np.array(sorted(padding), dtype=np.int64)
    waste, output = _prices(padding, len(tables.clients), weights)
    served, padded = _served(tables, padding, Window(0.0, end_s), weights)
    programs = tables.programs
    own = programs.take(np.isin(programs.client, clients) & (programs.arrival_s < end_s))
    wanted = (
        weights.extend * own.demand_input_tokens + output[own.client] * own.demand_output_tokens
    )
    over = (own.status == FINISHED) & (own.finish_s < end_s)
    return GroupService(
        served=float(served[clients].sum() - padded[clients].sum()),
        due=float((wanted - waste[own.client] * own.demand_requests).sum()),
        programs=len(own),
        finished=int(np.count_nonzero(over)),
    )


def useful(
    tables: Tables, padding: Mapping[int, Padding], window: Window, weights: ServiceWeights
) -> Floats:
    """Return each client's service without padding in ``window``, in weighted tokens.

    ``padding`` maps client indices to padding. A client without an entry has no padding.
    """
    served, padded = _served(tables, padding, window, weights)
    return served - padded


def _served(
    tables: Tables, padding: Mapping[int, Padding], window: Window, weights: ServiceWeights
) -> tuple[Floats, Floats]:
    """Return each client's service without output padding, and the client's input padding.

    Padding means tokens that a client requests only to gain service. Both results are in weighted
    tokens.
    """
    count = len(tables.clients)
    waste, output = _prices(padding, count, weights)
    booked = booked_in(tables.service, window, count)
    begun = window.holds(tables.requests.admitted_s)
    padded = waste * np.bincount(tables.requests.client[begun], minlength=count)
    return weights.extend * booked.input + output * booked.output, padded


def _prices(
    padding: Mapping[int, Padding], count: int, weights: ServiceWeights
) -> tuple[Floats, Floats]:
    """Return each client's padding per prompt, and price per output token, in weighted tokens."""
    waste, output = np.zeros(count), np.full(count, float(weights.output))
    for client, one in padding.items():
        waste[client] = weights.extend * one.input_tokens
        output[client] = weights.output / one.output_multiple
    return waste, output


def padding_of(facts: Facts) -> dict[int, Padding]:
    """Return each client's padding, by the client's index in ``facts.clients``."""
    return {index: client.padding for index, client in enumerate(facts.clients)}


def padding_row(padding: Mapping[str, int]) -> dict[str, int]:
    """Return a client's padding as fields of the client's row in a summary."""
    plain = PLAIN._asdict()
    names = {"input_tokens": "padding_tokens"}
    return {names.get(key, key): one for key, one in padding.items() if one != plain[key]}
