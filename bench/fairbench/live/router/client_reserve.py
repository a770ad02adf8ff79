"""The reserve: the part of the workers that no single client gets while others are absent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import ClientSession

from fairbench.config.gateway import CLIENT_LIMITS, CLIENT_RESERVE, DEFAULT_RESERVE
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.running_limits import most_running
from fairbench.live.router.worker_info import WorkerInfo

log = logging.getLogger(__name__)


async def default_limits(
    session: ClientSession,
    workers: Sequence[WorkerAddress],
    info: WorkerInfo,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the limits of each client, computed from the sizes that the workers report.

    A client alone may have all requests that the workers run and all of their pools, less the
    reserve; several clients share what is there. Empty if ``settings`` limit clients already, or if
    no worker says how large it is.
    """
    if any(name in settings for name in (*CLIENT_LIMITS, CLIENT_RESERVE)):
        return {}
    most = await most_running(session, workers)
    sizes = zip(CLIENT_LIMITS, (info.pool_tokens, most), strict=True)
    limits: dict[str, Any] = {name: size for name, size in sizes if size}
    if not limits:
        log.warning(
            "no worker reports its size, so one client may use all workers (set limits with "
            "--gateway and --set)"
        )
        return {}
    told = " and ".join(f"{name.partition('_')[2]} {size}" for name, size in limits.items())
    log.info(
        "a client that is alone may use %.0f%% of each worker (%s)",
        100 / (1 + DEFAULT_RESERVE),
        told,
    )
    return limits | {CLIENT_RESERVE: DEFAULT_RESERVE}
