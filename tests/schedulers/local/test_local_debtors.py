"""Test that skipping clients in debt in bulk decides like checking one by one."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.engine.waiting_queue import MatchScan, QueueScan
from fairbench.schedulers.views import ListScan
from fairbench.sim.run import simulate
from tests.slow_params import slow

FORMS = [
    ("dlpm", {"dlpm.no_room": "skip", "dlpm.refill": "relaxed"}),
    ("fair-finish", {}),
    ("round-robin+edf-dlpm", {}),
    *slow(
        ("dlpm", {}),
        ("dlpm", {"dlpm.sharing": "split"}),
        ("dlpm", {"dlpm.charge": "gpu-time"}),
        ("round-robin+dlpm-edf", {}),
        ("round-robin+dlpm-upstream", {}),
    ),
]


@pytest.mark.parametrize(("scheduler", "settings"), FORMS)
def test_decisions_equal_those_of_checking_each_client(scheduler, settings, monkeypatch):
    flags = {"workload": "chat", "scenario": "none", "clients": 40, "request_rate": 0.5}
    spec = resolve({**flags, "duration_s": 10.0, "scheduler": scheduler}, settings)
    lumped = []

    def told(scan, credit):
        lumped.append(len(credit))

    found = simulate(spec)
    for scan in (ListScan, MatchScan, QueueScan):
        monkeypatch.setattr(scan, "skip_debtors", told)
    expected = simulate(spec)
    assert len(lumped) > 20  # some clients were in debt while others were not
    for name, column in expected.service.items():
        assert column.tolist() == found.service[name].tolist(), name
