"""What some clients got of what they asked for, when part of what they asked for is padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.records import FINISHED
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.tables import Tables


class Party(NamedTuple):
    """Useful service up to some time: input and twice the output, without padding, in tokens.

    ``due`` is what all programs that had come by then ask for, ``programs`` how many they are and
    ``finished`` how many were over.
    """

    served: float
    due: float
    programs: int
    finished: int

    @property
    def fraction(self) -> float:
        """The part of what was due that was served; NaN if nothing was."""
        return self.served / self.due if self.due else float("nan")

    @property
    def programs_served(self) -> float:
        """What was served in programs of the mean size, parts of programs included."""
        return self.fraction * self.programs if self.due else 0.0


def party(tables: Tables, padding: Mapping[int, int], end_s: float) -> Party:
    """What clients got before ``end_s``, from the service log; ``padding``: client -> tokens.

    Each of a client's requests has so many tokens of padding, which are of no use to it.
    """
    weights, clients = ServiceWeights(), np.array(sorted(padding), dtype=np.int64)
    waste = np.zeros(len(tables.clients))
    for client, tokens in padding.items():
        waste[client] = weights.extend * tokens
    times = np.array([end_s])
    booked = cumulative(tables.service, View.CLIENT, times, len(tables.clients), weights)[:, 0]
    requests = tables.requests
    begun = np.isin(requests.client, clients) & (requests.admitted_s < end_s)
    programs = tables.programs
    own = programs.take(np.isin(programs.client, clients) & (programs.arrival_s < end_s))
    wanted = weights.extend * own.demand_input_tokens + weights.output * own.demand_output_tokens
    over = (own.status == FINISHED) & (own.finish_s < end_s)
    return Party(
        served=float(booked[clients].sum() - waste[requests.client[begun]].sum()),
        due=float((wanted - waste[own.client] * own.demand_requests).sum()),
        programs=len(own),
        finished=int(np.count_nonzero(over)),
    )
