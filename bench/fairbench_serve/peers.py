"""Peers: other routers in front of the same workers, with which totals are exchanged.

The same objects exchange the same totals as in a simulation (``schedulers/peers``), except that a
peer gets only the changes since its last confirmation. The next message makes up for a lost one, so
nothing is sent again, and a dead peer costs nothing.
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
from aiohttp import ClientError, ClientSession, web

from fairbench.config.cluster import served_routers
from fairbench.errors import UsageError
from fairbench.live.json_errors import Problem, bad_request
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.schedulers.gateway.registry import policy_class
from fairbench.schedulers.params import own_settings
from fairbench.schedulers.peers.counters import shares_counters
from fairbench.schedulers.peers.totals import NOTHING, Exchanges, Totals
from fairbench_serve.background import Work
from fairbench_serve.bodies import check_plain
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.identity import check_bearer, is_name

log = logging.getLogger(__name__)

ALL_EVERY_S = 60.0  # seconds after which everything is sent, despite confirmations
MOST_TOKENS = 1e15  # limit of a sum: decades of any fleet, and far from infinity
MOST_VERSION = 2**53
MOST_ORIGINS = 1_000  # stopped routers in one message
MOST_CLIENTS = 200_000  # entries in one message
LONGEST_ORIGIN = 64

Versions = dict[str, dict[str, int]]
"""Origin and part -> the known version of its totals."""
PATH = "/peers/totals"
PATIENCE_S = 2.0  # seconds to wait for a peer's answer
RELAYED_S = 30.0  # seconds after a change of the routers in which stopped ones are named
ROUTER, GATEWAY = "router", "gateway"  # the parts that may share sums
MOST_KNOWN = 1_000  # number of routers that are remembered


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message of one process: ``origin`` is new at each start, ``fleet`` identifies its workers.

    ``gone`` holds the last totals of silent origins. A restarted router could not know these
    totals. Without them, a client that was served there would be treated as entitled to that
    service again.
    """

    origin: str
    fleet: str
    parts: dict[str, Totals]
    gone: dict[str, dict[str, Totals]] = {}


def check_message(message: Message) -> None:
    """Raise Problem for impossible totals, which would make sums infinite or undefined."""
    told = {**message.gone, message.origin: message.parts}
    if len(told) > MOST_ORIGINS or any(len(origin) > LONGEST_ORIGIN for origin in told):
        raise bad_request("the message lists more routers than are allowed")
    every = [one for parts in told.values() for one in parts.values()]
    entries = sum(len(one.charged) + len(one.raised) + len(one.waiting) for one in every)
    if entries > MOST_CLIENTS:
        raise bad_request(f"the message has more than {MOST_CLIENTS} entries of clients")
    for totals in every:
        fits = 0 <= totals.since <= totals.version <= MOST_VERSION
        sums = (*totals.charged.items(), *totals.raised.items())
        fits &= all(abs(value) <= MOST_TOKENS for _, of in sums for value in of.values())
        if not (fits and all(map(is_name, {*dict(sums), *totals.waiting}))):
            raise bad_request("the message has impossible totals")


def places_of(totals: Totals) -> set[int]:
    """Return the workers or bands that totals mention."""
    sums = (*totals.charged.values(), *totals.raised.values())
    return {place for of in sums for place in of}.union(*totals.waiting.values())


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """The state at ``origin``: its known versions of the origins in a message."""

    origin: str
    known: Versions


@dataclass
class Known:
    """The knowledge of one peer process, as its answers report it."""

    origin: str = ""
    versions: Versions = field(default_factory=dict)
    forgotten_s: float = -inf

    def answered(self, answer: Answer) -> None:
        """Record an answer; a new process at the same address starts without knowledge."""
        if answer.origin != self.origin:
            self.origin, self.versions = answer.origin, {}
        self.versions.update(answer.known)

    def forget_sometimes(self, now_s: float) -> None:
        """Discard the knowledge at intervals, so that all totals are sent again."""
        if now_s - self.forgotten_s >= ALL_EVERY_S:
            self.forgotten_s, self.versions = now_s, {}


