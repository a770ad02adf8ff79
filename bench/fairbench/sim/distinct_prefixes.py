"""The distinct prefixes of a run's prompts, and the fewest tokens that a cache must compute.

An unbounded cache of the whole cluster computes each distinct prefix once. Under Belady's rule, a
cache of limited size evicts the token whose next use is furthest in the future; no eviction policy
computes fewer tokens for prompts in a given order [Belady 1966].
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import numpy as np

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, Segment
from fairbench.metrics.arrays import Ints, spread

Answers: TypeAlias = dict[str, tuple[int, int, int, int, Prompt]]
"""The answers of a program, by key.

Each answer has the node that the answer follows, the number of that node's tokens before the
answer, the answer's length in tokens, the number of its prompt, and its prompt. The prompt is empty
if it was dropped.
"""
LONG = 64  # a prompt of more segments is dropped when a later prompt has continued its answer


@mypyc_attr(allow_interpreted_subclasses=True)
class DistinctPrefixes:
    """The distinct prefixes of a run's prompts: a cache of the whole cluster without eviction.

    The prefixes form a tree with one node per distinct segment of a prefix. A node is a run of
    tokens with one key that follows a position of its parent. The position is the parent's number
    and the number of the parent's tokens before the node. Memory is linear in the numbers of
    distinct prefixes and prompts. An answer enters the tree when a later prompt contains the
    answer.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int, str], int] = {}
        self._lengths = [0]  # the known tokens of each node
        self._ends = array("q")  # the last node of each prompt, and its used tokens
        self._made: dict[int, tuple[int, int]] = {}  # node -> tokens of an answer, its prompt

    def add(self, prompt: Prompt, answer: Segment, answers: Answers) -> int:
        """Add a served prompt; return how many of its tokens no earlier prompt or answer contains.

        The result is at least 1, because an engine computes the last token of every prompt. The
        ``answer`` is added to the program's ``answers``, because a later prompt may continue it.
        """
        nodes, lengths = self._nodes, self._lengths
        parent = used = missing = 0
        rest = prompt
        if len(prompt) > 2:  # most prompts continue an answer by one segment
            before = answers.get(prompt[-2][0])
            if before is not None and before[4] == prompt[:-2]:
                parent, used, rest = before[0], before[1], prompt[-2:]
                if len(prompt) > LONG:  # memory would grow with the square of the turns
                    answers[prompt[-2][0]] = *before[:4], ()
        for key, length in rest:
            if not length:
                continue
            node = nodes.get((parent, used, key))
            if node is None:
                node = nodes[parent, used, key] = len(lengths)
                known = 0
                answered = answers.get(key)
                if answered is not None and answered[0] == parent and answered[1] == used:
                    known = answered[2]
                    self._made[node] = known, answered[3]
                lengths.append(known)
            else:
                known = lengths[node]
            if known < length:
                missing += length - known
                lengths[node] = length
            parent, used = node, length
        ends = self._ends
        answers[answer[0]] = parent, used, answer[1], len(ends) >> 1, prompt
        ends.append(parent)
        ends.append(used)
        return missing or 1

    @property
    def tokens(self) -> int:
        """The tokens of all distinct prefixes."""
        return sum(self._lengths)

    def uses(self, used_ps: Ints, finished_ps: Ints) -> PrefixUses:
        """Return the paths of all prompts, with the times at which they were used and answered.

        Both times have the shape (n_prompts,), in the order in which the prompts were added.
        """
        places = [0, 0, *(number for one in self._nodes for number in one[:2])]
        parent, offset = np.array(places, np.int64).reshape(-1, 2).T
        made_tokens, maker = np.zeros_like(parent), np.full_like(parent, -1)
        for node, (tokens, prompt) in self._made.items():
            made_tokens[node], maker[node] = tokens, prompt
        end, used = np.array(self._ends, np.int64).reshape(-1, 2).T
        return PrefixUses(parent, offset, maker, made_tokens, end, used, used_ps, finished_ps)


class PrefixUses(NamedTuple):
    """The prompts of a run as paths in a tree of segments, and the times at which they are used.

    Nodes are numbered from 1, and row 0 of their arrays stands for the root.

    - ``parent`` and ``offset``: a node continues the first ``offset`` tokens of its parent.
    - ``maker`` is the prompt whose answer begins the node, -1 if none does, and ``made_tokens`` the
      tokens of that answer.
    - ``end`` and ``used``: a prompt ends after the first ``used`` tokens of node ``end``.
    - ``used_ps`` and ``finished_ps`` are the times at which a prompt is looked up, and at which its
      answer is complete.
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
    """Tokens that a cache keeps from one use to the next, and the times of both uses."""

    start_ps: Ints
    end_ps: Ints
    tokens: Ints


def least_computed(uses: PrefixUses, capacity: int) -> int:
    """Return the fewest prompt tokens that any cache of ``capacity`` tokens has to compute."""
    first_tokens, stays = _stays(uses)
    return first_tokens + _evicted(stays, capacity)


def _stays(uses: PrefixUses) -> tuple[int, _Stays]:
    """Return how many tokens no earlier prompt or answer contains, and the other tokens' stays."""
    node, used, prompt = _paths(uses)
    made = np.flatnonzero(uses.maker >= 0)
    width = 1 + int(max(used.max(initial=0), uses.made_tokens.max(initial=0)))
    # A piece is a part of a node between two neighbouring ends of prompts, children or answers.
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
    """Return each node on the path of each prompt: the node, its used tokens, and the prompt."""
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
    """Return the stays in order of start; equal stays are merged, and empty stays are left out.

    A stay is empty if both of its uses come at one time.
    """
    real = stays.start_ps < stays.end_ps
    start_ps, end_ps, tokens = stays.start_ps[real], stays.end_ps[real], stays.tokens[real]
    order = np.lexsort((end_ps, start_ps))
    start_ps, end_ps = start_ps[order], end_ps[order]
    differs = (np.diff(start_ps, prepend=-1) > 0) | (np.diff(end_ps, prepend=-1) != 0)
    first = np.flatnonzero(differs)
    if not len(first):
        return _Stays(start_ps, end_ps, tokens)
    return _Stays(start_ps[first], end_ps[first], np.add.reduceat(tokens[order], first))


def _evicted(stays: _Stays, capacity: int) -> int:
    """Return the fewest tokens that are evicted before their next use."""
    ends = np.argsort(stays.end_ps, kind="stable")
    ended = np.searchsorted(stays.end_ps[ends], stays.start_ps, "right")
    gone = np.append(0, np.cumsum(stays.tokens[ends]))[ended]
    if (np.cumsum(stays.tokens) - gone <= capacity).all():
        return 0
    return _evicted_one_by_one(stays, ends, capacity)


def _evicted_one_by_one(stays: _Stays, ends: Ints, capacity: int) -> int:
    """Return how many tokens Belady's rule evicts; ``ends`` are the stays in order of end."""
    kept = stays.tokens.tolist()
    ending = list(zip(stays.end_ps[ends].tolist(), ends.tolist(), strict=True))
    held = ended = evicted = 0
    latest: list[tuple[int, int]] = []  # heap of (negative end, stay), the latest end first
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
