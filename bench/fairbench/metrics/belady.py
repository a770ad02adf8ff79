"""Belady's rule: the fewest tokens that a cache of limited size must compute for given prompts.

When memory is short, Belady's rule evicts the token whose next use is furthest in the future. For
prompts in a given order, no eviction policy computes fewer tokens than Belady's rule [Belady 1966].
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import Ints, spread


class PrefixUses(NamedTuple):
    """The prompts of a run as paths in a tree of segments, and the times at which they are used.

    Nodes are numbered from 1, and row 0 of the arrays stands for the root.

    - Each node begins after the first ``offset`` tokens of its parent node ``parent``.
    - ``maker`` is the prompt whose answer forms the node's first tokens; -1 means that the tokens
      are not from an answer.
    - ``made_tokens`` is the number of tokens at the start of a node that are part of an answer.
    - Each prompt ends after the first ``used`` tokens of the node ``end``.
    - ``used_ps`` is the time at which a prompt is looked up in the cache.
    - ``finished_ps`` is the time at which the answer to a prompt is complete.
    """

    parent: Ints
    offset: Ints
    maker: Ints
    made_tokens: Ints
    end: Ints
    used: Ints
    used_ps: Ints
    finished_ps: Ints


class _Stays(NamedTuple):
    """Periods for which a cache keeps tokens, each from one use of the tokens to the next use."""

    start_ps: Ints
    end_ps: Ints
    tokens: Ints


def least_computed(uses: PrefixUses, capacity: int) -> int:
    """Return the fewest prompt tokens that any cache of ``capacity`` tokens has to compute."""
    first_tokens, stays = _stays(uses)
    ends = np.argsort(stays.end_ps, kind="stable")
    ended = np.searchsorted(stays.end_ps[ends], stays.start_ps, "right")
    gone = np.append(0, np.cumsum(stays.tokens[ends]))[ended]
    if (np.cumsum(stays.tokens) - gone <= capacity).all():
        return first_tokens
    return first_tokens + _evicted_one_by_one(stays, ends, capacity)


def _stays(uses: PrefixUses) -> tuple[int, _Stays]:
    """Return how many prompt tokens are new, and for which periods a cache keeps other tokens."""
    node, used, prompt = _paths(uses)
    made = np.flatnonzero(uses.maker >= 0)
    width = 1 + int(max(used.max(initial=0), uses.made_tokens.max(initial=0)))
    # Nodes are cut into pieces wherever a prompt, a child node or an answer ends.
    marks = np.unique(np.concatenate([node * width + used, made * width + uses.made_tokens[made]]))
    piece_node, piece_end = marks // width, marks % width
    first_piece = np.searchsorted(piece_node, np.arange(len(uses.parent) + 1))
    tokens = np.diff(piece_end, prepend=0)
    is_first = np.diff(piece_node, prepend=-1) > 0
    tokens[is_first] = piece_end[is_first]
    count = np.searchsorted(marks, node * width + used) + 1 - first_piece[node]
    row, piece = spread(first_piece[node], count)
    at_ps = uses.used_ps[prompt[row]]
    order = np.lexsort((at_ps, piece))
    piece, at_ps = piece[order], at_ps[order]
    is_first = np.diff(piece, prepend=-1) > 0
    maker = uses.maker[piece_node[piece]]
    is_made = is_first & (maker >= 0) & (piece_end[piece] <= uses.made_tokens[piece_node[piece]])
    start_ps = np.where(is_made, uses.finished_ps[maker], np.roll(at_ps, 1))
    stays = is_made | ~is_first
    return int(tokens[piece[~stays]].sum()), _together(
        _Stays(start_ps[stays], at_ps[stays], tokens[piece[stays]])
    )


def _paths(uses: PrefixUses) -> tuple[Ints, Ints, Ints]:
    node, used, prompt = uses.end, uses.used, np.arange(len(uses.end))
    parts = []
    while (inside := node > 0).any():
        node, used, prompt = node[inside], used[inside], prompt[inside]
        parts.append((node, used, prompt))
        node, used = uses.parent[node], uses.offset[node]
    if not parts:
        return node[:0], used[:0], prompt[:0]
    nodes, ends, prompts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return nodes, ends, prompts


def _together(stays: _Stays) -> _Stays:
    real = stays.start_ps < stays.end_ps
    start_ps, end_ps, tokens = stays.start_ps[real], stays.end_ps[real], stays.tokens[real]
    order = np.lexsort((end_ps, start_ps))
    start_ps, end_ps = start_ps[order], end_ps[order]
    differs = (np.diff(start_ps, prepend=-1) > 0) | (np.diff(end_ps, prepend=-1) != 0)
    first = np.flatnonzero(differs)
    if not len(first):
        return _Stays(start_ps, end_ps, tokens)
    return _Stays(start_ps[first], end_ps[first], np.add.reduceat(tokens[order], first))


def _evicted_one_by_one(stays: _Stays, ends: Ints, capacity: int) -> int:
    """Return how many tokens Belady's rule evicts; ``ends`` lists the rows of ``stays`` by end."""
    kept = stays.tokens.tolist()
    ending = list(zip(stays.end_ps[ends].tolist(), ends.tolist(), strict=True))
    held = ended = evicted = 0
    # ``latest`` is a heap of (negative end, stay) pairs, so the stay that ends last is on top.
    latest: list[tuple[int, int]] = []
    rows = zip(stays.start_ps.tolist(), stays.end_ps.tolist(), stays.tokens.tolist(), strict=True)
    for stay, (start_ps, end_ps, tokens) in enumerate(rows):
        while ending[ended][0] <= start_ps:
            held -= kept[ending[ended][1]]
            kept[ending[ended][1]] = 0
            ended += 1
        heappush(latest, (-end_ps, stay))
        held += tokens
        while held > capacity:
            furthest = latest[0][1]
            lost = min(kept[furthest], held - capacity)
            kept[furthest] -= lost
            held -= lost
            evicted += lost
            if not kept[furthest]:
                heappop(latest)
    return evicted
