"""Test that every hooked method exists, as expected, in each supported release."""

import ast
from pathlib import Path

import pytest

from fairbench_engines.sglang.hooks import ADDER, BATCH, Hooks
from fairbench_engines.sglang.release import EVICTING, SUPPORTED
from fairbench_load.plugin_config import Evicting, plugin_config
from tests.sglang_cpu.sglang_cpu_server import PYTHON, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

HOOKS = Hooks(plugin_config("fcfs", {}), "any").by_target()
EVICTION_HOOKS = Hooks(
    plugin_config("fcfs", {}, None, Evicting("lfu", ("one",))), "any"
).by_target()
TREE = "sglang.srt.mem_cache.radix_cache.RadixCache"
UNIFIED = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
EVICTION_CALLS = {  # calls of ``EvictableTree`` and ``Eviction``, in addition to hooks
    f"{TREE}.checkpoint": ("self", "req"),
    f"{TREE}.evict": ("self", "params"),
    f"{TREE}.insert": ("self", "params"),
    f"{TREE}.match_prefix": ("self", "params"),
    f"{TREE}.touch_prefix": ("self", "key"),
    f"{UNIFIED}._evict": ("self", "params"),
    f"{UNIFIED}._evict_device_leaf": ("self", "node_id", "tracker"),
    f"{UNIFIED}.checkpoint": ("self", "req"),
    f"{UNIFIED}.on_release": ("self", "req"),
}
CALLED = {  # calls of ``Preemption``, in addition to hooks
    f"{ADDER}._get_running_request_total_token_offset": ("self", "req"),
    f"{ADDER}._lock_node": ("self", "last_node"),
    f"{ADDER}.budget_state": ("self",),
    f"{ADDER}.ceil_paged_tokens": ("self", "tokens"),
    f"{ADDER}.rem_total_tokens": ("self",),
    f"{BATCH}.filter_batch": ("self",),
    f"{BATCH}.release_req": ("self", "idx", "remaing_req_count"),
}


def source_root(release):
    """Return the folder of a release's source from install.sh. Skip the test if it is absent."""
    environment = Path(PYTHON).parents[1]
    installed = environment.glob(f"lib/python*/site-packages/sglang-{release}.dist-info")
    folders = [found.parent for found in installed]
    folders = [f for f in [*folders, environment / f"sglang-{release}"] if f.exists()]
    if not folders:
        pytest.skip(f"the environment of {PYTHON} lacks SGLang {release}: install.sh puts it there")
    return folders[0]


def parameters(root, target):
    """Return the parameters of ``package.module.Class.method``, read from its source."""
    module, class_name, method = target.rsplit(".", 2)
    tree = ast.parse((root / module.replace(".", "/")).with_suffix(".py").read_text())
    (found,) = [
        node
        for scope in ast.walk(tree)
        if isinstance(scope, ast.ClassDef) and scope.name == class_name
        for node in scope.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method
    ]
    return tuple(argument.arg for argument in found.args.args)


@pytest.mark.parametrize("release", SUPPORTED)
@pytest.mark.parametrize("target", [*HOOKS, *CALLED])
def test_a_hook_fits_the_functions_around_it(release, target):
    root = source_root(release)
    expected = HOOKS[target].expected if target in HOOKS else CALLED[target]
    assert parameters(root, target)[: len(expected)] == expected


@pytest.mark.parametrize("release", EVICTING)
@pytest.mark.parametrize("target", [*sorted(EVICTION_HOOKS.keys() - HOOKS.keys()), *EVICTION_CALLS])
def test_an_eviction_policy_fits_the_functions_around_it(release, target):
    root = source_root(release)
    hook = EVICTION_HOOKS.get(target)
    expected = hook.expected if hook else EVICTION_CALLS[target]
    assert parameters(root, target)[: len(expected)] == expected
