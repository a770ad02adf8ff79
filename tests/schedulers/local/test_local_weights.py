"""Weights come from the experiment, by ``prepare``: service in proportion, in every policy."""

import pytest
from local_requests import Calls
from local_toy import ToyEngine
from local_toy_load import Mix, overload

from fairbench.errors import UsageError
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.setup import Setup

WEIGHTS = {"b": 3.0}


def served(scheduler, clients="ab"):
    """Actual service of each client on a busy toy engine."""
    engine = ToyEngine(scheduler, 600, clients)
    overload(engine, Mix(1, clients), clients, 1500)
    trace = engine.trace
    return [trace.service_of(client) for client in clients]


@pytest.mark.parametrize(
    "make", [lambda: VTC(VTC.Params()), lambda: DLPM(DLPM.Params(quantum=500))], ids=["vtc", "dlpm"]
)
def test_a_client_of_weight_three_gets_three_times_the_service(make):
    plain, weighted = make(), make()
    plain.prepare(Setup(("a", "b")))
    weighted.prepare(Setup(("a", "b"), WEIGHTS))
    a, b = served(plain)
    assert b / a == pytest.approx(1, rel=0.1)
    a, b = served(weighted)
    assert b / a == pytest.approx(3, rel=0.1)


def test_vtcs_own_weights_are_laid_over_the_experiments():
    scheduler = VTC(VTC.Params(weights={"a": 2.0}))
    scheduler.prepare(Setup(("a", "b"), WEIGHTS))
    call = Calls()
    for client in "ab":
        scheduler.on_arrival(call(client), _Nobody(), 0.0)
        scheduler.on_tokens(client, 30)
    assert scheduler.counters == {"a": 30, "b": 20}
    with pytest.raises(UsageError, match=r"client in vtc\.weights 'a'"):
        scheduler.prepare(Setup(("b", "c")))


class _Nobody:
    """A queue in which nobody waits."""

    def clients(self):
        return ()
