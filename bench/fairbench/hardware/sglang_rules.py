"""Rules by which releases of SGLang schedule differently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Release: TypeAlias = Literal["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]

Splits: TypeAlias = Literal["prefilled", "finished", "never"]


@dataclass(frozen=True)
class SGLangRules:
    """Rules of one release; by default those of 0.5.23.

    ``drops_finished``: a request that finished leaves the batch before the next pass, not with the
    next decode step. ``counts_chunk_once``: the prompt that a pass goes on with takes one slot of
    ``max_running_requests``, not two. ``tries_within_budget``: when that prompt's chunk uses up a
    budget, no other request is tried. ``touches_waiting``: passes that match nothing refresh the
    prefixes of the queue's head. ``splits``: whether a prompt and the outputs that were computed
    with it after a retraction are two nodes of the tree, from the prefill or from the end on.
    """

    drops_finished: bool = True
    counts_chunk_once: bool = True
    tries_within_budget: bool = True
    touches_waiting: bool = True
    splits: Splits = "prefilled"


NEWEST = SGLangRules()
_0_5_22 = replace(NEWEST, drops_finished=False, counts_chunk_once=False, tries_within_budget=False)
_0_5_20 = replace(_0_5_22, touches_waiting=False, splits="finished")
_0_5_17 = replace(_0_5_20, splits="never")

RULES: dict[Release, SGLangRules] = {
    "0.5.17": _0_5_17,
    "0.5.18": _0_5_17,
    "0.5.19": _0_5_17,
    "0.5.20": _0_5_20,
    "0.5.21": _0_5_20,
    "0.5.22": _0_5_22,
    "0.5.23": NEWEST,
}
