"""Test that reports of evictions are late by the delay, and lost at the given rate."""

import pytest

from fairbench.core import Segment
from fairbench.engine.clock import Clock
from fairbench.hardware.engines import ClusterParams
from fairbench.schedulers.routing.round_robin import RoundRobin
from fairbench.sim.front import eviction_reports
from fairbench.streams import stream

PIECES = 2_000


class Listener(RoundRobin):
    def __init__(self):
        super().__init__(RoundRobin.Params(), 2)
        self.heard = []

    def on_evict(self, prefix, evicted_tokens, worker, now_s):
        self.heard.append((prefix[0].key, evicted_tokens, worker, now_s))


def heard(seed=0, **params):
    clock, router = Clock(), Listener()
    evicted = eviction_reports(clock, router, 1, ClusterParams(**params), stream(seed, "news"))
    for number in range(PIECES):
        evicted((Segment(str(number), 10),), 10)
    while clock.next_ps() is not None:
        clock.step()
    return router.heard


def test_all_reports_come_after_the_delay_in_order():
    assert heard(eviction_delay_s=0.25) == [(str(n), 10, 1, 0.25) for n in range(PIECES)]
    assert heard(eviction_delay_s=0.25, eviction_loss=0.0) == heard(eviction_delay_s=0.25)


def test_no_report_comes_if_all_are_lost():
    assert heard(eviction_loss=1.0) == []


def test_the_seed_decides_which_half_of_the_reports_is_lost():
    some = heard(eviction_loss=0.5)
    assert len(some) == pytest.approx(PIECES / 2, rel=0.1)
    assert some == heard(eviction_loss=0.5) != heard(seed=1, eviction_loss=0.5)
    assert some == [one for one in heard() if one in some]
