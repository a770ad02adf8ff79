"""``FileTraffic``, the interface of recorded traffic, and programs built from recorded requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from math import inf, isnan
from typing import NamedTuple, Protocol

import numpy as np

from fairbench.core import Prompt, Segment
from fairbench.workloads.items import Branch, Recorded, RecordedCall
from fairbench.workloads.traces.table import Floats, Ints, TraceTable


class TracedProgram(NamedTuple):
    """A recorded program and its arrival in seconds after the beginning of the trace."""

    at_s: float
    item: Recorded


class FileTraffic(Protocol):
    """The traffic in a trace file, by client.

    Attributes:
        clients: The names of the clients.
        span_s: The duration of the trace in seconds.
        drawn: Whether times and lengths are drawn at random from measured distributions.
        synthetic: Descriptions of the parts of the traffic that were not recorded.
        pauses: Whether a program has several calls with time between the calls.
        left_out: The number of requests in the file that the trace leaves out.
        who_left_out: A description of the requests that are left out.
    """

    clients: tuple[str, ...]
    span_s: float
    drawn: bool
    synthetic: tuple[str, ...]
    pauses: bool
    left_out: int
    who_left_out: str

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        """Yield a client's programs in order of time; times are divided by ``speed``."""
        ...

    def count_programs(self, client: int, until_s: float) -> float:
        """Return how many programs begin before ``until_s``, or an estimate if times are random."""
        ...

    def table(self, seed: int, until_s: float = inf) -> TraceTable:
        """Return at least all requests before ``until_s``; ``seed`` seeds the random values."""
        ...


class Runs(NamedTuple):
    """Runs of blocks: sequences of consecutive blocks that always occur together in prompts.

    A prompt is a sequence of runs of blocks, but its last run of blocks may be incomplete. Rows
    ``first[i]`` to ``first[i + 1] - 1`` describe the prompt of request i. ``key`` identifies a run
    of blocks. ``blocks`` is the number of blocks of the run that the prompt contains.
    """

    first: Ints
    key: Ints
    blocks: Ints


def runs_of(table: TraceTable) -> Runs:
    """Divide all prompts into sequences of blocks that always occur together.

    Two blocks belong to one sequence if the second block always follows the first block, and never
    follows another block.
    """
    ids = table.blocks
    if not len(ids):
        return Runs(np.zeros(len(table) + 1, np.int64), ids, ids)
    known, code = np.unique(ids, return_inverse=True)
    starts = np.zeros(len(ids), bool)
    firsts = table.first_block[:-1][np.diff(table.first_block) > 0]
    starts[firsts] = True
    before = np.where(starts, -1, np.roll(code, 1))
    follows = ~starts
    ends = np.append(starts[1:], True)
    after = np.roll(code, -1)
    before_of = _only_values(code, before, len(known))
    after_of = _only_values(code[~ends], after[~ends], len(known))
    joined = (before_of >= 0) & (after_of[before_of] == np.arange(len(known)))
    begins = ~(joined[code] & follows)
    places = np.flatnonzero(begins)
    counts = np.diff(np.append(places, len(ids)))
    return Runs(np.searchsorted(places, table.first_block), ids[places], counts)


def _only_values(code: Ints, value: Ints, count: int) -> Ints:
    """Return each code's value, or -1 for a code whose elements have different values."""
    least, most = np.full(count, 2**62), np.full(count, -1)
    np.minimum.at(least, code, value)
    np.maximum.at(most, code, value)
    return np.where(least == most, most, -1)


def prompt_of_row(table: TraceTable, runs: Runs, row: int, own: str) -> Prompt:
    """Return the prompt of a request: its blocks, and a segment ``own`` of the remaining tokens."""
    left, size = int(table.input_tokens[row]), int(table.block_size[row])
    segments = []
    for run in range(runs.first[row], runs.first[row + 1]):
        length = min(left, size * int(runs.blocks[run]))
        if not length:
            break
        segments.append(Segment(f"block-{runs.key[run]}", length))
        left -= length
    if left:
        segments.append(Segment(own, left))
    return tuple(segments)


CLOCK_S = 1.0  # Times may be wrong by this many seconds, because some logs have whole seconds.


