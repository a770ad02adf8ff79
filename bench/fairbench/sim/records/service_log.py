"""The service log and the request log: the engine's work, in integers (times in picoseconds)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbench.compiled import mypyc_attr
from fairbench.sim.records.columns import Columns
from fairbench.sim.records.stretches import InBatch, Stretch, Stretches
from fairbench.sim.sequence import Sequence

SERVICE_COLUMNS = (
    "worker",
    "client",
    "start_ps",
    "end_ps",
    "steps",
    "step_growth_ps",
    "batch_size",
    "context_tokens",
    "input_tokens",
    "extend_charged_tokens",
    "extend_tokens",
    "recompute_tokens",
    "output_tokens",
    "gpu_ps",
)
REQUEST_COLUMNS = (
    "request_id",
    "program_id",
    "client",
    "depth",
    "worker",
    "arrival_ps",
    "admitted_ps",
    "first_token_ps",
    "finish_ps",
    "retracted_ps",
    "readmitted_ps",
    "input_tokens",
    "cached_tokens",
    "extend_tokens",
    "output_tokens",
    "max_new_tokens",
    "retractions",
    "recompute_tokens",
    "status",
)
# The decode worker, and the times at which it reserved memory and the prompt was computed, sent and
# received.
DECODE_COLUMNS = ("decode_worker", "reserved_ps", "computed_ps", "sent_ps", "received_ps")


@dataclass(slots=True)
class PrefillShare:
    """A client's part of a prefill iteration, under the names of the service log."""

    input_tokens: int = 0
    extend_charged_tokens: int = 0
    extend_tokens: int = 0
    recompute_tokens: int = 0
    output_tokens: int = 0
    gpu_ps: int = 0


Shares: TypeAlias = Mapping[str, PrefillShare]


@mypyc_attr(allow_interpreted_subclasses=True)
class ServiceLog(Columns):
    """A log with one row per client and stretch of constant batch composition on a worker.

    A prefill iteration has one row per client with ``steps`` 1: ``input_tokens`` and
    ``extend_charged_tokens`` are booked at admission, ``extend_tokens`` when computed. Each step of
    a decode stretch yields ``output_tokens / steps`` tokens and lasts ``step_growth_ps`` longer
    than the previous step. The time of each step can therefore be recomputed. ``context_tokens`` is
    the sum of context lengths at the first step. A mixed step (vLLM) is written as a prefill
    iteration, with the context lengths of its decoding requests. ``gpu_ps`` is the client's part of
    the time (``hardware.gpu_time``); the parts of a stretch add up to its time.
    """

    def __init__(self, clients: list[str]) -> None:
        super().__init__(SERVICE_COLUMNS)
        self.index = {client: number for number, client in enumerate(clients)}
        self._stretches = Stretches()

    def prefill(
        self,
        worker: int,
        start_ps: int,
        end_ps: int,
        batch: int,
        shares: Mapping[str, PrefillShare],
        context_tokens: int = 0,
    ) -> None:
        """Log a prefill iteration of ``batch`` requests, with ``context_tokens`` that decode."""
        for client, share in shares.items():
            row = self.pack(
                worker, self.index[client], start_ps, end_ps, 1, 0, batch, context_tokens,
                share.input_tokens, share.extend_charged_tokens, share.extend_tokens,
                share.recompute_tokens, share.output_tokens, share.gpu_ps,
            )  # fmt: skip
            self.extend(row)

    def decode(self, worker: int, stretch: Stretch, batch: InBatch) -> None:
        """Log a decode stretch; ``batch`` is its constant composition at the first step."""
        row = (len(self._block) + self._bytes_apart) // self._row_bytes
        self._bytes_apart += self._row_bytes * self._stretches.add(row, worker, stretch, batch)
        self.extend(b"")

    def _rows(self) -> NDArray[np.int64]:
        return self._stretches.among(super()._rows())


class RequestLog(Columns):
    """A log with one row per request, written when the request or the run has ended.

    ``more`` are further columns: ``routed_ps`` is the time at which a request went to its worker,
    which differs from its arrival behind a gateway; ``swapped_tokens`` were copied to the host's
    memory and back; ``demoted`` is whether admission control put it behind the others;
    ``DECODE_COLUMNS``.
    """

    def __init__(self, clients: list[str], more: tuple[str, ...] = ()) -> None:
        super().__init__((*REQUEST_COLUMNS, *more))
        self._more = more
        self.index = {client: number for number, client in enumerate(clients)}

    def record(self, s: Sequence) -> None:
        r = s.request
        row = (
            r.request_id, r.program_id, self.index[r.client], r.depth, s.worker,
            s.arrival_ps, s.admitted_ps, s.first_token_ps, s.finish_ps,
            s.retracted_ps, s.readmitted_ps,
            r.input_tokens, s.cached_tokens, s.extend_tokens, s.produced, r.max_new_tokens,
            s.retractions, s.recompute_tokens, s.status,
        )  # fmt: skip
        self.extend(self.pack(*row, *self._more_of(s)) if self._more else self.pack(*row))

    def _more_of(self, s: Sequence) -> Iterator[int]:
        for name in self._more:
            yield int(s.request.demoted) if name == "demoted" else getattr(s, name)
