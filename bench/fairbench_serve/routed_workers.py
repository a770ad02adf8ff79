"""The workers behind ``fairbench serve``: given by URL, or started by the command."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.defaults import SPELLINGS, table_of
from fairbench.config.flags.flag import STARTED
from fairbench.config.resolve import resolve
from fairbench.config.settings import ENGINE
from fairbench.errors import UsageError, unknown_name, writing
from fairbench.execute.interruption import interruptible
from fairbench.live.backends.base import LiveOptions
from fairbench.live.backends.registry import check_live
from fairbench.live.backends.workers import running_workers
from fairbench.live.processes.addresses import WorkerAddress, parse_worker, same_worker
from fairbench.schedulers.gateway.registry import ADMISSION
from fairbench.schedulers.registry import router_class, split_pair
from fairbench.schedulers.setup import checked_weights

if TYPE_CHECKING:
    from fairbench_serve.keys_file import WorkerKeys  # needs the live extra

log = logging.getLogger(__name__)


class Routed(NamedTuple):
    """A router by name with its ``NAME.PARAM`` settings, and its workers.

    ``weights`` are the clients' weights by name; a client without a weight has 1, and unknown
    clients may appear. ``local`` is the local scheduler that running workers are asked for; None
    means that they are not asked.
    """

    router: str
    settings: Mapping[str, Any]
    weights: Mapping[str, float]
    workers: Sequence[WorkerAddress]
    local: str | None = None
    spec: ExperimentSpec | None = None


def named_workers(
    urls: Sequence[str],
    scheduler: str,
    router: str | None,
    settings: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    parts: Collection[str],
    local: str | None,
    keys: WorkerKeys,
    all_named: bool,
) -> Routed:
    """Return running workers with their ``keys``. ``parts`` have settings besides the router.

    Raises UsageError for a wrong name or address, a worker named twice, a key of an unnamed worker,
    or a setting of another part.
    """
    name = router or split_pair(scheduler)[0]
    _check_settings(settings, *dict.fromkeys((name, *parts)))
    workers = [parse_worker(url) for url in urls]
    found: dict[str, frozenset[str]] = {}
    for number, worker in enumerate(workers):
        twin = same_worker(worker.url, [earlier.url for earlier in workers[:number]], found)
        if twin is not None:
            shown = "" if twin == worker.url else f" (as {twin})"
            raise UsageError(
                f"--worker-url {worker.url}: given twice{shown}; give each worker once"
            )
    if all_named:  # the number of workers is fixed
        keys.check_named([worker.url for worker in workers])
    return Routed(
        name, _served(name, settings), weights, [keys.signed(worker) for worker in workers], local
    )


def planned_workers(
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    parts: Collection[str],
) -> Routed:
    """Return workers to be started later, from the same flags as ``started_workers``.

    Raises UsageError for a wrong flag.
    """
    if (kind := flags["backend"]["kind"]) not in STARTED:
        raise unknown_name("backend", kind, STARTED)
    # Weights, and the settings of queue and router, do not belong to the workers.
    before = {*SPELLINGS, *(key for key in settings if key.startswith(f"{ADMISSION}."))}
    spec = resolve(flags, {key: value for key, value in settings.items() if key not in before})
    _check_settings(settings, *dict.fromkeys((spec.router, spec.local, ENGINE, *parts)))
    moved = table_of({"weights": settings.get(f"{spec.local}.weights")})
    entitled = checked_weights(moved | dict(weights))
    # The weights are not resolved, because no workload names their clients.
    spec = spec.model_copy(update={"weights": entitled or None})
    given = {**settings, **spec.settings}
    return Routed(spec.router, _served(spec.router, given), entitled, (), spec=spec)


@contextmanager
def started_workers(
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    options: LiveOptions,
    log_dir: Path,
    weights: Mapping[str, float],
    *,
    parts: Collection[str],
) -> Iterator[Routed]:
    """Start workers that end with the block, from the flags of ``fairbench run``.

    ``parts`` have settings besides router, local scheduler and engine. Raises UsageError for a
    wrong flag, RunFailed if a worker does not start, KeyboardInterrupt if interrupted meanwhile.
    """
    planned = planned_workers(flags, settings, weights, parts=parts)
    assert planned.spec is not None
    check_live(planned.spec, options)
    with writing(log_dir, "--log-dir"):
        log_dir.mkdir(parents=True, exist_ok=True)
    with (
        interruptible() as interrupted,
        running_workers(
            planned.spec,
            log_dir,
            options,
            on_ready=lambda progress: log.info("workers ready: %d of %d", *progress),
            interrupted=interrupted,
        ) as workers,
    ):
        if interrupted():  # after the last check of the code that started them
            raise KeyboardInterrupt
        yield planned._replace(workers=workers.addresses)


def _served(router: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings; missing ones have the router's defaults for serving."""
    served = router_class(router).served_params.items()
    return {f"{router}.{name}": value for name, value in served} | dict(settings)


def _check_settings(settings: Mapping[str, Any], *owners: str) -> None:
    """Raise UsageError for a setting that no used part supports."""
    for key in settings:
        if key.partition(".")[0] not in owners:
            parameters = " and ".join(f"{owner}.PARAM" for owner in owners)
            raise UsageError(f"--set {key}: only {parameters} can be set here")
