"""What the engine did, in columns: the service log and the request log.

Both are flat integer arrays (times in picoseconds), so that a long run stays small.
"""

from __future__ import annotations

from array import array

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
)
_END, _STEPS, _OUTPUT = map(SERVICE_COLUMNS.index, ("end_ps", "steps", "output_tokens"))
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


class Columns:
    """A table of integers with named columns, filled row by row (and kept so, as one array)."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values) // len(self._names)

    @property
    def columns(self) -> dict[str, array[int]]:
        """The columns, copied out."""
        width = len(self._names)
        return {name: self._values[n::width] for n, name in enumerate(self._names)}

    def append(self, *row: int) -> None:
        """Add one row, values in column order."""
        assert len(row) == len(self._names)
        self._values.extend(row)


class ServiceLog(Columns):
    """One row per client and stretch of constant batch composition on a worker.

    A prefill iteration is one row per client with ``steps`` 1: ``input_tokens`` and
    ``extend_charged_tokens`` are booked at admission, ``extend_tokens`` when computed. In a decode
    stretch each step yields ``output_tokens / steps`` tokens and lasts ``step_growth_ps`` longer
    than the one before, so each step's time can be recomputed. ``context_tokens`` is the sum of
    context lengths at the first step.
    """

    def __init__(self, clients: list[str]) -> None:
        super().__init__(SERVICE_COLUMNS)
        self.index = {client: number for number, client in enumerate(clients)}

    def prefill(
        self, worker: int, start_ps: int, end_ps: int, batch: int, shares: dict[str, list[int]]
    ) -> None:
        """``shares``: per client [input, charged, extend, recompute, output] tokens."""
        for client, tokens in shares.items():
            index = self.index[client]
            self.append(worker, index, start_ps, end_ps, 1, 0, batch, 0, *tokens)

    def decode(
        self,
        worker: int,
        span_ps: tuple[int, int],
        steps: int,
        growth_ps: int,
        context_tokens: int,
        batch: dict[str, int],
    ) -> range:
        """Book ``steps`` decode steps; ``batch`` is sequences per client. Returns the rows."""
        first = len(self)
        size = sum(batch.values())
        for client, count in batch.items():
            self.append(
                worker, self.index[client], *span_ps, steps, growth_ps, size, context_tokens,
                0, 0, 0, 0, steps * count,
            )  # fmt: skip
        return range(first, len(self))

    def prolong(self, rows: range, end_ps: int, steps: int, batch: dict[str, int]) -> None:
        """The same batch went on for ``steps`` more steps, without a break."""
        values, width = self._values, len(SERVICE_COLUMNS)
        for row, count in zip(rows, batch.values(), strict=True):
            start = row * width
            values[start + _END] = end_ps
            values[start + _STEPS] += steps
            values[start + _OUTPUT] += steps * count


class RequestLog(Columns):
    """One row per request, written when it is over (or the run is)."""

    def __init__(self, clients: list[str]) -> None:
        super().__init__(REQUEST_COLUMNS)
        self.index = {client: number for number, client in enumerate(clients)}

    def record(self, s: Sequence) -> None:
        r = s.request
        self.append(
            r.request_id, r.program_id, self.index[r.client], r.depth, s.worker,
            s.arrival_ps, s.admitted_ps, s.first_token_ps, s.finish_ps,
            s.retracted_ps, s.readmitted_ps,
            r.input_tokens, s.cached_tokens, s.extend_tokens, s.produced, r.max_new_tokens,
            s.retractions, s.recompute_tokens, s.status,
        )  # fmt: skip
