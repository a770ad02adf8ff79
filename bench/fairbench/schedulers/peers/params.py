"""Parameters of several routers: the division of requests, and the exchange between routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Le
from pydantic import FiniteFloat

from fairbench.schedulers.params import NotNegative, Positive

ROUTERS = "routers"  # the part to which these parameters belong

Share = Annotated[FiniteFloat, Ge(0), Le(0.95)]


class Terms(NamedTuple):
    """The lead that a gateway grants a client between messages of other gateways.

    The lead is over a client that waits elsewhere. The lead grows by ``ahead_tok_s`` (tokens over
    weight) for each second since the last message on the other client. Between two exchanges no
    gateway knows the other client's progress, and waiting for messages would leave the fleet idle.
    Messages older than ``forget_s`` keep no client waiting.
    """

    ahead_tok_s: float
    forget_s: float


@dataclass(frozen=True)
class RoutersParams:
    """The parameters of several routers that share a fleet.

    The flags are ``--routers N`` and ``--set routers.NAME=VALUE``.

    ``form``: ``independent`` routers know nothing of each other. ``sticky`` routers know nothing of
    each other either, but a hash of the client's name sends each client to one router for good.
    Under ``exchange`` each router tells the others its totals every ``every_s``. Under ``ledger`` a
    single service holds all sums; a router queries the service before each request, which takes two
    ``delay_s``.

    ``delay_s`` is the delay of a message of ``exchange``. ``lost`` and ``repeated`` are fractions
    of all messages; a repeated message comes again half an interval later.

    ``ahead_tok_s`` are the tokens over weight, per second and worker, by which a client may be
    ahead of a client that waits at another router. The lead counts until the next message about the
    other client. A good value is about a worker's service rate; with a lower value, the fleet idles
    between two messages.

    ``forget_s``: if nothing has come from a router for this long, the clients that wait there delay
    no others. The default is six intervals and delays, at least 1 s.

    ``skew`` is the ratio of a client's requests at its favourite router to those at its least
    favourite, with equal ratios in between. ``favourite``: ``each`` gives each client another
    favourite in turn, ``one`` gives all clients the same. ``sticky`` always uses ``one``.
    """

    form: Literal["independent", "sticky", "exchange", "ledger"] = "independent"
    skew: Annotated[FiniteFloat, Ge(1)] = 1.0
    favourite: Literal["each", "one"] = "each"
    every_s: Annotated[FiniteFloat, Ge(0.001)] = 0.1
    delay_s: NotNegative = 0.001
    lost: Share = 0.0
    repeated: Share = 0.0
    ahead_tok_s: NotNegative = 10_000.0
    forget_s: Positive | None = None

    @property
    def shares_sums(self) -> bool:
        return self.form in ("exchange", "ledger")

    def terms(self, workers: int) -> Terms:
        """Return the lead that a gateway of a fleet of ``workers`` grants on old messages."""
        forget_s = self.forget_s or max(1.0, 6 * (self.every_s + self.delay_s))
        return Terms(self.ahead_tok_s * workers, forget_s)


def shares(skew: float, number: int) -> list[float]:
    """Return the share of a client's requests at each router, its favourite first.

    >>> shares(3.0, 2)
    [0.75, 0.25]
    """
    parts = [skew ** -(place / max(1, number - 1)) for place in range(number)]
    return [part / sum(parts) for part in parts]
