"""Data-parallel ranks of a vLLM server: checks of settings, and the link between ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import LocalScheduler
from fairbench_engines.rank_accounts import ranks_of
from fairbench_engines.ranks import FOLDER, RankLink

FLAG = "--data-parallel-size"


def check_ranks(config: Any, scheduler: LocalScheduler) -> None:
    """Raise UsageError unless all data-parallel ranks run on this host under a single API server.

    The server's first process checks the hosts and sets the environment variable named ``FOLDER``.
    Engine cores of a dense model see a data-parallel size of 1, so they cannot check that all ranks
    run on one host.
    """
    parallel = config.parallel_config
    several = parallel.data_parallel_size > 1
    if os.environ.get(FOLDER):
        several = True
    elif parallel.data_parallel_index > 0:
        raise UsageError(
            f"{FLAG}: the server's first process did not set {FOLDER}, because it loaded no "
            "plugin of fairbench; VLLM_PLUGINS must include fairbench"
        )
    elif several:
        _check_one_host(parallel)
    if several:
        if config.scheduler_config.policy == "priority":
            raise UsageError(
                f"{FLAG} is not supported with --scheduling-policy priority: each priority "
                "class has its own service counts, which ranks do not exchange"
            )
        ranks_of(scheduler)


def _check_one_host(parallel: Any) -> None:
    for does, what in (
        (parallel.data_parallel_backend != "mp", "--data-parallel-backend ray"),
        (
            parallel.data_parallel_size_local != parallel.data_parallel_size,
            "ranks on several hosts, or behind an external load balancer",
        ),
        (parallel.data_parallel_rank_local is not None, "ranks that are started one by one"),
    ):
        if does:
            raise UsageError(
                f"{FLAG} {parallel.data_parallel_size} is not supported with FAIRBENCH_LOCAL and "
                f"{what}: the ranks share their service counts in memory, so a single server must "
                "start all of them on one host"
            )


def link_of(parallel: Any, scheduler: LocalScheduler) -> RankLink | None:
    """Return an engine core's link to all other ranks, or None if there is only one rank."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    return RankLink(Path(folder), parallel.data_parallel_index, ranks_of(scheduler))
