"""Test that the plugins need no package that an engine's image may lack.

``pip install --no-deps fairbench-llm`` into such an image adds at most pydantic and
sortedcontainers.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import fairbench_engines

PLUGINS = Path(fairbench_engines.__file__).parent
LACKING = ("numpy", "pyarrow", "rich", "typer", "pandas", "aiohttp", "msgspec")

BLOCKED = f"""
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LACKING}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Lacking())
"""


def run_blocked(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_plugin(file: Path) -> bool:
    """Return whether a file belongs to a plugin. The package ``replica`` is the simulator's."""
    return "replica" not in file.relative_to(PLUGINS).parts and not needs_engine(file)


def needs_engine(file: Path) -> bool:
    return "\nfrom vllm" in file.read_text(encoding="utf-8") or file.name == "__main__.py"


def test_each_plugin_module_is_imported_without_packages_that_an_image_may_lack():
    files = [one for one in sorted(PLUGINS.rglob("*.py")) if is_plugin(one)]
    names = [
        ".".join(one.relative_to(PLUGINS.parent).with_suffix("").parts).removesuffix(".__init__")
        for one in files
    ]
    assert len(names) > 15
    run_blocked(f"import importlib\nfor name in {names}: importlib.import_module(name)")


def test_each_local_scheduler_and_eviction_policy_is_built_without_them():
    program = """
from fairbench_load.plugin_config import Evicting, plugin_config
from fairbench.schedulers.eviction.registry import ALL_EVICTIONS
from fairbench.schedulers.registry import locals_by_name
for local, target in locals_by_name().items():
    if target.startswith("fairbench_studies"):  # a wheel lacks the studies
        continue
    for eviction in ALL_EVICTIONS:
        config = plugin_config(local, {}, {"a": 2.0}, Evicting(eviction, ("a", "b")))
        config.build()
    print(local)
"""
    assert {"fcfs", "vtc", "dlpm", "edf"} <= set(run_blocked(program).split())


def test_a_fit_of_step_times_without_observations_needs_no_numpy():
    program = """
from fairbench_engines.step_times import FittedCosts
costs = FittedCosts()
costs.observe_decode(2, 100, 0.01)
print(costs.decode_step_s(2, 100), costs.prefill_s(0, 10))
"""
    assert run_blocked(program).split() == ["0.0", "0.0"]


@pytest.mark.parametrize("package", ["numpy", "typer"])
def test_the_packages_are_really_lacking(package):
    with pytest.raises(AssertionError, match=package):
        run_blocked(f"import {package}")
