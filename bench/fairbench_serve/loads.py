"""Polled loads of the workers, as a saturation detector sees them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.schedulers.views import WorkerLoad
from fairbench_serve.dispatcher import Dispatcher

# SGLang's own page of loads, and the names of these facts in the metrics of SGLang, the emulator
# and vLLM.
LOADS, METRICS = "/v1/loads?include=core", "/metrics"
PLACES = "at /v1/loads or /metrics"
WAITING = ("sglang:num_queue_reqs", "vllm:num_requests_waiting")
RUNNING = ("sglang:num_running_reqs", "vllm:num_requests_running")
USAGE = ("sglang:token_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_SAMPLE = re.compile(r"^((?:sglang|vllm):\w+)(?:\{[^}]*\})? +(\S+)", re.MULTILINE)
TIMEOUT = ClientTimeout(total=1.0)
BLIND_S = 5.0  # seconds without a report after which a worker that has reported counts as blind

log = logging.getLogger(__name__)


class Told(NamedTuple):
    """A worker's report: waiting requests, running requests, used share of its KV pool."""

    waiting: int
    running: int
    usage: float


@dataclass(eq=False)
class PolledLoads:
    """A ``FleetView`` of the last reports; reports older than ``stale_s`` are ignored.

    A worker is blind if it answers without a report: at once if it has never reported, and after
    ``BLIND_S`` otherwise.
    """

    dispatcher: Dispatcher
    pool_tokens: int
    stale_s: float
    now_s: Callable[[], float]

    def __post_init__(self) -> None:
        self._told: dict[int, tuple[float, Told]] = {}
        self._asked: set[int] = set()  # workers whose last answer held no report

    def workers(self) -> Collection[int]:
        return self.dispatcher.workers()

    def load(self, worker: int) -> WorkerLoad:
        """Return a worker's latest report, or the router's own count if that is too old."""
        counted = self.dispatcher.load(worker)
        at_s, told = self._told.get(worker, (-self.stale_s, None))
        if told is None or self.now_s() - at_s > self.stale_s:
            return counted
        tokens = round(told.usage * self.pool_tokens)
        return WorkerLoad(counted.in_flight, tokens, told.waiting, told.running, told.waiting > 0)

    def hear(self, worker: int, told: Told | None) -> None:
        """Record a worker's answer: a report, or None for an answer without one."""
        if told is None:
            self._asked.add(worker)
        else:
            self._asked.discard(worker)
            self._told[worker] = self.now_s(), told
        self.dispatcher.release()

    def blocked(self) -> str | None:
        """Return why no request will be sent, or None if one worker at least reports its load."""
        up = self.workers()
        if not up or not all(map(self._is_blind, up)):
            return None
        return f"the saturation detector needs the workers' loads, but no worker reports {PLACES}"

    def _is_blind(self, worker: int) -> bool:
        at_s, _ = self._told.get(worker, (-inf, None))
        return worker in self._asked and self.now_s() - at_s > BLIND_S


async def poll(
    session: ClientSession, address: WorkerAddress, worker: int, loads: PolledLoads, poll_s: float
) -> None:
    """Ask a worker every ``poll_s`` until cancelled; each worker has its own task."""
    page, complained = LOADS, False
    while True:
        told = await _ask(session, address, page)
        if told is None:
            page = METRICS if page == LOADS else LOADS
            told = await _ask(session, address, page)
        if told is not None or worker in loads.workers():
            loads.hear(worker, told)
        if told is None and not complained and worker in loads.workers():
            complained = True
            log.warning("worker %d reports no load %s; it counts as full", worker, PLACES)
        await asyncio.sleep(poll_s)


async def _ask(session: ClientSession, worker: WorkerAddress, page: str) -> Told | None:
    body = await page_of(session, worker, page, TIMEOUT)
    return None if body is None else told_by(body)


async def page_of(
    session: ClientSession, worker: WorkerAddress, path: str, timeout: ClientTimeout
) -> bytes | None:
    """Return a page of ``worker`` at ``path``, or None without one within ``timeout``."""
    try:
        async with session.get(
            worker.url + path, headers=worker.authorization, timeout=timeout, allow_redirects=False
        ) as answer:
            body = await answer.read()
            return body if answer.ok else None
    except (ClientError, OSError):
        return None


def told_by(body: bytes) -> Told | None:
    """Parse a page of loads or metrics; return None for another page.

    The counts of several ranks are added; their pool shares are averaged.
    """
    try:
        page = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        page = None
    try:
        return _of_metrics(body.decode("utf-8", "replace")) if page is None else _of_loads(page)
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def _of_loads(page: Any) -> Told | None:
    ranks = page.get("loads") if isinstance(page, dict) else None
    if not isinstance(ranks, list) or not ranks:
        return None
    return _sum_of(
        [(one["num_waiting_reqs"], one["num_running_reqs"], one["token_usage"]) for one in ranks]
    )


def samples(text: str) -> list[tuple[str, float]]:
    """Return the samples of SGLang's and vLLM's metrics on a page. Raises ValueError."""
    return [(name, float(value)) for name, value in _SAMPLE.findall(text)]


def _of_metrics(text: str) -> Told | None:
    found: dict[str, list[float]] = {}
    for name, value in samples(text):
        found.setdefault(name, []).append(value)
    waiting, running, usage = (_first(found, names) for names in (WAITING, RUNNING, USAGE))
    if waiting is None or running is None or usage is None:
        return None
    return _sum_of(list(zip(waiting, running, usage, strict=False)))


def _first(found: Mapping[str, list[float]], names: Sequence[str]) -> list[float] | None:
    return next((found[name] for name in names if name in found), None)


def _sum_of(ranks: Sequence[tuple[float, float, float]]) -> Told:
    waiting, running, usage = (list(column) for column in zip(*ranks, strict=True))
    return Told(int(sum(waiting)), int(sum(running)), sum(usage) / len(usage))