class RecordedTrace:
    """The programs of a trace: each session, and each request without a session, is a program."""

    drawn = False

    def __init__(self, table: TraceTable) -> None:
        self._table = table
        self.clients = table.clients
        self.span_s = table.span_s
        self.left_out, self.who_left_out = table.left_out, table.who_left_out
        self.synthetic = table.synthetic
        self._rows, self._first = _rows_by_program(table.session)
        heads = self._rows[self._first[:-1]]
        by_client = np.lexsort((heads, table.client[heads]))
        self._programs = by_client
        self._bounds = np.searchsorted(
            table.client[heads][by_client], np.arange(len(table.clients) + 1)
        )
        self.pauses = bool((np.diff(self._first) > 1).any())

    def table(self, seed: int = 0, until_s: float = inf) -> TraceTable:
        return self._table

    def count_programs(self, client: int, until_s: float) -> float:
        heads = self._rows[self._first[self._programs_of(client)]]
        return float(np.searchsorted(self._table.arrival_s[heads], until_s))

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        for program in self._programs_of(client):
            rows = self._rows[self._first[program] : self._first[program + 1]]
            at_s = float(self._table.arrival_s[rows[0]]) / speed
            yield TracedProgram(at_s, self._program_of_rows([int(row) for row in rows], speed))

    def _programs_of(self, client: int) -> Ints:
        return self._programs[self._bounds[client] : self._bounds[client + 1]]

    @cached_property
    def _runs(self) -> Runs:
        return runs_of(self._table)

    def _program_of_rows(self, rows: list[int], speed: float) -> Recorded:
        """Build a session's program from its rows; sub-agents become branches of calls."""
        of_branch: dict[int, list[int]] = {}
        for row in rows:
            of_branch.setdefault(int(self._table.branch[row]), []).append(row)
        own = of_branch.pop(0, None) or of_branch.pop(min(of_branch))
        calls = self._calls(own, speed)
        for later in of_branch.values():
            at, branch = self._branch(own, later, speed)
            calls[at] = calls[at]._replace(branches=(*calls[at].branches, branch))
        return Recorded(f"trace/{rows[0]}", 0, calls=tuple(calls), turn=rows[0])

    def _branch(self, own: list[int], rows: list[int], speed: float) -> tuple[int, Branch]:
        """Return the sub-agent with requests ``rows``, and the number of the call that starts it.

        The session's first call after the recorded end of a sub-agent waits for this sub-agent.
        """
        table = self._table
        began_s, end_s = float(table.arrival_s[rows[0]]), float(_ends(table, rows).max())
        at = max(0, int(np.searchsorted(table.arrival_s[own], began_s, side="right")) - 1)
        until = int(np.searchsorted(table.arrival_s[own], end_s - CLOCK_S, side="left"))
        answered_s = float(_ends(table, own[at : at + 1])[0])
        delay_s = max(0.0, began_s - answered_s) / speed
        return at, Branch(delay_s, tuple(self._calls(rows, speed)), max(until, at + 1))

    def _calls(self, rows: list[int], speed: float) -> list[RecordedCall]:
        table, runs = self._table, self._runs
        calls = []
        for row, later in zip(rows, [*rows[1:], None], strict=True):
            gap_s = think_s = 0.0
            if later is not None:
                next_s, end_s = float(table.arrival_s[later]), float(table.end_s[row])
                gap_s = (next_s - float(table.arrival_s[row])) / speed
                known_s = float(table.think_s[later])
                if not isnan(known_s):
                    gap_s, think_s = 0.0, known_s / speed
                # ``end_s <= next_s`` is False if the end is unknown (NaN).
                elif end_s <= next_s:
                    gap_s, think_s = 0.0, (next_s - end_s) / speed
            output = int(table.output_tokens[row])
            calls.append(
                RecordedCall(
                    prompt_of_row(table, runs, row, f"trace/{row}"),
                    output,
                    max(output, int(table.max_tokens[row])),
                    gap_s,
                    think_s,
                    shared_tokens=int(table.shared[row]),
                )
            )
        return calls


def _ends(table: TraceTable, rows: list[int]) -> Floats:
    """Return the end of each answer in seconds, or the arrival time if the end is unknown."""
    ends: Floats = table.end_s[rows]
    return np.where(np.isnan(ends), table.arrival_s[rows], ends)


def _rows_by_program(session: Ints) -> tuple[Ints, Ints]:
    """Return the row numbers grouped by program, and the position at which each program begins.

    Programs are ordered by their first rows, and the rows of a program by time.
    """
    alone = session < 0
    code = np.where(alone, session.max(initial=-1) + 1 + np.arange(len(session)), session)
    _, head, code = np.unique(code, return_index=True, return_inverse=True)
    rows = np.argsort(head[code], kind="stable")
    heads = head[code][rows]
    begins = np.flatnonzero(np.append(True, heads[1:] != heads[:-1]))
    return rows, np.append(begins, len(session))
