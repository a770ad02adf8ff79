"""Test that the cycle collector is off in a simulation and is restored afterwards."""

import gc
import weakref

import pytest

from fairbench.sim.run import Simulation, no_collector, simulate
from tests.sim.sim_helpers import small_spec


def state():
    return gc.isenabled(), gc.get_freeze_count() > 0


def test_in_a_simulation_the_collector_is_off_and_sees_only_new_objects():
    before = [[]]
    with no_collector():
        inside = [[]]
        known = {id(one) for one in gc.get_objects()}
        assert not gc.isenabled()
    assert id(inside) in known
    assert id(before) not in known
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("was_frozen", [True, False])
def test_the_collector_is_restored_after_an_error_too(was_on, was_frozen):
    try:
        if was_frozen:
            gc.freeze()
        if not was_on:
            gc.disable()
        with pytest.raises(KeyError), no_collector():
            raise KeyError
        assert state() == (was_on, was_frozen)
    finally:
        gc.unfreeze()
        gc.enable()


def test_the_memory_of_a_simulation_is_freed_before_its_metrics(monkeypatch):
    caches, alive = [], []
    made, summed = Simulation.__init__, "fairbench.sim.run.summarize"

    def remembered(self, *arguments, **named):
        made(self, *arguments, **named)
        caches.extend(weakref.ref(worker.cache) for worker in self.cluster.workers)

    def counted(*_):
        alive.extend(cache() for cache in caches)
        return {"num_requests": 0}

    monkeypatch.setattr(Simulation, "__init__", remembered)
    monkeypatch.setattr(summed, counted)
    simulate(small_spec("d2lpm", "tot", dp=2))
    assert alive == [None, None]
