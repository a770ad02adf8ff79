"""Fixtures and hooks of all tests."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Time never fails a property, because machines are noisy. The fast suite tries a quarter of the
# examples, .ci/run all.
settings.register_profile("whole", deadline=None)
settings.register_profile("fairbench", settings.get_profile("whole"), max_examples=25)
settings.load_profile("fairbench")

# A few made-up requests and sessions replace the recorded files of the workloads vtc-arena and
# sessions, which are not shipped.
os.environ.setdefault("FAIRBENCH_DATA", str(Path(__file__).parent / "data"))

TESTS = Path(__file__).parent

# Tests find the studies here, because only an editable installation has them.
sys.path.insert(0, str(TESTS.parent / "studies"))

# A few fast files of every part, to run after each change; .ci/run uses them with other versions of
# Python.
SMOKE = {
    "test_api.py",
    "test_tenants.py",
    "cli/test_cli_list.py",
    "cli/test_cli_run.py",
    "config/test_config_resolve.py",
    "gate/test_gate_judged_clauses.py",
    "hardware/test_hardware_timing.py",
    "live/test_live_connections.py",
    "emulator/test_live_emulator_http.py",
    "live/test_live_kv_events_wire.py",
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

os.environ.pop("COLUMNS", None)  # Tables are as wide as they are when written to a pipe.

# A shell starts background jobs with SIGINT ignored, which commands that tests start and interrupt
# would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup starts commands with SIGHUP ignored.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freeze the objects made by collection, because collecting garbage among them took a tenth of
    the suite's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_was_made_is_set_aside():
    """Freeze the objects of earlier modules; otherwise, each simulation's collections would scan
    them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def tasks_run_in_this_process():
    """Run the tasks of commands in this process, except ``in_processes``, as in tests/execute."""
    from tests.one_by_one import one_by_one

    with one_by_one():
        yield


def pytest_ignore_collect(collection_path, config):
    """Read no other test file for the smoke tests alone, because reading all takes longer."""
    if config.option.markexpr == "smoke" and collection_path.match("test_*.py"):
        return collection_path.relative_to(TESTS).as_posix() not in SMOKE or None
    return None


@pytest.hookimpl(tryfirst=True)  # before -m selects tests
def pytest_collection_modifyitems(items):
    """Mark the smoke tests."""
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        if path in SMOKE and not item.get_closest_marker("slow"):
            item.add_marker("smoke")
