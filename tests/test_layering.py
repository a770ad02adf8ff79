"""Arrows point one way: cli -> report, live, sim -> config -> schedulers, workloads, metrics."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "bench" / "fairbench"
MODULES = sorted(SOURCE.rglob("*.py"))

BASE = ("fairbench.core", "fairbench.errors", "fairbench.validation")
LEAVES = (*BASE, "fairbench.schedulers", "fairbench.workloads", "fairbench.metrics")
# Timing profiles and engine parameters are plain data that an experiment is checked against.
SIM_DATA = ("fairbench.sim.timing", "fairbench.sim.engine_params")

# What each part may import of fairbench, beside itself.
ALLOWED = {
    "core": (),
    "errors": (),
    "validation": ("fairbench.errors",),
    "schedulers": BASE,
    "workloads": BASE,
    "metrics": BASE,
    "config": (*LEAVES, *SIM_DATA),
    "sim": (*LEAVES, "fairbench.config"),
    "live": (
        *LEAVES,
        "fairbench.__version__",
        "fairbench.config",
        "fairbench.sim",
    ),  # the emulator is the simulator's engine
    "report": (*LEAVES, "fairbench.config", "fairbench"),
    "figures": (*LEAVES, "fairbench.config", "fairbench.report"),
    "cli": ("fairbench",),
    "__main__": ("fairbench.cli",),
}
IMPURE = ("time", "random", "asyncio", "aiohttp", "threading", "datetime", "numpy.random")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from fairbench.sim import timing` names a module too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules_of(*parts: str) -> list[Path]:
    return [path for path in MODULES if part(path) in parts]


def test_every_part_has_a_rule():
    assert {part(path) for path in MODULES} - {"__init__"} <= set(ALLOWED)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_part_may(path):
    own = part(path)
    if own == "__init__":
        assert not [name for name in imports(path) if within(name, ("fairbench",))]
        return
    allowed = (*ALLOWED[own], f"fairbench.{own}")
    if own == "report":  # the package itself, for its version, but not its parts
        allowed = tuple(name for name in allowed if name != "fairbench")
    wrong = [
        name
        for name in imports(path)
        if within(name, ("fairbench",)) and not within(name, allowed) and name != "fairbench"
    ]
    assert not wrong


@pytest.mark.parametrize("path", modules_of("schedulers"), ids=lambda path: path.name)
def test_schedulers_know_no_clock_no_chance_and_no_input(path):
    assert not [name for name in imports(path) if within(name, IMPURE)]


@pytest.mark.parametrize("name", SIM_DATA)
def test_what_config_takes_from_sim_knows_neither(name):
    path = SOURCE.parent.joinpath(*name.split(".")).with_suffix(".py")
    assert not [
        used for used in imports(path) if within(used, ("fairbench.sim", "fairbench.config"))
    ]


def test_nothing_imports_the_source_root():
    everything = [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]
    assert not [path for path in everything for name in imports(path) if within(name, ("bench",))]


def test_only_the_command_line_prints():
    for path in MODULES:
        if part(path) != "cli":
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not [n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
