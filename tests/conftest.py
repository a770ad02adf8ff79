"""Fixtures and hooks of all tests."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Properties have no time limit, because machines are noisy. The fast suite tries a quarter of the
# examples, .ci/run all.
settings.register_profile("whole", deadline=None)
settings.register_profile("fairbench", settings.get_profile("whole"), max_examples=25)
settings.load_profile("fairbench")

# The recorded files of the workloads vtc-arena and sessions are not shipped. A few made-up requests
# and sessions replace them.
os.environ.setdefault("FAIRBENCH_DATA", str(Path(__file__).parent / "data"))

TESTS = Path(__file__).parent

# Only an editable installation has the studies, so tests find them here.
sys.path.insert(0, str(TESTS.parent / "studies"))

# A few fast files from every area, to run after each change. .ci/run also uses them with other
# versions of Python.
SMOKE = {
    "test_api.py",
    "test_tenants.py",
    "cli/test_cli_list.py",
    "cli/test_cli_run.py",
    "config/test_config_resolve.py",
    "gate/test_gate_judged_clauses.py",
    "hardware/test_hardware_timing.py",
    "load/test_live_connections.py",
    "emulator/test_live_emulator_http.py",
    "load/test_live_kv_events_wire.py",
    "serve/test_live_router_encodings.py",
    "serve/test_live_router_fields.py",
    "serve/test_live_router_hosts.py",
    "serve/test_live_router_otel.py",
    "metrics/test_metrics_fairness.py",
    "metrics/test_metrics_summary.py",
    "results/test_results_store.py",
    "schedulers/local/test_local_dlpm.py",
    "schedulers/local/test_local_vtc.py",
    "schedulers/routing/test_router_d2lpm.py",
    "scoring/test_score_signs.py",
    "sim/test_sim_engine_admission.py",
    "sim/test_sim_kv_cache.py",
    "workloads/test_workload_clients.py",
}

os.environ.pop("COLUMNS", None)  # tables are as wide as when written to a pipe

# A shell starts background jobs with SIGINT ignored. Commands that tests start and interrupt would
# inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup starts commands with SIGHUP ignored
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Full garbage collections would scan millions of objects that stay. The objects are not frozen,
# because each simulation calls ``gc.get_freeze_count``, which walks all frozen objects.
gc.set_threshold(700, 10, 1_000_000)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Turn garbage collections off while tests are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def young_garbage_is_collected():
    """Collect the garbage of the last module, except in the oldest generation."""
    gc.collect(1)


@pytest.fixture(scope="session", autouse=True)
def tasks_run_in_this_process():
    """Run the tasks of commands in this process, except in tests marked ``in_processes``."""
    from tests.one_by_one import one_by_one

    with one_by_one():
        yield


def pytest_ignore_collect(collection_path, config):
    """With only smoke tests, skip all other files, because reading them takes longer."""
    if config.option.markexpr == "smoke" and collection_path.match("test_*.py"):
        return collection_path.relative_to(TESTS).as_posix() not in SMOKE or None
    return None


@pytest.hookimpl(tryfirst=True)  # runs before -m selects tests
def pytest_collection_modifyitems(items):
    """Mark the smoke tests."""
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        if path in SMOKE and not item.get_closest_marker("slow"):
            item.add_marker("smoke")
