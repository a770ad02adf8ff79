"""Test the estimate of a sweep's duration from this machine's speed and load."""

import os

import pytest

from fairbench.execute import simulations as module
from fairbench.execute.simulations import estimate


@pytest.fixture
def machine(monkeypatch):
    """Return a function that fakes two processors under a load, with additions of 100 ns."""

    def machine(load):
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
        monkeypatch.setattr(module, "_addition_s", lambda: 1e-7)

    return machine


def test_idle_processors_share_the_work(machine):
    machine(0.0)
    whole = estimate([100_000.0, 500_000.0])
    # 600,000 requests of 10,000 additions of 100 ns are 600 s, or 300 s on two processors.
    assert whole.seconds == pytest.approx(300.0)
    text = "2 simulations, about 600,000 requests: roughly 5 min on 2 processors, 132 MB of records"
    assert str(whole) == text


def test_other_processes_take_their_share(machine):
    machine(4.0)  # six processes on two processors, so each simulation gets a third of a processor
    whole = estimate([600_000.0])
    assert whole.seconds == pytest.approx(900.0)
    assert "roughly 15 min on 2 processors, which are shared with 4 busy processes, " in str(whole)


def test_a_system_without_a_load_average_counts_as_idle(machine, monkeypatch):
    machine(4.0)
    monkeypatch.delattr(os, "getloadavg")
    assert estimate([600_000.0]).seconds == pytest.approx(300.0)
