"""Readers of servers' information pages, which show settings and metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from fairbench.errors import DataError, RunFailed
from fairbench.files.formats import json_file
from fairbench_load.plugin_config import LIMIT, OF_SERVER, PROOF, PluginConfig

TIMEOUT_S = 10.0
NO_HEADERS: Mapping[str, str] = {}

_direct = build_opener(ProxyHandler({}))


def answers(url: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether ``url`` answers with HTTP status 2xx within ``timeout_s`` seconds."""
    status = status_of(url, method=method, timeout_s=timeout_s)
    return status is not None and status < 300


def status_of(url: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> int | None:
    """Return the HTTP status of ``url``, or None if no answer arrives within ``timeout_s`` s."""
    try:
        with _direct.open(Request(url, method=method), timeout=timeout_s) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
    except (OSError, HTTPException):
        return None


def get_text(
    url: str, *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = TIMEOUT_S
) -> str:
    """Return the text at ``url``.

    Raises RunFailed if the server does not answer within ``timeout_s`` seconds.
    """
    try:
        with _direct.open(Request(url, headers=dict(headers)), timeout=timeout_s) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise RunFailed(f"{url}: {error}") from None
    return content.decode("utf-8", "replace")


def get_json(
    url: str, *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return the JSON object at ``url``.

    Raises RunFailed if the server does not answer within ``timeout_s`` seconds, or if the answer is
    not a JSON object.
    """
    try:
        content = json.loads(get_text(url, headers=headers, timeout_s=timeout_s))
    except ValueError as error:
        raise RunFailed(f"{url}: {error}") from None
    if not isinstance(content, dict):
        raise RunFailed(f"{url}: the answer is not a JSON object")
    return content


POOL = "vllm:cache_config_info"
MOST_RUNNING = "max_running_requests"


def vocab_size_of(model: str) -> int | None:
    """Return ``vocab_size`` from config.json in a model's folder, or None if unknown."""
    try:
        config = json_file(Path(model) / "config.json", model)
        return int(config.get("text_config", config)["vocab_size"])
    except (DataError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None


def info_in(metrics: str) -> dict[str, Any]:
    """Return a server's settings from its Prometheus metrics, under the keys of SGLang.

    If the metrics page states them, the result contains the KV memory and the block size in tokens,
    the limit on running requests, and the report of fairbench's plugin. Raises ValueError if the
    text is not a page of Prometheus metrics.
    """
    # prometheus_client is imported late, because it belongs to the extra `live`.
    from prometheus_client.parser import text_string_to_metric_families

    info: dict[str, Any] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            labels = sample.labels
            if sample.name == POOL:
                blocks, size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
                info |= {"max_total_num_tokens": (blocks - 1) * size, "page_size": size}
            elif sample.name == PROOF and sample.value == 1:
                info["fairbench"] = _plugin_report(labels)
            elif sample.name == LIMIT and isfinite(sample.value):
                info[MOST_RUNNING] = int(sample.value)
    return info


def _plugin_report(labels: dict[str, str]) -> dict[str, Any]:
    import msgspec  # The package msgspec belongs to the extra `live`.

    try:
        told = {name: msgspec.json.decode(labels[name]) for name in ("params", "weights")}
        if (text := labels.get("async_scheduling")) is not None:
            told["async_scheduling"] = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{PROOF}: {error}") from None
    eviction = {"eviction": labels["eviction"]} if labels.get("eviction") else {}
    return {"local": labels["local"], **told, **eviction}


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The report of a server process that runs a scheduler of fairbench.

    - ``params`` maps ``NAME.PARAM`` to the value of each parameter of the scheduler.
    - ``eviction`` names the eviction policy of fairbench that the server uses; None means the
      server's own policy.
    - ``async_scheduling`` says whether vLLM schedules asynchronously.
    - ``residency`` is the number of tokens in KV memory that each client holds.
    - ``hooks`` counts the calls of each method of SGLang that the plugin replaces.
    """

    local: str
    params: Mapping[str, Any]
    weights: Mapping[str, float] = field(default_factory=dict)
    eviction: str | None = None
    async_scheduling: bool | None = None
    residency: Mapping[str, float] = field(default_factory=dict)
    vocab_size: int | None = None
    hooks: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def fetch_report(url: str) -> list[PluginReport]:
    """Fetch the plugin report of each scheduler process of the server at ``url``.

    Returns an empty list if the server runs no scheduler of fairbench. Raises RunFailed if the
    server does not answer, or if the answer has an unknown form.
    """
    info = get_json(f"{url}/server_info")
    # An emulator has one plugin report; in SGLang, each data-parallel rank has a plugin report.
    places = [info, *info.get("internal_states", ())]
    known = PluginReport.__slots__
    return [
        PluginReport(**{name: value for name, value in place["fairbench"].items() if name in known})
        for place in places
        if "fairbench" in place
    ]


def require_active(reports: list[PluginReport], wanted: PluginConfig) -> None:
    """Raise RunFailed unless every scheduler process of the server has the wanted configuration."""
    local = wanted.local
    if not reports:
        raise RunFailed(
            f"the server does not run fairbench's scheduler {local}: fairbench's plugin is "
            "not active in it"
        )
    for report in reports:
        if report.local != local:
            raise RunFailed(f"the server runs the scheduler {report.local} instead of {local}")
        if report.eviction != wanted.eviction:
            evicts, expected = (
                f"by {policy}" if policy else "in its own order"
                for policy in (report.eviction, wanted.eviction)
            )
            raise RunFailed(f"the server evicts cached tokens {evicts} instead of {expected}")
        for name in {**wanted.params, **dict.fromkeys(OF_SERVER)}:
            found, value = report.params.get(name), wanted.params.get(name)
            if found != value:
                raise RunFailed(f"the server runs {local} with {name} = {found} instead of {value}")
        if report.weights != wanted.weights:
            raise RunFailed(
                f"the server has the weights {report.weights} instead of {wanted.weights}"
            )
