"""Prompts of blocks as segments: blocks that always follow each other are one segment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.core import Prompt, Segment
from fairbench.workloads.traces.table import Ints, Table


class Runs(NamedTuple):
    """Runs of blocks that the prompts of the trace never separate, except at their ends.

    Request i has the runs from ``first[i]`` to ``first[i + 1]``: ``key`` is what a run is called,
    ``blocks`` how many blocks of it the prompt has.
    """

    first: Ints
    key: Ints
    blocks: Ints


def runs_of(table: Table) -> Runs:
    """Return the runs of blocks of all prompts.

    A block belongs to the run of the block before it if it always follows that block, and that
    block is always followed by it.
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
    before_of = _only(code, before, len(known))
    after_of = _only(code[~ends], after[~ends], len(known))
    joined = (before_of >= 0) & (after_of[before_of] == np.arange(len(known)))
    begins = ~(joined[code] & follows)
    places = np.flatnonzero(begins)
    counts = np.diff(np.append(places, len(ids)))
    return Runs(np.searchsorted(places, table.first_block), ids[places], counts)


def _only(code: Ints, value: Ints, count: int) -> Ints:
    """Return the value that always accompanies each code; -1 for several values or none."""
    least, most = np.full(count, 2**62), np.full(count, -1)
    np.minimum.at(least, code, value)
    np.maximum.at(most, code, value)
    return np.where(least == most, most, -1)


def prompt_of_row(table: Table, runs: Runs, row: int, own: str) -> Prompt:
    """Return a row's prompt: its blocks up to its length, and a part of its ``own``."""
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
