"""Tasks without processes of their own, for tests of something else: tests/execute has those."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairbench.execute.executor import attempt
from fairbench.execute.local_processes import LocalProcesses


class OneByOne:
    """An executor in this process, which counts."""

    def __init__(self):
        self.count = 0

    def run(self, tasks, interrupted):
        for index, task in enumerate(tasks):
            self.count += 1
            yield index, attempt(task, interrupted)


@contextmanager
def one_by_one() -> Iterator[None]:
    """What commands give to processes is done here: each of those would import everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "run", OneByOne().run)
        yield
