"""The configuration of fairbench's router, with latency targets and deadlines of requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from fairbench.errors import UsageError, unknown_name
from fairbench.targets import NO_TARGETS, Due, Targets, laid_over, parse_targets
from fairbench_load import headers
from fairbench_load.headers import BODY_CLIENT
from fairbench_load.http_server import MAX_BODY_BYTES, bad_request
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.flags import SERVE
from fairbench_serve.keys_file import WorkerKeys
from fairbench_serve.served_settings import SERVED_DETECTOR

LONGEST_MS = 86_400_000  # longest deadline in milliseconds that a header may set (one day)


@dataclass(frozen=True, slots=True)
class Promise:
    """The latency targets of a request, and the deadline in seconds from its header."""

    targets: Targets = NO_TARGETS
    within_s: float | None = None

    def due(self, arrival_s: float, max_new_tokens: int) -> Due:
        """Return a request's deadlines in seconds; a header's deadline overrides the targets."""
        due = self.targets.due(arrival_s, None, max_new_tokens)
        return due if self.within_s is None else due._replace(end_s=arrival_s + self.within_s)


NO_PROMISE = Promise()


@dataclass(frozen=True, slots=True)
class Promises:
    """The latency targets of all requests, and the targets of each named objective."""

    of_all: Targets = NO_TARGETS
    objectives: Mapping[str, Targets] = field(default_factory=dict)

    def promise_for(self, sent: Mapping[str, str]) -> Promise:
        """Return the latency targets that the headers of a request select.

        An objective is a named set of targets. Raises Problem (HTTP status 400) for an invalid
        header, or for an unknown objective if the router has objectives. A router without
        objectives ignores the header of objectives, because another router may use it.
        """
        named = (sent[name] for name in headers.OBJECTIVE_ALIASES if name in sent)
        objective = next(named, None)
        targets = self.of_all
        if objective is not None and self.objectives:
            if objective not in self.objectives:
                raise bad_request(str(unknown_name("objective", objective, self.objectives)))
            targets = self.objectives[objective]
        within = sent.get(headers.DEADLINE)
        if within is None:
            return Promise(targets) if targets is not NO_TARGETS else NO_PROMISE
        is_count = within.isascii() and within.isdigit() and len(within) < 12
        if not is_count or not 1 <= int(within) <= LONGEST_MS:
            raise bad_request(
                f"{headers.DEADLINE}: {within[:40]!r} must be a number of milliseconds from 1 "
                f"to {LONGEST_MS}"
            )
        return Promise(targets, int(within) / 1000)

    def table(self) -> dict[str, str]:
        """Return the targets as flags: a map from ``NAME.LATENCY`` to a time."""
        named = {"": self.of_all, **self.objectives}
        return {
            f"{name}.{latency}".lstrip("."): str(target)
            for name, targets in named.items()
            for latency, target in targets.given()
        }


def promises(given: Mapping[str, str] | None) -> Promises:
    """Parse ``--goodput`` flags: ``ttft`` (for all requests) or ``NAME.ttft`` (for an objective).

    Raises UsageError for an unknown latency or an invalid time. A target must not be a multiple of
    the latency on an idle worker, because the router does not know this latency.
    """
    texts: dict[str, dict[str, str]] = {"": {}}
    for key, text in (given or {}).items():
        name, _, latency = key.rpartition(".")
        texts.setdefault(name, {})[latency] = text
    parsed = {name: parse_targets(one, f"--goodput {name}".rstrip()) for name, one in texts.items()}
    for targets in parsed.values():
        for latency, target in targets.given():
            if target.of_alone:
                raise UsageError(
                    f"--goodput {latency}:{target}: multiples of the latency on an idle "
                    "worker are not supported; write a time such as 500ms or 2s"
                )
    of_all = parsed.pop("")
    return Promises(of_all, {name: laid_over(of_all, one) for name, one in parsed.items()})


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The configuration of the router: its policy, workers, clients, and limits.

    - ``router`` and ``settings``: the router's name, and its parameters as ``NAME.PARAM``.
    - ``weights``: the weight of each client (default 1), which overrides the key file.
    - ``keys``: the client of each API key; without keys, requests name their clients themselves.
    - ``keys_file``: the file of API keys, weights and quotas, which is read again after a change.
    - ``client_from``: body fields that name the client if no header does, strongest first.
    - ``tokenizer``: path of a file tokenizer.json; without the file, token ids are approximate.
    - ``max_queue``: limit on the number of unfinished requests, including requests at the workers.
    - ``max_queue_per_client``: limit on unfinished requests per client; None means ``max_queue``.
    - ``max_body_bytes``: limit on the bytes of a request's body.
    - ``max_bodies_bytes``: limit on the bytes of all bodies; None means a quarter of the memory.
    - ``vocab_size``: number of token ids of the model; None means the number that workers report.
    - ``patterns``: whether clients may send regular expressions and grammars.
    - ``health_interval_s``: seconds between health checks of a worker.
    - ``health_timeout_s``: seconds within which a worker must answer a health check.
    - ``stall_s``: a worker with requests counts as down after this many seconds without progress.
    - ``local``: the local scheduler that the workers should run; None means any scheduler.
    - ``gateway``, ``saturation``: policy and saturation detector of the queue in front of the
      router. Without ``gateway``, no queue is in front of the router. By default, the detector
      ``concurrency`` limits the requests of a worker to the number that the worker reports.
    - ``limits_clients``: whether each client's running requests are limited by default.
    - ``promises``: the latency targets of requests.
    - ``hosts``: host names that the router accepts without keys, besides IP addresses,
      ``localhost`` and this machine's name; ``*`` accepts any name.
    - ``router_id``: the name of this router process, by which routers detect loops.
    - ``admin_port``, ``admin_key``: port and API key of the admin port; None means no admin port.
    - ``worker_keys``: API keys for workers that are added through the admin port.
    - ``peers``, ``peer_key``: URLs of other routers with the same workers, and their common key.
    """

    router: str
    workers: Sequence[WorkerAddress]
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, str] | None = None
    keys_file: Path | None = None
    client_from: Sequence[str] = (BODY_CLIENT,)
    tokenizer: str | None = None
    max_queue: int = SERVE["max_queue"].default
    max_queue_per_client: int | None = None
    vocab_size: int | None = None
    patterns: bool = False
    max_body_bytes: int = MAX_BODY_BYTES
    max_bodies_bytes: int | None = None
    health_interval_s: float = 5.0
    health_timeout_s: float = 20.0
    stall_s: float = SERVE["stall_timeout"].default
    local: str | None = None
    gateway: str | None = None
    saturation: str = SERVED_DETECTOR
    limits_clients: bool = False
    worker_keys: WorkerKeys = field(default_factory=WorkerKeys)
    admin_port: int | None = None
    admin_key: str | None = field(default=None, repr=False)
    peers: Sequence[str] = ()
    peer_key: str | None = field(default=None, repr=False)
    promises: Promises = field(default_factory=Promises)
    hosts: Collection[str] = ()
    router_id: str = field(default_factory=lambda: token_hex(8))
