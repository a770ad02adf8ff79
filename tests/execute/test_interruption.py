"""Test that a signal is noted between events, and raised in code that is stuck."""

import os
import signal
import time
from contextlib import nullcontext

import pytest

from fairbench.execute import tasks
from fairbench.execute.tasks import interruptible


@pytest.mark.parametrize(
    ("stuck_s", "polls", "ends"), [(0.0, False, True), (0.0, True, False), (60.0, False, False)]
)
def test_a_second_signal_ends_code_that_does_not_poll(monkeypatch, stuck_s, polls, ends):
    monkeypatch.setattr(tasks, "STUCK_S", stuck_s)
    with pytest.raises(KeyboardInterrupt) if ends else nullcontext(), interruptible() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.signum == signal.SIGINT
        assert asked.exit_code == 130
        assert not polls or asked()
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not ends
        assert asked.exit_code == 130
