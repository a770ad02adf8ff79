"""The priority groups of Preble's code: a scheduling pass tries requests of one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.preble_groups import PrebleGroups


class PrebleGroupsCode(PrebleGroups):
    """Priority groups that are served in turn: each scheduling pass tries one group.

    Successive passes try the groups from the highest to the lowest, and then begin again with the
    highest group. The pass for group g tries at most (g + 1) x ``per_group`` requests of this
    group, in order of arrival. Requests that do not fit into KV memory are skipped. A request's
    group is the cached fraction of its prompt times the number of groups. The paper rounds the
    group number down, but Preble's code rounds the number up and subtracts one. With ten groups,
    the code puts the fraction 0.70 in group 6 instead of 7.
    """

    name = "preble-groups-code"

    @dataclass(frozen=True)
    class Params(PrebleGroups.Params):
        """Parameters of the priority groups. ``groups`` is P, the paper's number of groups."""

        no_room: Literal["skip"] = "skip"
        per_group: Annotated[int, Gt(0)] = 10

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._per_group = params.per_group

    def group_of(self, matched_tokens: int, request: Request) -> int:
        return max(0, -(-matched_tokens * self.params.groups // request.input_tokens) - 1)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._sort_in(view)
        if not any(self._groups):
            return
        while not self._groups[self._group]:
            self._next_group()
        group, number = self._groups[self._group], self._group
        self._next_group()
        tried = list(group)[: (number + 1) * self._per_group]
        try:
            # ``yield from`` would call send() on the list iterator, which has no such method.
            for request in tried:
                _ = yield request
        finally:
            waiting = [request for request in group if request in self._queued]
            group.clear()
            group.extend(waiting)
