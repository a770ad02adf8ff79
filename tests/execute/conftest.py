"""In this folder, executors run tasks in real processes."""

import pytest

from tests.one_by_one import in_processes


@pytest.fixture(autouse=True)
def real_processes():
    with in_processes():
        yield
