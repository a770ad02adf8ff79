"""What holds for every test."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are noisy, so time is never a reason to fail a property. The fast suite tries some of
# the examples, .ci/run all.
settings.register_profile("whole", deadline=None)
settings.register_profile("fairbench", settings.get_profile("whole"), max_examples=40)
settings.load_profile("fairbench")

# A few made-up requests and sessions stand for the recorded files of the workloads vtc-arena and
# sessions, which are not shipped.
os.environ.setdefault("FAIRBENCH_DATA", str(Path(__file__).parent / "data"))

os.environ.pop("COLUMNS", None)  # tables are as wide as in a pipe without it

# A shell starts what it runs in the background with SIGINT ignored, and so would be the commands
# that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays: to go over it for cycles again and again took a tenth of all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_was_made_is_set_aside():
    """A simulation collects what is not: else all that the modules before have left as well."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def in_this_process():
    """Runs of a command that would have processes of their own."""
    from one_by_one import one_by_one  # imports much that most tests do without

    with one_by_one():
        yield


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Slow live tests are of real processes against the clock."""
    for item in items:
        if "live" in item.path.parts and item.get_closest_marker("slow"):
            item.add_marker("alone")