@dataclass(frozen=True)
class Peering:
    """The parts of this router that share totals, and its position among its peers."""

    parts: Mapping[str, Exchanges]
    fleet: str
    key: str = field(repr=False)
    dispatcher: Dispatcher
    forget_s: float
    places: Mapping[str, Collection[int]]  # size of each part: workers, or bands of the gateway
    origin: str = field(default_factory=lambda: token_hex(8))
    # Origin -> time of its first and last message (s on the dispatcher's clock).
    heard_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    def message(self, known: Known | None = None) -> bytes:
        """Return the message for a peer: the totals that it lacks, and the waiting clients.

        While no worker is up, waiting clients are left out, so that they do not delay others.
        """
        known = known or Known()
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
        return msgspec.json.encode(Message(self.origin, self.fleet, parts, gone))

    def _gone(self) -> dict[str, dict[str, Totals]]:
        """Return the last known totals of routers that are silent, without waiting clients."""
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
        """Answer a peer's message with the present knowledge; 401, 409 or 400 for a wrong one."""
        check_bearer(request, self.key, "the key of the peers")
        check_plain(request)
        answer = self.take_in(await request.read())
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    def take_in(self, body: bytes) -> Answer:
        """Apply the new parts of a message; return the known state of its origins.

        Raises Problem.
        """
        try:
            message = msgspec.json.decode(body, type=Message)
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
            return Answer(self.origin, {})
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
        return Answer(self.origin, versions)

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
    """Connect the router to its peers, if it has any. Call this before the first request."""
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
    """Return a hash of the settings that peers must share: totals depend on quanta and prices."""
    names = (config.router, config.gateway)
    own = [(name, sorted(own_settings(str(name), config.settings).items())) for name in names]
    equal = *own, [worker.url for worker in config.workers]
    return hashlib.sha256(repr(equal).encode()).hexdigest()[:16]


def check_peers(router: type, name: str, gateway: str | None) -> None:
    """Raise UsageError unless the router or the gateway has counters that peers can share."""
    gateway_shares = gateway is not None and shares_counters(policy_class(gateway))
    if not (gateway_shares or hasattr(router, "export_totals")):
        before = f" or the gateway {gateway}" if gateway else ""
        raise UsageError(
            f"--peer: the router {name}{before} has no counters that peers can share; "
            "choose the router d2lpm, or the gateway vtc"
        )


async def tell(session: ClientSession, peering: Peering, url: str, every_s: float) -> None:
    """Send one peer the totals that it lacks, repeatedly, whether or not it answers."""
    headers = {"Authorization": f"Bearer {peering.key}", "Content-Type": "application/json"}
    trouble: str | None = None
    known = Known()
    while True:
        await asyncio.sleep(every_s)
        known.forget_sometimes(peering.dispatcher.now_s())
        now = await _told(session, url, peering.message(known), headers, known)
        if now != trouble:
            level = logging.INFO if now is None else logging.WARNING
            log.log(level, "peer %s: %s", url, now or "hears this router")
        trouble = now


async def _told(
    session: ClientSession, url: str, message: bytes, headers: Mapping[str, str], known: Known
) -> str | None:
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            session.post(url + PATH, data=message, headers=headers) as answer,
        ):
            if answer.status != HTTPStatus.OK:
                return f"answers {answer.status}"
            known.answered(msgspec.json.decode(await answer.read(), type=Answer))
            return None
    except (ClientError, OSError, TimeoutError) as error:
        return f"cannot be told: {type(error).__name__}"
    except (ValueError, RecursionError):
        return "the answer is not that of a router"


def telling(config: RouterConfig, peering: Peering | None, session: ClientSession) -> list[Work]:
    """Return the tasks that ``tell`` each peer of ``config`` the totals of ``peering``, if any."""
    every_s = served_routers(config.settings).every_s
    return [tell(session, peering, url, every_s) for url in config.peers] if peering else []
