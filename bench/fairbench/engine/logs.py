"""The logs of a simulation, which are tables of integers.

The service log records the engines' work for each client. The request log records the times and the
tokens of each request. The memory log records each client's KV tokens. Times are in picoseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbench.compiled import mypyc_attr
from fairbench.engine.clock import Clock
from fairbench.engine.sequence import Sequence
from fairbench.hardware.gpu_time import Decoding, decode_parts

ROWS_PER_BLOCK = 8_192


class BlockStore(Protocol):
    """Storage for a table's rows in blocks (arrays of rows); columns are numbered from 0."""

    def add(self, rows: NDArray[np.int64]) -> None:
        """Append a block: an array of rows of shape (n_rows, n_columns), possibly empty."""

    def column(self, number: int) -> NDArray[np.int64]:
        """Return a column of the table as one array, joined from all blocks."""

    def release(self) -> None:
        """Free the memory of the blocks, which cannot be read afterwards."""


class MemoryBlocks:
    """Storage with the narrowest integer type per column, to save memory."""

    def __init__(self, columns: int) -> None:
        self.parts: list[list[NDArray[Any]]] = [[] for _ in range(columns)]

    def add(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            for part, values in zip(self.parts, rows.T, strict=True):
                part.append(values.astype(_narrowest(values)))

    def column(self, number: int) -> NDArray[np.int64]:
        part = self.parts[number]
        return np.concatenate(part, dtype=np.int64) if part else np.empty(0, np.int64)

    def release(self) -> None:
        self.parts.clear()


@mypyc_attr(allow_interpreted_subclasses=True)
class IntegerTable:
    """A table of integers with named columns, filled row by row.

    Rows are packed into bytes; when a block is full, its rows are moved to ``blocks``.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.blocks: BlockStore = MemoryBlocks(len(names))
        # If ``on_full`` is set, it is called instead of ``file_block`` when a block is full.
        self.on_full: Callable[[], None] | None = None
        self.pack = Struct(f"{len(names)}q").pack
        self._block = bytearray()
        self._row_bytes = 8 * len(names)
        self._block_bytes = ROWS_PER_BLOCK * self._row_bytes
        # ``_bytes_apart`` is the size in bytes of the rows that a subclass stores outside
        # ``_block``.
        self._bytes_apart = 0
        self._filed = 0

    def __len__(self) -> int:
        return self._filed + (len(self._block) + self._bytes_apart) // self._row_bytes

    def append(self, *row: int) -> None:
        """Add a row; ``row`` has a value for each column, in order."""
        self.extend(self.pack(*row))

    def extend(self, packed: bytes) -> None:
        """Add rows in the packed form that ``pack`` returns."""
        self._block += packed
        if len(self._block) + self._bytes_apart >= self._block_bytes:
            (self.on_full or self.file_block)()

    def column(self, name: str) -> NDArray[np.int64]:
        if self._block or self._bytes_apart:
            self.file_block()
        return self.blocks.column(self.names.index(name))

    def file_block(self) -> None:
        """Move all rows outside blocks into a new block."""
        self.add_block(self._rows())
        self._block, self._bytes_apart = bytearray(), 0

    def _rows(self) -> NDArray[np.int64]:
        return np.frombuffer(self._block, np.int64).reshape(-1, len(self.names))

    def add_block(self, rows: NDArray[np.int64]) -> None:
        self.blocks.add(rows)
        self._filed += len(rows)

    def release(self) -> None:
        """Free the memory of all rows, which cannot be read afterwards."""
        self.blocks.release()


def _narrowest(values: NDArray[np.int64]) -> type[np.signedinteger[Any]]:
    low, high = values.min(), values.max()
    for narrow in (np.int8, np.int16, np.int32):
        if np.iinfo(narrow).min <= low and high <= np.iinfo(narrow).max:
            return narrow
    return np.int64


@dataclass(slots=True)
class Stretch:
    """Decode steps of an unchanged batch, each ``growth_ps`` longer than the step before.

    ``fixed_ps`` is the part of a step's time (ps) that does not depend on the context length.
    ``reported_ps`` maps clients to the GPU times (ps) that were reported to the scheduler.
    """

    start_ps: int
    growth_ps: int
    context_tokens: int
    fixed_ps: int
    steps: int = 0
    end_ps: int = 0
    reported_ps: dict[str, int] | None = None

    def unreported_ps(self, first: Mapping[str, Decoding]) -> Iterator[tuple[str, int]]:
        """Yield each client with its GPU time (ps) since the last call of ``unreported_ps``.

        ``first`` gives each client's requests and context in the first step.
        """
        before, self.reported_ps = self.reported_ps or {}, self.gpu_ps(first)
        for client, gpu_ps in self.reported_ps.items():
            yield client, gpu_ps - before.get(client, 0)

    def gpu_ps(self, first: Mapping[str, Decoding]) -> dict[str, int]:
        """Return each client's part of the GPU time (ps) of these decode steps.

        ``first`` gives each client's requests and context in the first step.
        """
        took_ps = self.end_ps - self.start_ps
        return decode_parts(took_ps, self.fixed_ps * self.steps, first, self.steps)


Ints: TypeAlias = NDArray[np.int64]
# below ``EXACT``, 64-bit integers are wide enough to divide a sum into clients' shares exactly
EXACT = 2**50
HEAD_COLUMNS = 10
HEAD = Struct(f"{HEAD_COLUMNS}q")


class InBatch:
    """The number of requests and the context of each client in a decode batch.

    Three arrays, in the order in which clients joined, hold each client's number, number of
    requests, and total context in tokens. ``index`` maps each client to its number; a new client
    gets the next number. ``base_tokens`` has each client's context at step 0 of the batch; a
    context grows by one token per request and step. ``step`` is the step at which the current
    series of decode steps began.
    """

    __slots__ = ("base_tokens", "clients", "index", "per_client", "requests", "step")

    def __init__(self, index: dict[str, int]) -> None:
        self.index = index
        self.per_client: dict[str, int] = {}
        self.clients, self.requests, self.base_tokens = array("q"), array("q"), array("q")
        self.step = 0

    def copy(self) -> InBatch:
        """Return a copy that later changes of the batch do not affect."""
        other = InBatch(self.index)
        other.per_client, other.step = self.per_client.copy(), self.step
        other.clients, other.requests = self.clients[:], self.requests[:]
        other.base_tokens = self.base_tokens[:]
        return other

    def equals(self, other: InBatch) -> bool:
        """Return whether two batches have equal clients, request counts and contexts."""
        mine = self.clients, self.requests, self.base_tokens
        return mine == (other.clients, other.requests, other.base_tokens)

    def decoding(self) -> dict[str, Decoding]:
        """Return each client's requests and context at step ``step`` of the batch."""
        bases = zip(self.per_client.items(), self.base_tokens, strict=True)
        return {
            client: Decoding(count, base + count * self.step) for (client, count), base in bases
        }

    def add(self, client: str, base_tokens: int) -> None:
        number = self.index.setdefault(client, len(self.index))
        count = self.per_client[client] = self.per_client.get(client, 0) + 1
        if count == 1:
            self.clients.append(number)
            self.requests.append(1)
            self.base_tokens.append(base_tokens)
        else:
            place = self.clients.index(number)
            self.requests[place] = count
            self.base_tokens[place] += base_tokens

    def remove(self, client: str, base_tokens: int) -> None:
        place = self.clients.index(self.index[client])
        count = self.per_client[client] = self.per_client[client] - 1
        if count:
            self.requests[place] = count
            self.base_tokens[place] -= base_tokens
        else:
            del self.per_client[client]
            del self.clients[place], self.requests[place], self.base_tokens[place]


class OpenStretches:
    """The stretches (series of decode steps of an unchanged batch) in a log's last block.

    To save time, the rows of decode steps are computed only when the log's last block is full.
    """

    def __init__(self) -> None:
        # Series of decode steps are packed into bytes, because a run may have millions of series.
        self._heads = bytearray()
        self._clients, self._requests, self._base_tokens = array("q"), array("q"), array("q")

    def add(self, row: int, worker: int, stretch: Stretch, batch: InBatch) -> int:
        """Add a series of decode steps from row number ``row`` on; return its number of rows."""
        count, steps = len(batch.clients), stretch.steps
        self._heads += HEAD.pack(
            row, count, worker, stretch.start_ps, stretch.end_ps, stretch.growth_ps, steps,
            stretch.context_tokens, stretch.fixed_ps * steps, batch.step,
        )  # fmt: skip
        self._clients += batch.clients
        self._requests += batch.requests
        self._base_tokens += batch.base_tokens
        return count

    def among(self, others: Ints) -> Ints:
        """Return the rows of the log's last block, including its stretches; clear the stretches.

        ``others`` are the last block's rows outside stretches (series of decode steps), in order.
        """
        if not self._heads:
            return others
        heads = np.frombuffer(bytes(self._heads), np.int64).reshape(-1, HEAD_COLUMNS)
        first, count = heads[:, 0], heads[:, 1]
        at = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        own = np.zeros(len(others) + len(at), np.bool_)
        own[at] = True
        apart = ~own
        table = np.empty((others.shape[1], len(own)), np.int64)
        for column, values, between in zip(table, self._columns(heads), others.T, strict=True):
            column[own], column[apart] = values, between
        for part in (self._heads, self._clients, self._requests, self._base_tokens):
            del part[:]
        rows: Ints = table.T
        return rows

    def _columns(self, heads: Ints) -> tuple[Ints | int, ...]:
        _, count, worker, start, end, growth, steps, context, fixed_ps, step = heads.T
        begin, each = np.cumsum(count) - count, partial(np.repeat, repeats=count)
        client, requests, base_tokens = (
            np.array(part, np.int64) for part in (self._clients, self._requests, self._base_tokens)
        )
        read = base_tokens * each(steps) + requests * each(steps * step + steps * (steps - 1) // 2)
        size, in_all = np.add.reduceat(requests, begin), np.add.reduceat(read, begin)
        upto = shares_upto(each(fixed_ps), _running(requests, begin, count), each(size))
        reading_ps = each(end - start - fixed_ps)
        upto += shares_upto(reading_ps, _running(read, begin, count), each(in_all))
        gpu_ps = np.diff(upto, prepend=0)
        gpu_ps[begin] = upto[begin]
        return (
            each(worker), client, each(start), each(end), each(steps), each(growth), each(size),
            each(context), 0, 0, 0, 0, each(steps) * requests, gpu_ps,
        )  # fmt: skip


def _running(values: Ints, begin: Ints, count: Ints) -> Ints:
    """Return cumulative sums of ``values`` that start again at each index in ``begin``."""
    total = np.cumsum(values)
    sums: Ints = total - np.repeat((total - values)[begin], count)
    return sums


def shares_upto(total: Ints, upto: Ints, whole: Ints) -> Ints:
    """Return ``total * upto // whole`` without overflow, for 0 <= upto <= whole."""
    if whole.max(initial=0) >= EXACT or np.abs(total).max(initial=0) >= EXACT * 2**10:
        wide: Ints = (total.astype(object) * upto // whole).astype(np.int64)
        return wide
    # ``total * upto`` and ``guess * whole`` may overflow, but their difference is exact modulo
    # 2**64 and small, because ``guess`` is close to the exact share.
    guess = (total * (upto / whole)).astype(np.int64)
    guess += (total * upto - guess * whole) // whole
    return guess


SERVICE_COLUMNS = (
    "worker", "client", "start_ps", "end_ps", "steps", "step_growth_ps", "batch_size",
    "context_tokens", "input_tokens", "extend_charged_tokens", "extend_tokens", "recompute_tokens",
    "output_tokens", "gpu_ps",
)  # fmt: skip
REQUEST_COLUMNS = (
    "request_id", "program_id", "client", "depth", "worker", "arrival_ps", "admitted_ps",
    "first_token_ps", "finish_ps", "retracted_ps", "readmitted_ps", "input_tokens", "cached_tokens",
    "extend_tokens", "output_tokens", "max_new_tokens", "retractions", "recompute_tokens", "status",
    "compulsory_tokens",
)  # fmt: skip
# ``DECODE_COLUMNS`` contain the number of a request's decode worker and four times: memory was
# reserved, the prompt was computed, the KV cache was sent, and the KV cache was received.
DECODE_COLUMNS = ("decode_worker", "reserved_ps", "computed_ps", "sent_ps", "received_ps")


@dataclass(slots=True)
class PrefillShare:
    """A client's part of a prefill iteration, as columns of the service log."""

    input_tokens: int = 0
    extend_charged_tokens: int = 0
    extend_tokens: int = 0
    recompute_tokens: int = 0
    output_tokens: int = 0
    gpu_ps: int = 0


Shares: TypeAlias = Mapping[str, PrefillShare]


@mypyc_attr(allow_interpreted_subclasses=True)
class ServiceLog(IntegerTable):
    """A log of clients' service, with a row per client in each period of an unchanged batch.

    - A period is a prefill iteration (with ``steps`` 1) or decode steps of an unchanged batch.
    - Each decode step yields ``output_tokens / steps`` tokens and takes ``step_growth_ps`` longer
      than the step before. ``context_tokens`` is the sum of the context lengths at the first step.
    - A prefill iteration records ``input_tokens`` and ``extend_charged_tokens`` at admission. A
      mixed step of vLLM (prefill and decoding) is recorded as a prefill iteration, whose
      ``context_tokens`` counts the context of decoding requests.
    - ``gpu_ps`` is the client's part of the row's GPU time (``hardware.gpu_time``).
    """

    def __init__(self, clients: list[str]) -> None:
        super().__init__(SERVICE_COLUMNS)
        self.index = {client: number for number, client in enumerate(clients)}
        self._stretches = OpenStretches()

    def prefill(
        self,
        worker: int,
        start_ps: int,
        end_ps: int,
        batch: int,
        shares: Mapping[str, PrefillShare],
        context_tokens: int = 0,
    ) -> None:
        """Log a prefill iteration of ``batch`` requests.

        ``context_tokens`` is the total context of the requests that decode in the iteration.
        """
        for client, share in shares.items():
            row = self.pack(
                worker, self.index[client], start_ps, end_ps, 1, 0, batch, context_tokens,
                share.input_tokens, share.extend_charged_tokens, share.extend_tokens,
                share.recompute_tokens, share.output_tokens, share.gpu_ps,
            )  # fmt: skip
            self.extend(row)

    def decode(self, worker: int, stretch: Stretch, batch: InBatch) -> None:
        """Log a series of decode steps in which ``batch`` did not change."""
        row = (len(self._block) + self._bytes_apart) // self._row_bytes
        self._bytes_apart += self._row_bytes * self._stretches.add(row, worker, stretch, batch)
        self.extend(b"")

    def _rows(self) -> NDArray[np.int64]:
        return self._stretches.among(super()._rows())


class RequestLog(IntegerTable):
    """A log with one row per request, written when the request or the run ends.

    ``more`` names additional columns, which hold attributes of ``Sequence``:

    - ``routed_ps`` is the time at which the router sent the request to a worker.
    - ``swapped_tokens`` is the number of tokens copied to CPU memory and back.
    - ``demoted`` is 1 if admission control put the request behind all other requests.
    - ``DECODE_COLUMNS`` describe the transfer of a request's KV cache to a decode worker.
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
            s.retractions, s.recompute_tokens, s.status, s.compulsory_tokens,
        )  # fmt: skip
        self.extend(self.pack(*row, *self._more_of(s)) if self._more else self.pack(*row))

    def _more_of(self, s: Sequence) -> Iterator[int]:
        for name in self._more:
            yield int(s.request.demoted) if name == "demoted" else getattr(s, name)


NO_CLIENT = -1
MEMORY_COLUMNS = ("at_ps", "worker", "client", "holders", "change", "by")


class MemoryLog(IntegerTable):
    """A log of the changes in the number of tokens that each client has in memory.

    ``change`` is the number of tokens that ``client`` gains; it is negative if the client loses
    tokens. ``holders`` is the number of clients that share each token, including ``client``. ``by``
    is the client whose requests caused an eviction, or -1 for other changes.
    """

    def __init__(self, clients: list[str]) -> None:
        super().__init__(MEMORY_COLUMNS)
        self.index = {client: number for number, client in enumerate(clients)}


class WorkerMemoryLog:
    """A writer of one replica's rows in the memory log."""

    def __init__(self, log: MemoryLog, clock: Clock, worker: int) -> None:
        self._log = log
        self._clock = clock
        self._worker = worker

    @property
    def now_ps(self) -> int:
        return self._clock.now_ps

    def change(self, client: str, holders: int, change: int, by: str | None = None) -> None:
        index = self._log.index
        caused = NO_CLIENT if by is None else index[by]
        self._log.append(self._clock.now_ps, self._worker, index[client], holders, change, caused)
