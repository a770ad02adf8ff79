"""Worker info: the facts that workers report about themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientSession, ClientTimeout

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.server_facts import MOST_RUNNING, info_in, vocab_size_of
from fairbench_serve.config import RouterConfig
from fairbench_serve.loads import LOADS, METRICS, page_of
from fairbench_serve.prompts import UNKNOWN_POOL_TOKENS, PromptLimits

# Assumed for workers that do not report it: about what an 8B model leaves of 80 GB.
ASSUMED_POOL_TOKENS = 400_000
ASK_TIMEOUT = ClientTimeout(total=5.0)  # vLLM examines its whole machine for its page
# The page of SGLang and the emulator, and vLLM's in its development mode, the only one that reports
# this.
SERVER_INFO = "/server_info?config_format=json"
HEADROOM = 0.05  # fraction of an engine's running requests that may wait in its own queue

log = logging.getLogger(__name__)


class WorkerInfo(NamedTuple):
    """The smallest and largest pool and the smallest vocabulary; None if no worker reports it.

    ``page_tokens`` is the largest page (SGLang's page_size), ``locals`` are the schedulers of each
    worker as reported by our plugin or the emulator; an engine's own scheduler is not reported.
    ``keeps_clients`` is false if our plugin schedules in an SGLang server, which drops the client
    of some requests.
    """

    pool_tokens: int | None
    most_pool_tokens: int | None
    page_tokens: int
    vocab_size: int | None
    locals: Sequence[Collection[str]] = ()
    keeps_clients: bool = True

    def limits(self, config: RouterConfig) -> PromptLimits:
        """Return the limits of a request; the operator's ``vocab_size`` overrides the workers'."""
        size = config.vocab_size or self.vocab_size
        if size is None:
            log.warning(
                "no worker reports its vocabulary, so token ids are not checked (set --vocab-size)"
            )
        most = self.most_pool_tokens or UNKNOWN_POOL_TOKENS
        return PromptLimits(most, size, config.patterns, self.keeps_clients)


@dataclass(eq=False)
class WorkerFacts:
    """The known facts about the workers; workers that start late report later."""

    session: ClientSession
    workers: Sequence[WorkerAddress]
    info: WorkerInfo
    config: RouterConfig

    def __post_init__(self) -> None:
        self._known = set(range(len(self.workers)))
        self.limits = self.info.limits(self.config)

    async def learn(self, worker: int) -> None:
        """Ask a worker that is about to take part for facts that are not known yet.

        An added worker may have a smaller vocabulary than the others, or a larger pool.
        """
        is_new = worker not in self._known
        if not (is_new or self.limits.vocab_size is None or self.config.local is not None):
            return
        info = await ask_workers(self.session, [self.workers[worker]])
        warn_of_others(self.config.local, {worker: info.locals[0]})
        keeps = self.limits.keeps_clients and info.keeps_clients
        self.limits = known = replace(self.limits, keeps_clients=keeps)
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
    """Log which workers do not run the requested local scheduler."""
    for worker, schedulers in found.items():
        if local is not None and set(schedulers) != {local}:
            runs = " and ".join(sorted(schedulers)) or "its engine's own scheduler"
            log.warning(
                "worker %d does not run %s but %s, which orders the requests that wait there "
                "(--gateway %s would queue them in this router instead)",
                *(worker, local, runs, local),
            )


async def ask_workers(session: ClientSession, workers: Iterable[WorkerAddress]) -> WorkerInfo:
    """Ask every worker, for at most 5 s per page."""
    told = await asyncio.gather(*(_ask(session, worker) for worker in workers))
    pools = [size for info in told if (size := _whole(info.get("max_total_num_tokens")))]
    if not pools:
        log.warning(
            "no worker reports the size of its KV pool; %d tokens are assumed", ASSUMED_POOL_TOKENS
        )
    return WorkerInfo(
        min(pools, default=None),
        max(pools, default=None),
        max((size for info in told if (size := _whole(info.get("page_size")))), default=1),
        min((size for info in told if (size := _vocab_size(info))), default=None),
        [{one for report in _reports(info) if (one := _local(report))} for info in told],
        not any(_plugged_in_sglang(info) for info in told),
    )


def _vocab_size(info: dict[str, Any]) -> int | None:
    """Return the size from the emulator's info, our SGLang plugin's report, or the model files."""
    for told in _reports(info):
        if size := _whole(told.get("vocab_size")):
            return size
    model = info.get("model_path")
    return vocab_size_of(model) if isinstance(model, str) else None


def _reports(info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a server's info, the info of each rank, and the plugin's reports."""
    states = info.get("internal_states")
    for place in (info, *(states if isinstance(states, list) else ())):
        report = place.get("fairbench") if isinstance(place, dict) else None
        yield from (told for told in (place, report) if isinstance(told, dict))


def _plugged_in_sglang(info: dict[str, Any]) -> bool:
    """Return whether a rank of SGLang reports our plugin."""
    states = info.get("internal_states")
    ranks = states if isinstance(states, list) else ()
    return any(isinstance(rank, dict) and "fairbench" in rank for rank in ranks)


def _local(report: dict[str, Any]) -> str | None:
    local = report.get("local")
    return local if isinstance(local, str) and "params" in report else None


async def _ask(session: ClientSession, worker: WorkerAddress) -> dict[str, Any]:
    info = await _page(session, worker, "/server_info")
    try:
        told = msgspec.json.decode(info, type=dict[str, Any])
    except (ValueError, RecursionError):
        told = {}
    return told if "max_total_num_tokens" in told else told | await _ask_vllm(session, worker)


async def _ask_vllm(session: ClientSession, worker: WorkerAddress) -> dict[str, Any]:
    """Return vLLM's information from its metrics, and the model's path from its model list."""
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
    """Return how many requests every worker can run at once; None if no worker reports it."""
    pages = (SERVER_INFO, LOADS, METRICS)
    told = await asyncio.gather(*(_most(session, one, page) for one in workers for page in pages))
    return min((most for most in told if most), default=None)


def headroom_of(most: int) -> int:
    """Return how many requests ``auto`` sends beyond an engine's ``most``: at least one.

    These requests replace answers that finish before the router knows and can send the next
    request. The gateway can no longer reorder requests that wait there, so there are few of them.
    """
    return max(1, ceil(HEADROOM * most))


async def _most(session: ClientSession, worker: WorkerAddress, path: str) -> int | None:
    body = await page_of(session, worker, path, ASK_TIMEOUT)
    return None if body is None else most_told_by(body)


def most_told_by(body: bytes) -> int | None:
    """Parse the limit from a page of SGLang, the emulator or vLLM; None if there is none.

    The numbers of several ranks are added.
    """
    try:
        page: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _whole(_of_metrics(body))
    if not isinstance(page, dict):
        return None
    ranks = page.get("loads")
    each = [
        _whole(one.get(MOST_RUNNING) or _of_vllm(one))
        for one in (ranks if isinstance(ranks, list) else [page])
        if isinstance(one, dict)
    ]
    told = [most for most in each if most is not None]
    return sum(told) if told and len(told) == len(each) else None


def _of_vllm(page: Mapping[str, Any]) -> object:
    """Return ``--max-num-seqs``, or the limit of scheduled requests if that is lower."""
    config: Any = page
    for name in ("vllm_config", "scheduler_config"):
        config = config.get(name) if isinstance(config, dict) else None
    if not isinstance(config, dict):
        return None
    return config.get("max_num_active_seqs") or config.get("max_num_seqs")


def _of_metrics(body: bytes) -> object:
    try:
        return info_in(body.decode("utf-8", "replace")).get(MOST_RUNNING)
    except (ValueError, KeyError):
        return None


def _whole(most: object) -> int | None:
    return most if type(most) is int and most > 0 else None
