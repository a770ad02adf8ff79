"""Reports of workers: their load (for saturation detectors), sizes and local schedulers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientSession, ClientTimeout

from fairbench.schedulers.views import WorkerLoad
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_load.server_facts import MOST_RUNNING, info_in, vocab_size_of
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.exchange import CONNECTION_ERRORS
from fairbench_serve.prompts import UNKNOWN_POOL_TOKENS, PromptLimits

# HTTP paths that report a worker's load, and names of load metrics in SGLang and vLLM
LOADS, METRICS = "/v1/loads?include=core", "/metrics"
PLACES = "at /v1/loads or /metrics"
WAITING = ("sglang:num_queue_reqs", "vllm:num_requests_waiting")
RUNNING = ("sglang:num_running_reqs", "vllm:num_requests_running")
USAGE = ("sglang:token_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_SAMPLE = re.compile(r"^((?:sglang|vllm):\w+)(?:\{[^}]*\})? +(\S+)", re.MULTILINE)
TIMEOUT = ClientTimeout(total=1.0)  # maximum seconds to wait for a worker's load report
BLIND_S = 5.0  # seconds without a report after which a worker's load is unknown


class Told(NamedTuple):
    """A worker's load report: queued and running requests, and used fraction of KV memory."""

    waiting: int
    running: int
    usage: float


@dataclass(eq=False)
class PolledLoads:
    """The workers' loads (``FleetView``) according to their last reports.

    Reports older than ``stale_s`` seconds are ignored. A worker's load is unknown if its last
    answer contained no load report and its last report is older than ``BLIND_S`` seconds.
    """

    dispatcher: Dispatcher
    pool_tokens: int
    stale_s: float
    now_s: Callable[[], float]

    def __post_init__(self) -> None:
        self._told: dict[int, tuple[float, Told]] = {}
        # workers whose last answer contained no load report
        self._asked: set[int] = set()

    def workers(self) -> Collection[int]:
        return self.dispatcher.workers()

    def load(self, worker: int) -> WorkerLoad:
        """Return a worker's last load report or, if it is too old, the router's own counts."""
        counted = self.dispatcher.load(worker)
        at_s, told = self._told.get(worker, (-self.stale_s, None))
        if told is None or self.now_s() - at_s > self.stale_s:
            return counted
        tokens = round(told.usage * self.pool_tokens)
        return WorkerLoad(counted.in_flight, tokens, told.waiting, told.running, told.waiting > 0)

    def record_report(self, worker: int, told: Told | None) -> None:
        """Record a worker's load report, or None if the worker's answer contained no report."""
        if told is None:
            self._asked.add(worker)
        else:
            self._asked.discard(worker)
            self._told[worker] = self.now_s(), told
        self.dispatcher.release()

    def blocked(self) -> str | None:
        """Return why requests must wait (all workers' loads are unknown), or None."""
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
    """Request a worker's load every ``poll_s`` seconds until this task is cancelled."""
    page, complained = LOADS, False
    while True:
        told = await _ask_load(session, address, page)
        if told is None:
            page = METRICS if page == LOADS else LOADS
            told = await _ask_load(session, address, page)
        if told is not None or worker in loads.workers():
            loads.record_report(worker, told)
        if told is None and not complained and worker in loads.workers():
            complained = True
            log.warning(
                "worker %d reports no load %s; the router treats this worker as full",
                worker,
                PLACES,
            )
        await asyncio.sleep(poll_s)


async def _ask_load(session: ClientSession, worker: WorkerAddress, page: str) -> Told | None:
    body = await page_of(session, worker, page, TIMEOUT)
    return None if body is None else told_by(body)


async def page_of(
    session: ClientSession, worker: WorkerAddress, path: str, timeout: ClientTimeout
) -> bytes | None:
    """Return the body of the worker's answer at ``path``, or None after an error or a timeout."""
    try:
        async with session.get(
            worker.url + path, headers=worker.authorization, timeout=timeout, allow_redirects=False
        ) as answer:
            body = await answer.read()
            return body if answer.ok else None
    except CONNECTION_ERRORS:
        return None


def told_by(body: bytes) -> Told | None:
    """Parse a worker's answer into a load report, or return None if the answer has no loads.

    The request counts of a server's ranks are added, and the ranks' used fractions of KV memory are
    averaged.
    """
    try:
        page = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        page = None
    try:
        if page is None:
            return _load_in_metrics(body.decode("utf-8", "replace"))
        ranks = page.get("loads") if isinstance(page, dict) else None
        if not isinstance(ranks, list) or not ranks:
            return None
        loads = [
            (one["num_waiting_reqs"], one["num_running_reqs"], one["token_usage"]) for one in ranks
        ]
        return _sum_of(loads)
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def samples(text: str) -> list[tuple[str, float]]:
    """Return the name and value of each engine metric in ``text``; raise ValueError if invalid."""
    return [(name, float(value)) for name, value in _SAMPLE.findall(text)]


