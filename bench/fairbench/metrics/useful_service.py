"""Useful service of each client relative to its demand; both exclude padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.catalogue import CLIENTS, Notes
from fairbench.metrics.records import FINISHED, PLAIN, Facts, Floats, Padding, Window
from fairbench.metrics.service import booked_in
from fairbench.metrics.tables import Tables


class GroupService(NamedTuple):
    """Useful service until some time: input and twice the output, without padding.

    ``due`` is the demand of all programs that had arrived by then, ``programs`` their number and
    ``finished`` the number that had ended.
    """

    served: float
    due: float
    programs: int
    finished: int

    @property
    def fraction(self) -> float:
        """The fraction of the due service that was served; NaN if none was due."""
        return self.served / self.due if self.due else float("nan")

    @property
    def programs_served(self) -> float:
        """The service in programs of the mean size, including parts of programs."""
        return self.fraction * self.programs if self.due else 0.0


def group_service(tables: Tables, padding: Mapping[int, Padding], end_s: float) -> GroupService:
    """Return the service of the clients of ``padding`` before ``end_s``, from the log.

    The start of an overlong answer counts as much as its end, since a program can use the answer
    only when it is complete.
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
    """Return each client's useful service in the half-open window, in tokens.

    Clients that are not in ``padding`` need everything they request.
    """
    served, padded = _served(tables, padding, window, weights)
    return served - padded


def _served(
    tables: Tables, padding: Mapping[int, Padding], window: Window, weights: ServiceWeights
) -> tuple[Floats, Floats]:
    """Return the service of each client with useful outputs only, and its padding."""
    count = len(tables.clients)
    waste, output = _prices(padding, count, weights)
    booked = booked_in(tables.service, window, count)
    begun = window.holds(tables.requests.admitted_s)
    padded = waste * np.bincount(tables.requests.client[begun], minlength=count)
    return weights.extend * booked.input + output * booked.output, padded


def _prices(
    padding: Mapping[int, Padding], count: int, weights: ServiceWeights
) -> tuple[Floats, Floats]:
    """Return the weight of padding in each request of a client, and of an output token."""
    waste, output = np.zeros(count), np.full(count, float(weights.output))
    for client, one in padding.items():
        waste[client] = weights.extend * one.input_tokens
        output[client] = weights.output / one.output_multiple
    return waste, output


KEY = "useful_service_tok_s"


def useful_service(tables: Tables, facts: Facts, notes: Notes) -> list[dict[str, Any]]:
    """Return each client's useful rate in the window, and its padding."""
    padding = {index: client.padding for index, client in enumerate(facts.clients)}
    served = useful(tables, padding, facts.window, facts.weights)
    length_s = facts.window.length_s or float("nan")
    rows: list[dict[str, Any]] = []
    for client, tokens in zip(facts.clients, served.tolist(), strict=True):
        rate = notes.values({KEY: tokens / length_s}, f"{CLIENTS}{client.name}.")
        rows.append({**rate, **told(client.padding._asdict())})
    return rows


def told(padding: Mapping[str, int]) -> dict[str, int]:
    """Return the padding for a row of a summary, without zero entries."""
    plain = PLAIN._asdict()
    names = {"input_tokens": "padding_tokens"}
    return {names.get(key, key): one for key, one in padding.items() if one != plain[key]}
