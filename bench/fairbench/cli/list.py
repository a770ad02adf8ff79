"""``fairbench list``: print the names that the command line accepts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from textwrap import wrap
from typing import Annotated, Any, NamedTuple

import typer

from fairbench import config, hardware, schedulers, workloads
from fairbench.cli.output import chosen_width
from fairbench.errors import UsageError
from fairbench.files.formats import toml_value
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.engines import ENGINES
from fairbench.schedulers.eviction.registry import ALL_EVICTIONS


class ListKind(StrEnum):
    """The kinds of names that ``fairbench list`` can print."""

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
        ListKind | None, typer.Argument(metavar="KIND", help="Names to list. [default: everything]")
    ] = None,
) -> None:
    """List schedulers, workloads, profiles, engines and presets.

    Schedulers and engines are listed with the parameters that `run --set` takes, and presets with
    the values that they set.
    """
    texts = {one: list(KINDS[one].lines()) for one in ([kind] if kind else KINDS)}
    blocks = list(texts.values())
    if kind is None:
        overview = ["Names that options accept, by kind. `fairbench list KIND` prints one kind."]
        for one, listed in texts.items():
            names = sum(NAME.match(line) is not None for line in listed)
            overview.append(f"{one.value:<12}{names:>4}   {KINDS[one].about}")
        hint = "Parameters are set by --set NAME.PARAM=VALUE, such as --set dlpm.quantum=5000."
        blocks.insert(0, [*overview, hint])
    width = chosen_width()
    lines = ["\n".join(_folded(line, width) for line in block) for block in blocks]
    typer.echo("\n\n".join(lines))


NAME = re.compile(r"  \S")


def _folded(line: str, width: int | None) -> str:
    """Wrap a line at ``width`` characters, and indent continuation lines below the text."""
    if width is None or len(line) <= width:
        return line
    indent = 6 if "  # " in line else 23
    return "\n".join(wrap(line, width, subsequent_indent=" " * indent, break_on_hyphens=False))


def _schedulers() -> Iterator[str]:
    yield "Schedulers (--scheduler): a router and a local scheduler"
    for name, (router, local) in schedulers.PAIRS.items():
        yield f"  {name:<20} {router} + {local}"
    yield from ("", "Local schedulers (--local), parameters for --set")
    yield from _part_lines(schedulers.locals_by_name(), schedulers.local_class)
    yield from ("", "Engine, cluster and timing, parameters for --set")
    for name, params in config.MACHINE.items():
        yield from _part(name, params, params)


def _routers() -> Iterator[str]:
    yield "Routers (--router), parameters for --set"
    yield from _part_lines(schedulers.routers_by_name(), schedulers.router_class)


def _gateways() -> Iterator[str]:
    from fairbench.schedulers.gateway import registry

    yield (
        "Gateways (--gateway), parameters for --set; every local scheduler can be a gateway, too"
    )
    yield from _part_lines(registry.policies_by_name(), registry.policy_class)
    usual = registry.DEFAULT_DETECTOR
    yield from ("", f"Saturation (--saturation, {usual} unless given), parameters for --set")
    yield from _part_lines(registry.DETECTORS, registry.detector_class)
    yield from ("", "Every gateway, parameters for --set")
    yield from _part(registry.GATEWAY, registry.GatewayParams, registry.GatewayParams)


def _engines() -> Iterator[str]:
    from fairbench.named import imported

    yield f"Engines (--engine, {hardware.DEFAULT_ENGINE} unless given), parameters for --set"
    for name, kind in ENGINES.items():
        yield _entry(name, kind.description)
        params = imported(kind.params)
        yield from _settings(schedulers.default_settings(kind.part, params), params)
    yield from ("", "Prefill and decode apart (--prefill, --decode), parameters for --set")
    yield from _part(
        hardware.DISAGGREGATION, hardware.DisaggregationParams, hardware.DisaggregationParams
    )


def _evictions() -> Iterator[str]:
    usual = schedulers.DEFAULT_EVICTION
    yield f"Eviction policies (--eviction, {usual} unless given), parameters for --set"
    yield from _part_lines(ALL_EVICTIONS, schedulers.eviction_class)
    yield from ("", "Memory as a fair share, parameters for --set")
    yield from _part(schedulers.MEMORY, schedulers.MemoryParams, schedulers.MemoryParams)


def _part_lines(names: Iterable[str], find: Callable[[str], Any]) -> Iterator[str]:
    """Yield the help lines of each named component, or the reason why it is unavailable."""
    for name in names:
        try:
            found = find(name)
        except UsageError as error:
            yield _entry(name, str(error).partition(": ")[2])
        else:
            yield from _part(name, found, found.Params)


def _part(name: str, described: type, params_class: type) -> Iterator[str]:
    yield _entry(name, described.__doc__ or "")
    yield from _settings(schedulers.default_settings(name, params_class), params_class)


def _entry(name: str, description: str) -> str:
    first = description.strip().partition("\n")[0]
    return f"  {name:<20} {first.replace('``', '')}".rstrip()


def _settings(settings: Mapping[str, Any], described: type | None = None) -> Iterator[str]:
    for key, value in settings.items():
        meaning = meaning_of(key, described)
        yield f"    {key} = {toml_value(value)}" + (f"  # {meaning}" if meaning else "")


@cache
def _meanings() -> dict[str, str]:
    text = files("fairbench.cli").joinpath("meanings.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def meaning_of(key: str, params: type | None) -> str:
    """Return the meaning of the parameter ``PART.PARAM``, or "" for an unknown parameter.

    If the docstring of a user's own class describes the parameter, this description takes
    precedence over ``meanings.toml``.
    """
    if params is None:
        return ""
    name = key.partition(".")[2]
    ours = params.__module__.startswith("fairbench")
    text = "" if ours else " ".join((params.__doc__ or "").split())
    said = re.search(rf"``{name}``:? (?:is )?(.+?)[.;](?: |$)", text)
    if said:
        return said[1].replace("``", "")
    return _meanings().get(key, _meanings().get(name, "")) if ours else ""


def _workloads() -> Iterator[str]:
    yield "Workloads (--workload), parameters for --set"
    for name in workloads.workload_names():
        spec = workloads.load_workload(name)
        yield _entry(name, spec.description)
        yield from _settings({f"{name}.{param}": value for param, value in spec.params.items()})


def _presets() -> Iterator[str]:
    yield "Presets (--preset): a paper's settings; docs/reference/papers.md explains them"
    for name in config.preset_names():
        preset = config.read_preset(name)
        yield _entry(name, preset.description)
        yield from _settings({one.key: one.value for one in preset.facts})


def _profiles() -> Iterator[str]:
    yield ("Timing profiles (--gpu, any unique prefix) and the grade of each")
    for profile_id in profile_ids():
        yield f"  {profile_id:<50} {load_profile(profile_id).grade}"


class _Kind(NamedTuple):
    lines: Callable[[], Iterator[str]]
    about: str


KINDS = {
    ListKind.SCHEDULERS: _Kind(
        _schedulers, "order of requests: pairs (--scheduler), local schedulers, the machine"
    ),
    ListKind.ROUTERS: _Kind(_routers, "choice of the replica (--router)"),
    ListKind.GATEWAYS: _Kind(_gateways, "queue in front of the router (--gateway, --saturation)"),
    ListKind.WORKLOADS: _Kind(_workloads, "clients and their programs (--workload)"),
    ListKind.PROFILES: _Kind(_profiles, "timing of a model on a GPU (--gpu, --model)"),
    ListKind.PRESETS: _Kind(_presets, "settings of a paper (--preset)"),
    ListKind.ENGINES: _Kind(_engines, "simulated engine of a replica (--engine)"),
    ListKind.EVICTIONS: _Kind(_evictions, "use of KV memory (--eviction)"),
}
