"""What some clients got of what they asked for, when part of what they asked for is padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.records import FINISHED, Window
from fairbench.metrics.service import booked_in
from fairbench.metrics.tables import Tables


class Padding(NamedTuple):
    """What of a client's requests is of no use to it.

    So many tokens of each input, and all but one in ``output_multiple`` of its output.
    """

    input_tokens: int = 0
    output_multiple: int = 1


PLAIN = Padding()


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


def party(tables: Tables, padding: Mapping[int, Padding], end_s: float) -> Party:
    """What the clients of ``padding`` got before ``end_s``, from the service log.

    An answer that goes on is as useful at its beginning as at its end: a program has nothing of it
    until it is over.
    """
    weights, clients = ServiceWeights(), np.array(sorted(padding), dtype=np.int64)
    waste, output = np.zeros(len(tables.clients)), np.zeros(len(tables.clients))
    for client, one in padding.items():
        waste[client] = weights.extend * one.input_tokens
        output[client] = weights.output / one.output_multiple
    booked = booked_in(tables.service, Window(0.0, end_s), len(tables.clients))
    served = weights.extend * booked.input + output * booked.output
    requests = tables.requests
    begun = np.isin(requests.client, clients) & (requests.admitted_s < end_s)
    programs = tables.programs
    own = programs.take(np.isin(programs.client, clients) & (programs.arrival_s < end_s))
    wanted = (
        weights.extend * own.demand_input_tokens + output[own.client] * own.demand_output_tokens
    )
    over = (own.status == FINISHED) & (own.finish_s < end_s)
    return Party(
        served=float(served[clients].sum() - waste[requests.client[begun]].sum()),
        due=float((wanted - waste[own.client] * own.demand_requests).sum()),
        programs=len(own),
        finished=int(np.count_nonzero(over)),
    )
