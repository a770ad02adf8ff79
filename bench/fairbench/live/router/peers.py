"""Peers: other routers before the same workers, which are told this one's totals, and tell theirs.

The same objects exchange the same totals as in a simulation (``schedulers/peers``). A message that
is lost is made good by the next, so nothing is sent again, and a peer that is dead costs nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from secrets import token_hex

import msgspec
from aiohttp import ClientError, ClientSession, web

from fairbench.config.routers import served_routers
from fairbench.errors import UsageError
from fairbench.live.router.background import Work
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.problem import Problem, bad_request
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.schedulers.gateway.registry import policy_class
from fairbench.schedulers.params import own_settings
from fairbench.schedulers.peers.counters import shares_counters
from fairbench.schedulers.peers.totals import Exchanges, Totals

PATH = "/peers/totals"
PATIENCE_S = 2.0  # for a peer's answer
RELAYED_S = 30.0  # for so long after somebody came or went, what is gone is told
ROUTER, GATEWAY = "router", "gateway"  # the parts that may share sums

log = logging.getLogger(__name__)


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """What one process tells: ``origin`` is new with each start, ``fleet`` what it is before.

    ``gone`` are the last totals of origins that are silent. Who starts again could not know them,
    and would take a client that was served there for one that is owed as much.
    """

    origin: str
    fleet: str
    parts: dict[str, Totals]
    gone: dict[str, dict[str, Totals]] = {}


@dataclass(frozen=True)
class Peering:
    """What of this router shares sums, and its place among its peers."""

    parts: Mapping[str, Exchanges]
    fleet: str
    key: str = field(repr=False)
    dispatcher: Dispatcher
    forget_s: float
    origin: str = field(default_factory=lambda: token_hex(8))
    # By origin, in seconds of the dispatcher: when it was heard first, and when last.
    heard_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    def message(self) -> bytes:
        """The totals of now. Who waits while no worker is up is to keep nobody waiting."""
        parts = {name: part.export_totals() for name, part in self.parts.items()}
        if not self.dispatcher.up:
            parts = {name: totals._replace(waiting={}) for name, totals in parts.items()}
        return msgspec.json.encode(Message(self.origin, self.fleet, parts, self._gone()))

    def _gone(self) -> dict[str, dict[str, Totals]]:
        """What is to be told of silent origins, of which nobody waits any more."""
        now_s = self.dispatcher.now_s()
        newest_s = max((first_s for first_s, _ in self.heard_s.values()), default=-inf)
        found: dict[str, dict[str, Totals]] = {}
        for name, part in self.parts.items():
            for origin, totals in part.heard_totals().items():
                _, last_s = self.heard_s.get(origin, (-inf, -inf))
                if last_s + self.forget_s < now_s < max(last_s, newest_s) + RELAYED_S:
                    found.setdefault(origin, {})[name] = totals._replace(waiting={})
        return found

    async def hear(self, request: web.Request) -> web.Response:
        """A peer's message: 204, also if it is old. 401, 409 or 400 if it is nobody's or wrong."""
        try:
            self._check_caller(request)
            self.take_in(await request.read())
        except Problem as problem:
            return problem.response()
        return web.Response(status=HTTPStatus.NO_CONTENT)

    def take_in(self, body: bytes) -> None:
        """Add what a message has that is new. Raises Problem."""
        try:
            message = msgspec.json.decode(body, type=Message)
        except (ValueError, RecursionError):
            raise bad_request("the body is no message of a router") from None
        told = {**message.gone, message.origin: message.parts}
        fits = all(parts.keys() == self.parts.keys() for parts in told.values())
        if message.fleet != self.fleet or not fits:
            raise Problem(
                HTTPStatus.CONFLICT, "another router, gateway, setting of these, or list of workers"
            )
        if message.origin == self.origin:
            return
        now_s = self.dispatcher.now_s()
        first_s, _ = self.heard_s.get(message.origin, (now_s, now_s))
        self.heard_s[message.origin] = first_s, now_s
        told.pop(self.origin, None)
        for origin, parts in told.items():
            for name, part in self.parts.items():
                part.merge_totals(origin, parts[name], now_s)
        self.dispatcher.release()

    def _check_caller(self, request: web.Request) -> None:
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(shown, f"Bearer {self.key}".encode()):
            raise Problem(HTTPStatus.UNAUTHORIZED, "send Authorization: Bearer with the peers' key")


def peering_of(config: RouterConfig, dispatcher: Dispatcher) -> Peering | None:
    """Let the router's parts be some of several, if it has peers. To be told before any request."""
    if not config.peers:
        return None
    assert config.peer_key is not None, "nobody is heard without a key"
    parts: dict[str, Exchanges] = {}
    if isinstance(dispatcher.router, Exchanges):
        parts[ROUTER] = dispatcher.router
    queue = None if dispatcher.ingress is None else dispatcher.ingress.queue
    if isinstance(queue, Gateway) and queue.shares_counters:
        parts[GATEWAY] = queue
    for part in parts.values():
        part.join_peers()
    fleet = hashlib.sha256(repr(_before_what(config)).encode()).hexdigest()[:16]
    forget_s = served_routers(config.settings).terms(len(config.workers)).forget_s
    return Peering(parts, fleet, config.peer_key, dispatcher, forget_s)


def _before_what(config: RouterConfig) -> tuple[object, ...]:
    """What must be the same at all: totals of other quanta or prices mean something else."""
    names = (config.router, config.gateway)
    own = [(name, sorted(own_settings(str(name), config.settings).items())) for name in names]
    return *own, [worker.url for worker in config.workers]


def check_peers(router: type, name: str, gateway: str | None) -> None:
    """Raise UsageError unless the router or the gateway has sums that peers can share."""
    if not hasattr(router, "export_totals") and not _gateway_shares(gateway):
        before = f" nor the gateway {gateway}" if gateway else ""
        raise UsageError(
            f"--peer: neither the router {name}{before} has sums to share: choose the router "
            "d2lpm, or the gateway vtc"
        )


def _gateway_shares(gateway: str | None) -> bool:
    return gateway is not None and shares_counters(policy_class(gateway))


async def tell(session: ClientSession, peering: Peering, url: str, every_s: float) -> None:
    """Tell one peer the totals again and again, whether or not it answers."""
    headers = {"Authorization": f"Bearer {peering.key}", "Content-Type": "application/json"}
    trouble: str | None = None
    while True:
        await asyncio.sleep(every_s)
        now = await _told(session, url, peering.message(), headers)
        if now != trouble:
            log.log(
                logging.INFO if now is None else logging.WARNING,
                "peer %s: %s", url, now or "hears this router",
            )  # fmt: skip
        trouble = now


async def _told(
    session: ClientSession, url: str, message: bytes, headers: Mapping[str, str]
) -> str | None:
    """None, or why the peer has not taken it."""
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            session.post(url + PATH, data=message, headers=headers) as answer,
        ):
            if answer.status == HTTPStatus.NO_CONTENT:
                return None
            return f"answers {answer.status}"
    except (ClientError, OSError, TimeoutError) as error:
        return f"cannot be told: {type(error).__name__}"


def telling(config: RouterConfig, peering: Peering | None, session: ClientSession) -> list[Work]:
    """What tells each peer, as long as it runs."""
    if peering is None:
        return []
    every_s = served_routers(config.settings).every_s
    return [tell(session, peering, url, every_s) for url in config.peers]
