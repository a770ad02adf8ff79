"""Limits of clients: what one has under way at the workers is at most its share of a good batch.

A queue that is fair orders those who wait in it. It orders neither what runs already nor what
stands before it, at an engine's tokenizer: who sends a flood of long prompts has the others wait
there in order of arrival, and then for its long contexts at every step. So the flood is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import fsum, inf
from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator

from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.batch_cost import BatchCost, OutputLengths, step_units
from fairbench.schedulers.gateway.client_line import ClientLine
from fairbench.schedulers.load_cap import AUTO, CAP_UNITS
from fairbench.schedulers.local.programs import Programs
from fairbench.schedulers.setup import Setup
from fairbench.tenants import Tenants

UNKNOWN_COSTS = (
    f"gateway.client_limit = {AUTO!r}: nobody knows what a decode step takes here: "
    "give a number of tokens"
)


def _checked(value: Any) -> str | int | None:
    tokens = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value in (AUTO, None) or tokens:
        found: str | int | None = value
        return found
    raise ValueError("must be auto or a number of tokens above 0")


ClientLimit: TypeAlias = Annotated[str | int | None, PlainValidator(_checked)]


class ClientLimits:
    """Who may go on to the queue, and who waits in a line of its own, by priority and program.

    A worker may be given so many ``tokens`` of context, as ``batch_cost`` counts them, and ``auto``
    is what the load cap is; and so many ``requests``. Of both, over all workers, those who have
    anything here get their shares by weight; one request of a client may always go. None is no
    limit. With ``tenants`` they are the outermost ones, whatever names their clients have. Nothing
    that runs is taken away for who comes later, so a ``reserve`` is kept: the share of clients of
    so much weight who are absent. Raises UsageError for ``auto`` where nobody knows what steps
    take.
    """

    def __init__(
        self,
        tokens: int | str | None,
        requests: int | None,
        tenants: Tenants | None,
        setup: Setup,
        *,
        reserve: float = 0.0,
    ) -> None:
        units = step_units(setup.costs)
        self._request_tokens = 0.0 if units is None else units.request_tokens
        self._worker_requests = inf if requests is None else float(requests)
        if tokens != AUTO:
            self._worker_tokens = inf if tokens is None else float(tokens)
        elif units is not None:
            self._worker_tokens = CAP_UNITS * units.unit_tokens
        else:
            raise UsageError(UNKNOWN_COSTS)
        self._by_tenant = tenants is not None
        self._reserve = reserve
        self._setup = setup
        self._lengths = OutputLengths()
        self._lines: dict[str, ClientLine] = {}
        self._under_way: dict[str, BatchCost] = {}
        self._programs = Programs(count().__next__)  # the numbers of those that have come

    def enters(self, request: Request, priority: int = 0) -> bool:
        """A request arrives: whether it may go on at once, and does. Else it is in line."""
        owner = self._owner(request)
        program, _ = self._programs.enter(request)
        if owner not in self._lines and self._has_room(owner, request, self._weights(owner)):
            self._go(owner, request)
            return True
        self._lines.setdefault(owner, ClientLine()).add(request, priority, program)
        return False

    def freed(self) -> Iterator[Request]:
        """Those in line that may go on now, and do."""
        if not self._lines:
            return
        weights = self._weights()  # the same for all: whoever is in line is there already
        for owner in list(self._lines):
            line = self._lines[owner]
            while len(line) and self._has_room(owner, line.first(), weights):
                request = line.go()
                self._go(owner, request)
                yield request
            if not len(line):
                del self._lines[owner]

    def withdraw(self, request: Request) -> bool:
        """A request is wanted no more; False if it is not in line."""
        owner = self._owner(request)
        line = self._lines.get(owner)
        if line is None or not line.leave(request):
            return False
        self._programs.leave(request)
        if not len(line):
            del self._lines[owner]
        return True

    def over(self, request: Request, output_tokens: int) -> None:
        """A request that went on is over, or was withdrawn."""
        owner = self._owner(request)
        self._programs.leave(request)
        self._under_way[owner].finish(request, output_tokens)
        if not len(self._under_way[owner]):
            del self._under_way[owner]

    def _go(self, owner: str, request: Request) -> None:
        if owner not in self._under_way:
            self._under_way[owner] = BatchCost(self._lengths)
        self._under_way[owner].enter(request)

    def _has_room(self, owner: str, request: Request, weights: float) -> bool:
        mine = self._under_way.get(owner)
        if mine is None:
            return True
        assert self._setup.fleet is not None, "limits are of workers"
        weighed = len(self._setup.fleet.workers()) * self._setup.weight(owner)
        if len(mine) + 1 > weighed * self._worker_requests / weights:
            return False
        more = mine.expected_context(request) + self._request_tokens
        most_tokens = weighed * self._worker_tokens / weights
        return mine.tokens(self._request_tokens) + more <= most_tokens

    def _weights(self, *newcomers: str) -> float:
        """Of all who have anything here, with those who come just now, and of the reserve."""
        present = {*self._under_way, *self._lines, *newcomers}
        return fsum(map(self._setup.weight, present)) + self._reserve  # the same in any order

    def _owner(self, request: Request) -> str:
        return self._setup.lineage(request.client)[0] if self._by_tenant else request.client
