"""The distinct prefixes of a run's prompts, as in an unbounded cache for the whole cluster."""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, Segment
from fairbench.metrics.arrays import Ints
from fairbench.metrics.belady import PrefixUses

Answers: TypeAlias = dict[str, tuple[int, int, int, int, Prompt]]
"""The outputs that a program has received, by key.

An output has five fields: the last tree node of its prompt, the number of this node's tokens in the
prompt, the output's length in tokens, the prompt's number, and the prompt itself (empty if it was
dropped to save memory).
"""
# If a prompt with more than ``LONG`` segments extends an earlier prompt, ``Answers`` drops the
# earlier prompt to save memory.
LONG = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class DistinctPrefixes:
    """The distinct prefixes of all prompts of a run, as a tree.

    The tree has a node for each distinct segment of a prefix. A node is identified by its segment's
    key, its parent, and the number of the parent's tokens after which it begins. Memory is linear
    in the numbers of distinct prefixes and prompts. An output is added to the tree when a later
    prompt contains the output.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int, str], int] = {}
        self._lengths = [0]
        # ``_ends`` holds the node in which each prompt ends, and the number of the prompt's tokens
        # in this node.
        self._ends = array("q")
        # ``_made`` maps a node that holds an output to the output's length and its prompt's index.
        self._made: dict[int, tuple[int, int]] = {}

    def add(self, prompt: Prompt, answer: Segment, answers: Answers) -> int:
        """Add a served prompt; return how many of its tokens no earlier prompt or output contains.

        The result is at least 1, because an engine computes the last token of every prompt. The
        output ``answer`` is added to the program's ``answers``, because a later prompt may contain
        it.
        """
        nodes, lengths = self._nodes, self._lengths
        parent = used = missing = 0
        rest = prompt
        # Most prompts consist of an earlier prompt, its output, and one more segment, so the search
        # can begin at the end of the earlier prompt.
        if len(prompt) > 2:
            before = answers.get(prompt[-2][0])
            if before is not None and before[4] == prompt[:-2]:
                parent, used, rest = before[0], before[1], prompt[-2:]
                # Dropping long prompts prevents memory from growing with the square of the number
                # of turns.
                if len(prompt) > LONG:
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
        """The total number of tokens in all distinct prefixes."""
        return sum(self._lengths)

    def uses(self, used_ps: Ints, finished_ps: Ints) -> PrefixUses:
        """Return each prompt's path in the tree, and the prompt's times of look-up and completion.

        ``used_ps`` and ``finished_ps`` have the shape (n_prompts,), in the order of the prompts.
        """
        places = [0, 0, *(number for one in self._nodes for number in one[:2])]
        parent, offset = np.array(places, np.int64).reshape(-1, 2).T
        made_tokens, maker = np.zeros_like(parent), np.full_like(parent, -1)
        for node, (tokens, prompt) in self._made.items():
            made_tokens[node], maker[node] = tokens, prompt
        end, used = np.array(self._ends, np.int64).reshape(-1, 2).T
        return PrefixUses(parent, offset, maker, made_tokens, end, used, used_ps, finished_ps)