def _load_in_metrics(text: str) -> Told | None:
    found: dict[str, list[float]] = {}
    for name, value in samples(text):
        found.setdefault(name, []).append(value)
    waiting, running, usage = (
        next((found[name] for name in names if name in found), None)
        for names in (WAITING, RUNNING, USAGE)
    )
    if waiting is None or running is None or usage is None:
        return None
    return _sum_of(list(zip(waiting, running, usage, strict=False)))


def _sum_of(ranks: Sequence[tuple[float, float, float]]) -> Told:
    waiting, running, usage = (list(column) for column in zip(*ranks, strict=True))
    return Told(int(sum(waiting)), int(sum(running)), sum(usage) / len(usage))


# assumed KV capacity in tokens if no worker reports it (8B model on a GPU with 80 GB)
ASSUMED_POOL_TOKENS = 400_000
# time limit for a GET request to a worker; vLLM needs seconds to answer some paths
ASK_TIMEOUT = ClientTimeout(total=5.0)
# HTTP path of a server's settings; in vLLM, only this path reports the limit on running requests,
# and only in development mode
SERVER_INFO = "/server_info?config_format=json"
# requests that may wait in an engine's own queue, as a fraction of its running requests
HEADROOM = 0.05

log = logging.getLogger(__name__)


class WorkerInfo(NamedTuple):
    """KV memory, cache page and vocabulary of the workers, and their local schedulers.

    A value is None if no worker reports it.

    - ``pool_tokens`` and ``most_pool_tokens`` are the KV pool sizes (in tokens) of the workers with
      the smallest and the largest pool.
    - ``page_tokens`` is the largest cache page of a worker in tokens (SGLang's ``page_size``).
    - ``vocab_size`` is the smallest vocabulary of the workers.
    - ``locals`` holds each worker's local schedulers, without an engine's own default scheduler.
    """

    pool_tokens: int | None
    most_pool_tokens: int | None
    page_tokens: int
    vocab_size: int | None
    locals: Sequence[Collection[str]] = ()

    def limits(self, config: RouterConfig) -> PromptLimits:
        """Return the limits on prompts; ``--vocab-size`` overrides the reported vocabulary."""
        size = config.vocab_size or self.vocab_size
        if size is None:
            log.warning(
                "no worker reports its vocabulary, so token ids are not checked (set --vocab-size)"
            )
        most = self.most_pool_tokens or UNKNOWN_POOL_TOKENS
        return PromptLimits(most, size, config.patterns)


@dataclass(eq=False)
class WorkerFacts:
    """Known sizes and settings of the workers, including workers that start late."""

    session: ClientSession
    workers: Sequence[WorkerAddress]
    info: WorkerInfo
    config: RouterConfig

    def __post_init__(self) -> None:
        self._known = set(range(len(self.workers)))
        self.limits = self.info.limits(self.config)

    async def learn(self, worker: int) -> None:
        """Ask a worker that becomes available for its KV memory, vocabulary and scheduler.

        The limits on prompts change if an added worker has a smaller vocabulary or more KV memory.
        """
        is_new = worker not in self._known
        if not (is_new or self.limits.vocab_size is None or self.config.local is not None):
            return
        info = await ask_workers(self.session, [self.workers[worker]])
        warn_of_others(self.config.local, {worker: info.locals[0]})
        known = self.limits
        if known.vocab_size is None:
            most_tokens = info.most_pool_tokens or known.most_tokens
            self.limits = replace(known, most_tokens=most_tokens, vocab_size=info.vocab_size)
        elif is_new:
            sizes = [known.vocab_size, None if self.config.vocab_size else info.vocab_size]
            self.limits = replace(
                known,
                most_tokens=max(known.most_tokens, info.most_pool_tokens or 0),
                vocab_size=min(size for size in sizes if size),
            )
        self._known.add(worker)


def warn_of_others(local: str | None, found: Mapping[int, Collection[str]]) -> None:
    """Log a warning for each worker that does not run the requested local scheduler."""
    for worker, schedulers in found.items():
        if local is not None and set(schedulers) != {local}:
            runs = " and ".join(sorted(schedulers)) or "its engine's own scheduler"
            log.warning(
                "worker %d does not run %s but %s, which orders the requests that wait there "
                "(--gateway %s would queue them in this router instead)",
                *(worker, local, runs, local),
            )


