"""Parameters of routers in number: who gets which request, and what they hear of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import FiniteFloat

from fairbench.schedulers.peers.counters import Terms

ROUTERS = "routers"  # the part whose parameters these are

Share = Annotated[FiniteFloat, Ge(0), Le(0.95)]


@dataclass(frozen=True)
class RoutersParams:
    """How several routers share a fleet (``--routers N``, ``--set routers.NAME=VALUE``).

    ``form``: ``independent`` routers know nothing of each other; ``sticky`` is the same where a
    hash of its name sends each client to one router for good; under ``exchange`` each tells the
    others its totals every ``every_s``, which are heard ``delay_s`` later, unless the message is
    ``lost``, or comes again half an interval later (``repeated``): shares of all messages; under
    ``ledger`` all sums are at one service that a request asks first, which takes two ``delay_s``.
    ``ahead_tok_s``: by how many tokens over its weight, a second and worker, a client may be ahead
    of one that waits at another router, as long as nothing new is heard of it. About what a worker
    serves, or the fleet idles between two messages. Who waits at a router from which nothing has
    come for ``forget_s`` keeps nobody waiting (not given: six intervals and delays, 1 s at least).
    ``skew``: how many times as many requests a client's favourite router gets as the one that it
    likes least, in equal ratios between. ``favourite``: ``each`` client has another in turn,
    ``one`` is the same for all; of ``sticky`` it is always that.
    """

    form: Literal["independent", "sticky", "exchange", "ledger"] = "independent"
    skew: Annotated[FiniteFloat, Ge(1)] = 1.0
    favourite: Literal["each", "one"] = "each"
    every_s: Annotated[FiniteFloat, Ge(0.001)] = 0.1
    delay_s: Annotated[FiniteFloat, Ge(0)] = 0.001
    lost: Share = 0.0
    repeated: Share = 0.0
    ahead_tok_s: Annotated[FiniteFloat, Ge(0)] = 10_000.0
    forget_s: Annotated[FiniteFloat, Gt(0)] | None = None

    @property
    def shares_sums(self) -> bool:
        """Whether the routers hear of each other."""
        return self.form in ("exchange", "ledger")

    def terms(self, workers: int) -> Terms:
        """What a gateway grants on old news of the others, before so many workers."""
        forget_s = self.forget_s or max(1.0, 6 * (self.every_s + self.delay_s))
        return Terms(self.ahead_tok_s * workers, forget_s)


def shares(skew: float, number: int) -> list[float]:
    """Which part of a client's requests each of its routers gets, its favourite first.

    >>> shares(3.0, 2)
    [0.75, 0.25]
    """
    parts = [skew ** -(place / max(1, number - 1)) for place in range(number)]
    return [part / sum(parts) for part in parts]
