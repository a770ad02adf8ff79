"""The plugin's report of its state, and the checks of it before a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.errors import RunFailed
from fairbench.live.plugins.config import LOAD_CAP, PluginConfig
from fairbench.live.processes.http import get_json


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The report of one scheduler process. ``hooks`` counts hook calls by SGLang method."""

    local: str
    params: Mapping[str, Any]  # every parameter, as NAME.PARAM
    weights: Mapping[str, float] = field(default_factory=dict)
    eviction: str | None = None  # the policy of ours that evicts from its cache
    residency: Mapping[str, float] = field(default_factory=dict)  # tokens by client
    vocab_size: int | None = None
    hooks: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def fetch_report(url: str) -> list[PluginReport]:
    """Fetch the reports of the schedulers behind a URL; empty if the server runs SGLang's own.

    Raises RunFailed if the server does not answer, or answers unlike SGLang and the emulator.
    """
    info = get_json(f"{url}/server_info")
    # The emulator has one scheduler and tells of it at the top, SGLang one for each data rank.
    places = [info, *info.get("internal_states", ())]
    known = PluginReport.__slots__
    return [
        PluginReport(**{name: value for name, value in place["fairbench"].items() if name in known})
        for place in places
        if "fairbench" in place
    ]


def require_active(reports: list[PluginReport], wanted: PluginConfig) -> None:
    """Raise RunFailed unless every scheduler of the server runs with this configuration."""
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
            raise RunFailed(f"the server evicts {evicts} instead of {expected}")
        for name in {**wanted.params, LOAD_CAP: None}:
            found, value = report.params.get(name), wanted.params.get(name)
            if found != value:
                raise RunFailed(f"the server runs {local} with {name} = {found} instead of {value}")
        if report.weights != wanted.weights:
            raise RunFailed(
                f"the server has the weights {report.weights} instead of {wanted.weights}"
            )