async def ask_workers(session: ClientSession, workers: Iterable[WorkerAddress]) -> WorkerInfo:
    """Ask all workers for their settings and sizes, with a limit of 5 s per HTTP request."""
    told = await asyncio.gather(*(_ask_info(session, worker) for worker in workers))
    pools = [size for info in told if (size := _positive_int(info.get("max_total_num_tokens")))]
    if not pools:
        log.warning(
            "no worker reports the size of its KV pool; %d tokens are assumed", ASSUMED_POOL_TOKENS
        )
    return WorkerInfo(
        min(pools, default=None),
        max(pools, default=None),
        max((size for info in told if (size := _positive_int(info.get("page_size")))), default=1),
        min((size for info in told if (size := _vocab_size(info))), default=None),
        [
            {
                report["local"]
                for report in _reports(info)
                if isinstance(report.get("local"), str) and "params" in report
            }
            for info in told
        ],
    )


def _vocab_size(info: dict[str, Any]) -> int | None:
    for told in _reports(info):
        if size := _positive_int(told.get("vocab_size")):
            return size
    model = info.get("model_path")
    return vocab_size_of(model) if isinstance(model, str) else None


def _reports(info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the reports of a server and of each of its ranks, and the plugin's reports."""
    states = info.get("internal_states")
    for place in (info, *(states if isinstance(states, list) else ())):
        report = place.get("fairbench") if isinstance(place, dict) else None
        yield from (told for told in (place, report) if isinstance(told, dict))


async def _ask_info(session: ClientSession, worker: WorkerAddress) -> dict[str, Any]:
    info = await _page(session, worker, "/server_info")
    try:
        told = msgspec.json.decode(info, type=dict[str, Any])
    except (ValueError, RecursionError):
        told = {}
    return told if "max_total_num_tokens" in told else told | await _ask_vllm(session, worker)


async def _ask_vllm(session: ClientSession, worker: WorkerAddress) -> dict[str, Any]:
    metrics = await _page(session, worker, "/metrics")
    try:
        info = info_in(metrics.decode())
    except (ValueError, KeyError):
        return {}
    if info:
        try:
            models = await _page(session, worker, "/v1/models")
            info["model_path"] = msgspec.json.decode(models)["data"][0].get("root")
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            pass
    return info


async def _page(session: ClientSession, worker: WorkerAddress, path: str) -> bytes:
    return await page_of(session, worker, path, ASK_TIMEOUT) or b""


async def most_running(session: ClientSession, workers: Sequence[WorkerAddress]) -> int | None:
    """Return the lowest of the workers' limits on running requests, or None if none is known."""
    pages = (SERVER_INFO, LOADS, METRICS)
    told = await asyncio.gather(*(_most(session, one, page) for one in workers for page in pages))
    return min((most for most in told if most), default=None)


def headroom_of(most: int) -> int:
    """Return how many requests (at least 1) may wait in an engine that runs ``most`` requests.

    A request in the engine's queue starts as soon as a running request ends, before the router can
    send another request. Only a few requests may wait in an engine, because the gateway cannot
    reorder them there.
    """
    return max(1, ceil(HEADROOM * most))


async def _most(session: ClientSession, worker: WorkerAddress, path: str) -> int | None:
    body = await page_of(session, worker, path, ASK_TIMEOUT)
    return None if body is None else most_told_by(body)


def most_told_by(body: bytes) -> int | None:
    """Return the limit on running requests from an answer of SGLang, the emulator or vLLM.

    Returns the sum of the limits of all ranks, or None if a rank reports no limit.
    """
    try:
        page: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        try:
            return _positive_int(info_in(body.decode("utf-8", "replace")).get(MOST_RUNNING))
        except (ValueError, KeyError):
            return None
    if not isinstance(page, dict):
        return None
    ranks = page.get("loads")
    each = [
        _positive_int(one.get(MOST_RUNNING) or _limit_of_vllm(one))
        for one in (ranks if isinstance(ranks, list) else [page])
        if isinstance(one, dict)
    ]
    told = [most for most in each if most is not None]
    return sum(told) if told and len(told) == len(each) else None


def _limit_of_vllm(page: Mapping[str, Any]) -> object:
    """Return vLLM's ``--max-num-seqs``, or the limit on scheduled requests if one is set."""
    config: Any = page
    for name in ("vllm_config", "scheduler_config"):
        config = config.get(name) if isinstance(config, dict) else None
    if not isinstance(config, dict):
        return None
    return config.get("max_num_active_seqs") or config.get("max_num_seqs")


def _positive_int(most: object) -> int | None:
    return most if type(most) is int and most > 0 else None
