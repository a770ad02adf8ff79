"""The number of requests that each worker reports to run at once, for gateways' ``auto``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.loads import LOADS, METRICS
from fairbench.live.vllm_metrics import MOST_RUNNING, info_in

# SGLang's and the emulator's own page, and vLLM's in its development mode, which says it only so.
SERVER_INFO = "/server_info?config_format=json"
TIMEOUT = ClientTimeout(total=5.0)  # vLLM looks at its whole machine for that page
HEADROOM = 0.05  # of what an engine runs at once, to wait in its own queue


async def most_running(session: ClientSession, workers: Sequence[WorkerAddress]) -> int | None:
    """Return how many requests every worker can run at once; None if no worker reports it."""
    pages = (SERVER_INFO, LOADS, METRICS)
    told = await asyncio.gather(*(_most(session, one, page) for one in workers for page in pages))
    return min((most for most in told if most), default=None)


def headroom_of(most: int) -> int:
    """Return how many requests ``auto`` sends beyond an engine's ``most``: at least one.

    They replace answers that finish before the router hears of it and can send the next request.
    The gateway can no longer reorder requests that wait there, so there are few of them.
    """
    return max(1, ceil(HEADROOM * most))


async def _most(session: ClientSession, worker: WorkerAddress, path: str) -> int | None:
    try:
        async with session.get(
            worker.url + path, headers=worker.authorization, timeout=TIMEOUT
        ) as answer:
            body = await answer.read()
            return most_told_by(body) if answer.ok else None
    except (ClientError, OSError):
        return None


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
