"""Every test of executors has real processes."""

import pytest

from tests.one_by_one import in_processes


@pytest.fixture(autouse=True)
def real_processes():
    with in_processes():
        yield
