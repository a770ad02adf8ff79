"""Test that charges add up to the service log, for every fair scheduler and charging."""

from pathlib import Path

import pytest

from fairbench.schedulers import registry
from fairbench.schedulers.params import param_names
from fairbench.schedulers.registry import VARIABLE
from fairbench.sim.run import Simulation
from tests.sim.sim_helpers import small_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "fair_share.py"
SCHEDULERS = [
    "vtc", "lcf", "mdrr", "dlpm", "dlpm-hold", "dlpm-upstream", "dlpm-edf", "edf-dlpm",
]  # fmt: skip
CHARGINGS = [{}, {"charge": "gpu-time"}, {"sharing": "split"}, {"sharing": "owner"}]
FORMS = [*CHARGINGS, *(one | {"tenants": "tree"} for one in CHARGINGS)]
PAIRS = [
    (name, form)
    for name in SCHEDULERS
    for form in FORMS
    if set(form) <= set(param_names(registry.local_class(name).Params))
]


class Charged:
    """The sum of an account's charges, less its refunds."""

    def __init__(self, account):
        self.total, self._within = 0.0, False
        for name in ("charge", "charge_absent", "refund", "charge_steps"):
            setattr(account, name, self._noting(name, getattr(account, name)))

    def _noting(self, name, method):
        def noting(*given):
            outermost, self._within = not self._within, True
            if outermost:
                self.total += amount(name, *given)
            method(*given)
            self._within = not outermost

        return noting


def amount(name, *given):
    if name == "charge_steps":
        each, steps, running = given
        return each * steps * sum(running.values())
    return -given[1] if name == "refund" else given[1]


@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_charges_add_up_to_the_service_log(name, form):
    assert_conserved(name, form)


def assert_conserved(name, form):
    settings = {f"{name}__{key}": value for key, value in form.items()}
    flags = {"router": "least-loaded", "local": name, "num_programs": 3}
    spec = small_spec("lpm", "chat", flags=flags, pool=2_500, **settings)
    simulation = Simulation(spec, spec.client_plans(), None)
    workers = simulation.cluster.workers
    charged = [Charged(worker.scheduler.account) for worker in workers]
    simulation.run()
    simulation.cluster.settle()
    log = simulation.log
    extend, output, start, end, at = (
        log.column(column).tolist()
        for column in (
            "extend_charged_tokens", "output_tokens", "start_ps", "end_ps", "worker",
        )
    )  # fmt: skip
    if form.get("charge") == "gpu-time":
        expected = sum(last - first for _, first, last in set(zip(at, start, end, strict=True)))
    else:
        expected = sum(extend) + 2 * sum(output)
    assert expected > 0
    assert sum(one.total for one in charged) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_the_example_of_a_fair_scheduler_charges_as_the_others_do(monkeypatch, form):
    monkeypatch.setenv(VARIABLE, str(EXAMPLE))
    registry._with_plugins.cache_clear()
    try:
        assert_conserved("fair-share", form)
    finally:
        monkeypatch.undo()
        registry._with_plugins.cache_clear()
