"""A plugin for other projects' routers, which lets a router of fairbench choose the worker.

A fork of vllm-router calls ``make_policy`` through its flag ``--external-policy-factory``. The fork
of vllm-router is in llm-d-incubation/py-inference-scheduler, ``integration/vllm_router``. The
Python scheduler of llm-d uses the scorer ``examples/llmd_scorer.py``. Both vllm-router and llm-d
report each worker's number of requests in flight, but neither the end of a request nor its tokens.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import Router, Setup, checked_weights
from fairbench.schedulers.registry import build_router, router_class
from fairbench_load import headers
from fairbench_load.plugin_config import SETTINGS, WEIGHTS, read_variable
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.identity import is_name
from fairbench_serve.ingress import RequestInFlight

ROUTER = "FAIRBENCH_ROUTER"
DEFAULT_ROUTER = "d2lpm"
# assumed output tokens of a request, because routers of other projects report no output tokens
ANSWER_TOKENS = 256
POOL_TOKENS = 1 << 20  # assumed KV memory of a worker in tokens
BYTES_PER_TOKEN = 4  # assumed bytes of prompt text per token

log = logging.getLogger(__name__)


class RouterPolicy:
    """A policy that chooses among named workers by their numbers of requests in flight.

    If a worker has fewer requests in flight than were sent to it, its oldest requests count as
    finished, with ``answer_tokens`` output tokens each. Raises UsageError for an unknown routing
    policy, and for a policy that queues requests, because vllm-router sends each request at once.
    """

    def __init__(
        self,
        router: str = DEFAULT_ROUTER,
        settings: Mapping[str, Any] | None = None,
        weights: Mapping[str, float] | None = None,
        *,
        answer_tokens: int = ANSWER_TOKENS,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        cls = router_class(router)
        served = {f"{router}.{name}": value for name, value in cls.served_params.items()}
        given = served | dict(settings or {})
        self._make: Callable[[int], Router] = lambda workers: build_router(router, given, workers)
        # Build a router that is not used, so that invalid settings are reported at the start.
        if self._make(1).holds:
            raise UsageError(
                f"router {router}: a router that queues requests cannot run inside another "
                f"project's router; choose {DEFAULT_ROUTER} or another router that does not queue"
            )
        self._weights = checked_weights(weights or {})
        self._answer_tokens, self._now_s = answer_tokens, now_s
        self._numbers: dict[str, int] = {}  # each worker's number by its name
        self._dispatcher: Dispatcher | None = None
        self._lock = Lock()

    def send(self, loads: Mapping[str, int], client: str, text: str) -> tuple[str, RequestInFlight]:
        """Choose a worker, record the request as sent, and return the worker's name and the record.

        Args:
            loads: Requests in flight at each available worker; at least one worker is available.
            client: The name of the client that sent the request.
            text: The prompt.
        """
        with self._lock:
            dispatcher = self._with_workers(loads)
            padded = text.encode("utf-8", "surrogatepass")
            padded += bytes(-len(padded) % BYTES_PER_TOKEN)
            request = dispatcher.make_request(
                client, array("I", padded or bytes(BYTES_PER_TOKEN)), self._answer_tokens, 0, 0
            )
            flight = dispatcher.dispatch(request)
            assert flight is not None, "the router does not queue"
            names = {number: name for name, number in self._numbers.items()}
            return names[flight.worker], flight

    def take_back(self, flight: RequestInFlight) -> None:
        """Record that the calling router did not send the request to the chosen worker."""
        with self._lock:
            if self._dispatcher is not None and self._dispatcher.is_under_way(flight):
                self._dispatcher.finish(flight, 0, failed=True)

    def _with_workers(self, loads: Mapping[str, int]) -> Dispatcher:
        if self._dispatcher is None:
            self._numbers = {name: number for number, name in enumerate(loads)}
            router = self._make(len(loads))
            dispatcher = Dispatcher(router, len(loads), POOL_TOKENS, self._now_s)
            router.prepare(Setup(weights=self._weights, fleet=dispatcher))
            self._dispatcher = dispatcher
        dispatcher = self._dispatcher
        for name in loads:
            if name not in self._numbers:
                self._numbers[name] = dispatcher.add(followed=False)
            dispatcher.join(self._numbers[name])
        for name, number in self._numbers.items():
            if name not in loads:
                dispatcher.eject(number)
                continue
            for flight in list(dispatcher.flights[number])[: -loads[name] or None]:
                dispatcher.finish(flight, self._answer_tokens)
        return dispatcher


def client_of(sent: Mapping[str, str]) -> str:
    """Return the client that the headers name, or the default client if no name is valid."""
    lower = {name.lower(): value for name, value in sent.items()}
    named = (lower[name] for name in headers.CLIENT_ALIASES if name in lower)
    return next(filter(is_name, named), headers.DEFAULT_CLIENT)


def policy_from(environment: Mapping[str, str]) -> RouterPolicy:
    """Return the policy that environment variables define; raise UsageError for a wrong value."""
    router = environment.get(ROUTER) or DEFAULT_ROUTER
    settings = read_variable(environment, SETTINGS, f'{{"{router}.PARAM": VALUE}}')
    for name in settings:
        if not name.startswith(f"{router}."):
            raise UsageError(f"{SETTINGS}: {name!r} is not a parameter of {router}")
    return RouterPolicy(router, settings, read_variable(environment, WEIGHTS, '{"CLIENT": WEIGHT}'))


def make_policy(router_args: object = None) -> Callable[..., int | None]:
    """Return a function for vllm-router that chooses a worker.

    The function returns a worker's index. If it returns None, vllm-router uses its fallback. The
    environment variables ``FAIRBENCH_ROUTER``, ``FAIRBENCH_SETTINGS`` and ``FAIRBENCH_WEIGHTS``
    configure the policy. An invalid variable raises UsageError, so that vllm-router does not start.
    """
    policy = policy_from(os.environ)

    def select(
        workers: Sequence[Mapping[str, Any]], request_text: str | None, sent: Mapping[str, str]
    ) -> int | None:
        if not workers:
            return None
        try:
            loads = {str(one["url"]): int(one.get("load") or 0) for one in workers}
            chosen, _ = policy.send(loads, client_of(sent or {}), request_text or "")
        except Exception:
            log.exception("the router failed; vllm-router uses its fallback policy")
            return None
        return [str(one["url"]) for one in workers].index(chosen)

    return select
