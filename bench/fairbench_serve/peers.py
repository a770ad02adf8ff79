"""Peers (other routers in front of the same workers), and the exchange of clients' charges.

The classes that compute totals are in ``schedulers/peers.py``, because simulations use them, too. A
message contains only totals that have changed since the version that the peer last confirmed. If a
message is lost, the next message repeats its changes. Messages to unreachable peers are not stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from secrets import token_hex

import msgspec
from aiohttp import ClientSession, web

from fairbench.errors import UsageError
from fairbench.schedulers.gateway.queue import Gateway
from fairbench.schedulers.gateway.registry import policy_class
from fairbench.schedulers.params import own_settings
from fairbench.schedulers.peers import NOTHING, Exchanges, Totals, shares_counters
from fairbench.schedulers.registry import params_owner
from fairbench_load.http_server import Problem, bad_request
from fairbench_serve.background import Work
from fairbench_serve.bodies import check_plain
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.exchange import CONNECTION_ERRORS
from fairbench_serve.identity import check_bearer, is_name
from fairbench_serve.served_settings import served_routers

log = logging.getLogger(__name__)

ALL_EVERY_S = 60.0  # seconds after which a router sends even totals that its peers have confirmed
MOST_TOKENS = 1e15  # limit on a client's total charge in tokens, which takes decades to reach
MOST_VERSION = 2**53
MOST_ORIGINS = 1_000  # maximum number of routers in a message, including stopped routers
MOST_CLIENTS = 200_000  # maximum number of client entries in a message
LONGEST_ORIGIN = 64  # maximum number of characters of a router's id

Versions = dict[str, dict[str, int]]
"""Version numbers of clients' charge totals, by router and by part (``router`` or ``gateway``)."""
PATH = "/peers/totals"
# seconds within which another router must answer
PATIENCE_S = 2.0
# seconds for which a router sends its peers the clients' totals of a stopped router, counted from
# the stopped router's last message or from the first message of a new router
RELAYED_S = 30.0
# components of `fairbench serve` that may share clients' total charges with other routers
ROUTER, GATEWAY = "router", "gateway"
MOST_KNOWN = 1_000  # maximum number of routers whose client totals are kept


class PeerMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message from a router process to its peers, with the clients' total charges.

    - ``origin`` identifies the process; each start of a router gives a new identifier.
    - ``fleet`` is a hash of the settings that all peers must share.
    - ``parts`` maps ``router`` and ``gateway`` to the clients' totals that this process counted.
    - ``gone`` holds the last sums of clients' charges in stopped routers. A new router learns from
      ``gone`` how much service the clients of stopped routers received.
    """

    origin: str
    fleet: str
    parts: dict[str, Totals]
    gone: dict[str, dict[str, Totals]] = {}


def check_message(message: PeerMessage) -> None:
    """Raise Problem for a message with too many entries, or with totals that could overflow."""
    told = {**message.gone, message.origin: message.parts}
    if len(told) > MOST_ORIGINS or any(len(origin) > LONGEST_ORIGIN for origin in told):
        raise bad_request("the message lists more routers than are allowed")
    every = [(origin, one) for origin, parts in told.items() for one in parts.values()]
    entries = sum(len(one.charged) + len(one.raised) + len(one.waiting) for _, one in every)
    if entries > MOST_CLIENTS:
        raise bad_request(f"the message has more than {MOST_CLIENTS} entries for clients")
    for origin, totals in every:
        fits = 0 <= totals.since <= totals.version <= MOST_VERSION
        sums = (*totals.charged.items(), *totals.raised.items())
        fits &= all(abs(value) <= MOST_TOKENS for _, of in sums for value in of.values())
        if not (fits and all(map(is_name, {*dict(sums), *totals.waiting}))):
            raise bad_request(
                f"the totals of the router {origin!r} have an invalid version number, token sum or "
                "client name; run the same release of fairbench on all routers"
            )


def places_of(totals: Totals) -> set[int]:
    """Return the worker numbers (or the gateway's priorities) that occur in clients' totals."""
    sums = (*totals.charged.values(), *totals.raised.values())
    return {place for of in sums for place in of}.union(*totals.waiting.values())


class PeerState(msgspec.Struct, forbid_unknown_fields=True):
    """A peer's answer to a message, with the versions of totals that the peer (``origin``) has."""

    origin: str
    known: Versions


@dataclass
class PeerKnowledge:
    """The versions of routers' totals that a peer router has, according to the peer's answers."""

    origin: str = ""
    versions: Versions = field(default_factory=dict)
    forgotten_s: float = -inf

    def answered(self, answer: PeerState) -> None:
        """Record a peer's answer; a new ``origin`` means that the peer restarted without totals."""
        if answer.origin != self.origin:
            self.origin, self.versions = answer.origin, {}
        self.versions.update(answer.known)

    def forget_sometimes(self, now_s: float) -> None:
        """Forget, every ``ALL_EVERY_S`` seconds, which totals the peer has."""
        if now_s - self.forgotten_s >= ALL_EVERY_S:
            self.forgotten_s, self.versions = now_s, {}


@dataclass(frozen=True)
class Peering:
    """The exchange of clients' totals between this router and its peers."""

    parts: Mapping[str, Exchanges]
    fleet: str
    key: str = field(repr=False)
    dispatcher: Dispatcher
    forget_s: float
    # allowed keys in clients' totals: worker numbers (router) or priorities (gateway)
    places: Mapping[str, Collection[int]]
    origin: str = field(default_factory=lambda: token_hex(8))
    # times in seconds of the first and last message from each router, on the dispatcher's clock
    heard_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    def message(self, known: PeerKnowledge | None = None) -> bytes:
        """Return a message with the charge totals that the peer lacks, and the waiting clients.

        While this router has no available worker, the message omits its waiting clients, so that
        clients of other routers do not wait for clients that cannot be served.
        """
        known = known or PeerKnowledge()
        versions = known.versions.get(self.origin, {})
        parts = {
            name: part.export_totals(versions.get(name, 0)) for name, part in self.parts.items()
        }
        if not self.dispatcher.up:
            parts = {name: totals._replace(waiting={}) for name, totals in parts.items()}
        gone = {}
        for origin, totals in self._gone().items():
            heard = known.versions.get(origin, {})
            if any(totals[name].version > heard.get(name, 0) for name in totals):
                gone[origin] = totals
        return msgspec.json.encode(PeerMessage(self.origin, self.fleet, parts, gone))

    def _gone(self) -> dict[str, dict[str, Totals]]:
        """Return the last charge totals that stopped routers reported, without waiting clients."""
        now_s = self.dispatcher.now_s()
        newest_s = max((first_s for first_s, _ in self.heard_s.values()), default=-inf)
        found: dict[str, dict[str, Totals]] = {}
        for name, part in self.parts.items():
            for origin, totals in part.heard_totals().items():
                _, last_s = self.heard_s.get(origin, (-inf, -inf))
                if last_s + self.forget_s < now_s < max(last_s, newest_s) + RELAYED_S:
                    found.setdefault(origin, {})[name] = totals._replace(waiting={})
        return found

    async def answer_peer(self, request: web.Request) -> web.Response:
        """Answer a peer's message; raise Problem (HTTP status 400, 401 or 409) if it is invalid."""
        check_bearer(request, self.key, "the key of the peers")
        check_plain(request)
        answer = self.take_in(await request.read())
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    def take_in(self, body: bytes) -> PeerState:
        """Apply the totals in a peer's message; return the versions of this router's totals.

        Raises Problem if the message is invalid.
        """
        try:
            message = msgspec.json.decode(body, type=PeerMessage)
        except (ValueError, RecursionError):
            raise bad_request("the body must be a message of a peer router") from None
        check_message(message)
        told = {**message.gone, message.origin: message.parts}
        fits = all(
            parts.keys() == self.parts.keys()
            and all(places_of(one) <= set(self.places[name]) for name, one in parts.items())
            for parts in told.values()
        )
        if message.fleet != self.fleet or not fits:
            raise Problem(
                HTTPStatus.CONFLICT,
                "this peer has another router, gateway, list of workers, or other "
                "settings; peers must be equal",
            )
        if message.origin == self.origin:
            return PeerState(self.origin, {})
        now_s = self.dispatcher.now_s()
        first_s, _ = self.heard_s.get(message.origin, (now_s, now_s))
        self.heard_s[message.origin] = first_s, now_s
        told.pop(self.origin, None)
        for origin, parts in told.items():
            for name, part in self.parts.items():
                part.merge_totals(origin, parts[name], now_s)
        self._forget_surplus()
        self.dispatcher.release()
        heard = {name: part.heard_totals() for name, part in self.parts.items()}
        versions = {
            origin: {name: of.get(origin, NOTHING).version for name, of in heard.items()}
            for origin in told
        }
        return PeerState(self.origin, versions)

    def _forget_surplus(self) -> None:
        known = {origin for part in self.parts.values() for origin in part.heard_totals()}
        if len(known) <= MOST_KNOWN:
            return
        silent = sorted(known, key=lambda one: self.heard_s.get(one, (-inf, -inf))[1])
        for origin in silent[: len(known) - MOST_KNOWN]:
            self.heard_s.pop(origin, None)
            for part in self.parts.values():
                part.forget_origin(origin)


def peering_of(config: RouterConfig, dispatcher: Dispatcher) -> Peering | None:
    """Connect the router to its peers, if there are any, before the first request arrives."""
    if not config.peers:
        return None
    assert config.peer_key is not None, "a key is required"
    parts: dict[str, Exchanges] = {}
    if isinstance(dispatcher.router, Exchanges):
        parts[ROUTER] = dispatcher.router
    queue = None if dispatcher.ingress is None else dispatcher.ingress.queue
    places: dict[str, Collection[int]] = {ROUTER: range(len(config.workers))}
    if isinstance(queue, Gateway) and queue.shares_counters:
        parts[GATEWAY] = queue
        places[GATEWAY] = {0, *queue.params.priority.values()}
    for part in parts.values():
        part.join_peers()
    forget_s = served_routers(config.settings).terms(len(config.workers)).forget_s
    return Peering(parts, settings_hash(config), config.peer_key, dispatcher, forget_s, places)


def settings_hash(config: RouterConfig) -> str:
    """Return a hash of the settings that must be equal in all peers."""
    names = (params_owner(config.router), config.gateway)
    own = [(name, sorted(own_settings(str(name), config.settings).items())) for name in names]
    equal = *own, [worker.url for worker in config.workers]
    return hashlib.sha256(repr(equal).encode()).hexdigest()[:16]


def check_peers(router: type, name: str, gateway: str | None) -> None:
    """Raise UsageError unless the routing policy or gateway has counters that peers can share."""
    gateway_shares = gateway is not None and shares_counters(policy_class(gateway))
    if not (gateway_shares or hasattr(router, "export_totals")):
        before = f" or the gateway {gateway}" if gateway else ""
        raise UsageError(
            f"--peer: the router {name}{before} has no counters that peers can share; "
            "choose the router d2lpm, or the gateway vtc"
        )


async def tell_peer(session: ClientSession, peering: Peering, url: str, every_s: float) -> None:
    """Every ``every_s`` seconds until cancelled, send a peer the totals that it lacks."""
    headers = {"Authorization": f"Bearer {peering.key}", "Content-Type": "application/json"}
    trouble: str | None = None
    known = PeerKnowledge()
    while True:
        await asyncio.sleep(every_s)
        known.forget_sometimes(peering.dispatcher.now_s())
        now = await _told(session, url, peering.message(known), headers, known)
        if now != trouble:
            level = logging.INFO if now is None else logging.WARNING
            log.log(level, "peer %s: %s", url, now or "receives the totals of this router")
        trouble = now


async def _told(
    session: ClientSession,
    url: str,
    message: bytes,
    headers: Mapping[str, str],
    known: PeerKnowledge,
) -> str | None:
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            session.post(url + PATH, data=message, headers=headers) as answer,
        ):
            if answer.status != HTTPStatus.OK:
                return f"answers with status {answer.status}"
            known.answered(msgspec.json.decode(await answer.read(), type=PeerState))
            return None
    except CONNECTION_ERRORS as error:
        return f"cannot be reached: {type(error).__name__}"
    except (ValueError, RecursionError):
        return "the answer is not from a fairbench router"


def telling(config: RouterConfig, peering: Peering | None, session: ClientSession) -> list[Work]:
    """Return a background task for each peer; the task sends clients' totals to the peer."""
    every_s = served_routers(config.settings).every_s
    return [tell_peer(session, peering, url, every_s) for url in config.peers] if peering else []
