"""Gossip: routers that send each other their totals, in messages that may be late or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from fairbench.core import PS_PER_S
from fairbench.schedulers.peers.params import RoutersParams
from fairbench.schedulers.peers.totals import Exchanges, Totals
from fairbench.sim.clock import ARRIVE, Clock


@dataclass(frozen=True, slots=True)
class Peer:
    """A router's parts that share sums, and ``look``, which re-checks its queued requests."""

    parts: Sequence[Exchanges]
    look: Callable[[], None]


class Gossip:
    """A gossip protocol: every ``every_s`` each router in turn sends its totals to all others."""

    def __init__(
        self, clock: Clock, peers: Sequence[Peer], params: RoutersParams, rng: Random
    ) -> None:
        self._clock = clock
        self._peers = peers
        self._params = params
        self._rng = rng
        self._every_ps = round(params.every_s * PS_PER_S)
        self.unheard = Unheard(peers)
        for number in range(len(peers)):
            self._tell_at((number + 1) * self._every_ps // len(peers), number)

    def _tell_at(self, time_ps: int, number: int) -> None:
        self._clock.at(time_ps, ARRIVE, 0, partial(self._tell, number))

    def _tell(self, number: int) -> None:
        now_ps, params = self._clock.now_ps, self._params
        totals = [part.export_totals() for part in self._peers[number].parts]
        delay_ps = round(params.delay_s * PS_PER_S)
        for other in range(len(self._peers)):
            if other == number:
                continue
            lost, repeated = self._rng.random(), self._rng.random()
            hear = partial(self._hear, other, str(number), totals)
            if lost >= params.lost:
                self._clock.at(now_ps + delay_ps, ARRIVE, 0, hear)
            if repeated < params.repeated:
                self._clock.at(now_ps + delay_ps + self._every_ps // 2, ARRIVE, 0, hear)
        self._tell_at(now_ps + self._every_ps, number)

    def _hear(self, number: int, origin: str, totals: Sequence[Totals]) -> None:
        self.unheard.look(number)
        now_s = self._clock.now_ps / PS_PER_S
        for part, one in zip(self._peers[number].parts, totals, strict=True):
            part.merge_totals(origin, one, now_s)
        self._peers[number].look()


class Ledger:
    """A service with all sums: a router receives every charge before each decision."""

    def __init__(self, clock: Clock, peers: Sequence[Peer]) -> None:
        self._clock = clock
        self._peers = peers

    def ask(self, number: int) -> None:
        """Give router ``number``, which is about to decide, the totals of all others."""
        now_s = self._clock.now_ps / PS_PER_S
        for origin, other in enumerate(self._peers):
            if origin != number:
                for mine, theirs in zip(self._peers[number].parts, other.parts, strict=True):
                    mine.merge_totals(str(origin), theirs.export_totals(), now_s)


class Unheard:
    """The largest charge of a client elsewhere that a router had not received.

    It only grows between two messages, except for refunds, so it is read just before each message.
    """

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = peers
        self.tokens = 0.0

    def look(self, number: int) -> None:
        """Update the largest deviation just before router ``number`` receives a message."""
        for place, part in enumerate(self._peers[number].parts):
            known = part.heard_totals()
            unheard: dict[tuple[str, int], float] = {}
            for origin, other in enumerate(self._peers):
                if origin == number:
                    continue
                then = known[str(origin)].charged if str(origin) in known else {}
                for client, of in other.parts[place].charged_totals().items():
                    for where, charged in of.items():
                        more = charged - then.get(client, {}).get(where, 0.0)
                        unheard[client, where] = unheard.get((client, where), 0.0) + more
            self.tokens = max(self.tokens, *unheard.values(), 0.0)
