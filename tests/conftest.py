"""Fixtures and hooks of all tests."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Time never fails a property, because machines are noisy. The fast suite tries some of the
# examples, .ci/run all.
settings.register_profile("whole", deadline=None)
settings.register_profile("fairbench", settings.get_profile("whole"), max_examples=40)
settings.load_profile("fairbench")

# A few made-up requests and sessions replace the recorded files of the workloads vtc-arena and
# sessions, which are not shipped.
os.environ.setdefault("FAIRBENCH_DATA", str(Path(__file__).parent / "data"))

os.environ.pop("COLUMNS", None)  # tables are as wide as in a pipe without it

# A shell starts background jobs with SIGINT ignored, which commands that tests start and interrupt
# would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freeze what collection has made: collecting garbage in it took a tenth of the
    suite's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_was_made_is_set_aside():
    """Freeze the objects of earlier modules, or each simulation's collections would scan them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def in_this_process():
    """Run the tasks of a command in this process."""
    from one_by_one import one_by_one  # imports much that most tests do not need

    with one_by_one():
        yield


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Mark slow live tests, which run real processes against the clock."""
    for item in items:
        if "live" in item.path.parts and item.get_closest_marker("slow"):
            item.add_marker("alone")
