"""An executor without processes, for tests of other subjects. tests/execute tests the processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairbench.execute.tasks import LocalProcesses, attempt

IN_PROCESSES = LocalProcesses.run


class OneByOne:
    """An executor that runs tasks in this process and counts them."""

    def __init__(self):
        self.count = 0

    def run(self, tasks, interrupted):
        for index, task in enumerate(tasks):
            self.count += 1
            yield index, attempt(task, interrupted)


@contextmanager
def one_by_one() -> Iterator[None]:
    """Run a command's tasks in this process. Each new process would have to import everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "run", OneByOne().run)
        yield


@contextmanager
def in_processes() -> Iterator[None]:
    """Run a command's tasks in processes, despite ``one_by_one``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "run", IN_PROCESSES)
        yield
