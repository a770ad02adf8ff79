"""``fairbench list``: the names that the command line accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from fairbench.errors import UsageError
from fairbench.files.toml_text import toml_value
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.engines import ENGINES
from fairbench.schedulers.eviction.registry import EVICTIONS


class Kind(StrEnum):
    """The kinds of names that can be listed."""

    SCHEDULERS = "schedulers"
    ROUTERS = "routers"
    GATEWAYS = "gateways"
    WORKLOADS = "workloads"
    PROFILES = "profiles"
    PRESETS = "presets"
    ENGINES = "engines"
    EVICTIONS = "evictions"


def list_names(
    kind: Annotated[
        Kind | None, typer.Argument(metavar="KIND", help="Names to list. [default: everything]")
    ] = None,
) -> None:
    """List schedulers, workloads, profiles, engines and presets.

    Parts are listed with the parameters that `run --set` takes, presets with the values they set.
    """
    sections = {
        Kind.SCHEDULERS: _schedulers,
        Kind.ROUTERS: _routers,
        Kind.GATEWAYS: _gateways,
        Kind.WORKLOADS: _workloads,
        Kind.PROFILES: _profiles,
        Kind.PRESETS: _presets,
        Kind.ENGINES: _engines,
        Kind.EVICTIONS: _evictions,
    }
    wanted = [kind] if kind else list(sections)
    typer.echo("\n\n".join("\n".join(sections[one]()) for one in wanted))


def _schedulers() -> Iterator[str]:
    from fairbench.config.settings import MACHINE
    from fairbench.schedulers.registry import PAIRS, local_class, locals_by_name

    yield "Schedulers (--scheduler): a router and a local scheduler"
    for name, (router, local) in PAIRS.items():
        yield f"  {name:<20} {router} + {local}"
    yield from ("", "Local schedulers (--local), parameters for --set")
    yield from _parts(locals_by_name(), local_class)
    yield from ("", "Engine, cluster and timing, parameters for --set")
    for name, params in MACHINE.items():
        yield from _part(name, params, params)


def _routers() -> Iterator[str]:
    from fairbench.schedulers.registry import router_class, routers_by_name

    yield "Routers (--router), parameters for --set"
    yield from _parts(routers_by_name(), router_class)


def _gateways() -> Iterator[str]:
    from fairbench.schedulers.gateway import registry

    yield (
        "Gateways (--gateway), parameters for --set; every local scheduler can be a gateway, too"
    )
    yield from _parts(registry.policies_by_name(), registry.policy_class)
    usual = registry.DEFAULT_DETECTOR
    yield from ("", f"Saturation (--saturation, {usual} unless given), parameters for --set")
    yield from _parts(registry.DETECTORS, registry.detector_class)
    yield from ("", "Every gateway, parameters for --set")
    yield from _part(registry.GATEWAY, registry.GatewayParams, registry.GatewayParams)


def _engines() -> Iterator[str]:
    from fairbench.hardware.cluster_params import DISAGGREGATION, DisaggregationParams
    from fairbench.hardware.engines import DEFAULT_ENGINE
    from fairbench.named import imported
    from fairbench.schedulers.params import as_settings

    yield f"Engines (--engine, {DEFAULT_ENGINE} unless given), parameters for --set"
    for name, kind in ENGINES.items():
        yield _entry(name, kind.description)
        yield from _settings(as_settings(kind.part, imported(kind.params)()))
    yield from ("", "Prefill and decode apart (--prefill, --decode), parameters for --set")
    yield from _part(DISAGGREGATION, DisaggregationParams, DisaggregationParams)


def _evictions() -> Iterator[str]:
    from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION, eviction_class

    yield f"Eviction policies (--eviction, {DEFAULT_EVICTION} unless given), parameters for --set"
    yield from _parts(EVICTIONS, eviction_class)


def _parts(names: Iterable[str], find: Callable[[str], Any]) -> Iterator[str]:
    """Yield the lines of each part, or the reason why it is not available."""
    for name in names:
        try:
            found = find(name)
        except UsageError as error:
            yield _entry(name, str(error).partition(": ")[2])
        else:
            yield from _part(name, found, found.Params)


def _part(name: str, described: type, params_class: type) -> Iterator[str]:
    from fairbench.schedulers.params import as_settings

    yield _entry(name, described.__doc__ or "")
    yield from _settings(as_settings(name, params_class()))


def _entry(name: str, description: str) -> str:
    """Return a name with the first line of its docstring or description, if any."""
    return f"  {name:<20} {description.strip().partition(chr(10))[0]}".rstrip()


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        yield f"    {key} = {toml_value(value)}"


def _workloads() -> Iterator[str]:
    from fairbench.workloads.spec import load_workload, workload_names

    yield "Workloads (--workload), parameters for --set"
    for name in workload_names():
        spec = load_workload(name)
        yield _entry(name, spec.description)
        yield from _settings({f"{name}.{param}": value for param, value in spec.params.items()})


def _presets() -> Iterator[str]:
    from fairbench.config.preset import preset_names, read_preset

    yield "Presets (--preset): a paper's settings; sources: docs/contribute/papers.md"
    for name in preset_names():
        preset = read_preset(name)
        yield _entry(name, preset.description)
        yield from _settings({one.key: one.value for one in preset.facts})


def _profiles() -> Iterator[str]:
    yield ("Timing profiles (--gpu, any unique prefix) and the grade of each")
    for profile_id in profile_ids():
        yield f"  {profile_id:<50} {load_profile(profile_id).grade}"
