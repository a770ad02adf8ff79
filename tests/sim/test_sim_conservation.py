"""Test that charges add up to the service log, for every fair scheduler and charging."""

from pathlib import Path

import pytest

from fairbench.schedulers import registry
from fairbench.schedulers.params import param_names
from fairbench.schedulers.parts.worker_credits import WorkerCredits
from fairbench.schedulers.registry import VARIABLE
from fairbench.sim.run import Simulation
from tests.sim.sim_helpers import small_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "fair_share.py"
SCHEDULERS = [
    "vtc", "vtc-predict", "lcf", "mdrr", "dlpm", "dlpm-hold", "dlpm-upstream", "dlpm-edf",
    "edf-dlpm",
]  # fmt: skip
WEIGHTS = {"weights": {"client-0": 3, "client-1": 0.7}}
CHARGINGS = [
    {},
    {"charge": "gpu-time"},
    *({"sharing": rule} for rule in ("split", "owner", "each")),
    WEIGHTS,
]
FORMS = [*CHARGINGS, *(one | {"tenants": "tree"} for one in CHARGINGS)]
WHOLE_INPUT = {"charge": "input"}
PREDICTIONS = [{"predictor": "average"}, {"error": 0.5}, {"predictor": "none"}]
ALL_FORMS = [*FORMS, WHOLE_INPUT, WHOLE_INPUT | WEIGHTS, *PREDICTIONS]


def accepts(name, form):
    """Return whether a local scheduler has this form of charging and accounts."""
    charge = form.get("charge")
    if (name == "vtc-predict" and charge == "gpu-time") or ("dlpm" in name and charge == "input"):
        return False
    return set(form) <= set(param_names(registry.local_class(name).Params))


PAIRS = [(name, form) for name in SCHEDULERS for form in ALL_FORMS if accepts(name, form)]
ROUTED = [
    one | more
    for one in ({}, {"outputs": "ahead"}, {"charge": "gpu-time"})
    for more in ({}, WEIGHTS, {"tenants": "tree"}, WEIGHTS | {"tenants": "tree"})
]


CHARGES = ("charge", "charge_absent", "refund", "charge_steps")
ROUTER_CHARGES = ("charge", "charge_end", "charge_end_capped", "refund_dispatch")


class Charged:
    """The sum of charges, less the refunds, through the methods ``names`` of an account."""

    def __init__(self, account, names=CHARGES, replace=setattr):
        self.total, self._within = 0.0, False
        for name in names:
            replace(account, name, self._noting(name, getattr(account, name)))

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
    return -given[-1] if name in ("refund", "refund_dispatch") else given[-1]


@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_charges_add_up_to_the_service_log(name, form):
    assert_conserved(name, form)


def assert_conserved(name, form):
    simulation = simulation_of({"router": "least-loaded", "local": name}, name, form)
    charged = [Charged(worker.scheduler.account) for worker in simulation.cluster.workers]
    expected = served(simulation, form)
    assert sum(one.total for one in charged) == pytest.approx(expected, rel=1e-9)


def simulation_of(flags, name, form):
    settings = {f"{name}__{key}": value for key, value in form.items()}
    flags = {"num_programs": 3} | flags
    spec = small_spec("lpm", "chat", flags=flags, pool=2_500, **settings)
    return Simulation(spec, spec.client_plans(), None)


def served(simulation, form):
    """Return what the service log says after the run: tokens, or picoseconds of busy time."""
    simulation.run()
    simulation.cluster.settle()
    log = simulation.log
    if form.get("charge") == "gpu-time":
        columns = (log.column(one).tolist() for one in ("worker", "start_ps", "end_ps"))
        expected = sum(last - first for _, first, last in set(zip(*columns, strict=True)))
    else:
        whole = form.get("charge") == "input" or form.get("sharing") == "each"
        inputs = log.column("input_tokens" if whole else "extend_charged_tokens")
        expected = int(inputs.sum()) + 2 * int(log.column("output_tokens").sum())
    assert expected > 0
    return expected


@pytest.mark.parametrize("form", ROUTED)
def test_the_charges_of_d2lpm_add_up_to_the_service_log(monkeypatch, form):
    charged = Charged(WorkerCredits, ROUTER_CHARGES, monkeypatch.setattr)
    simulation = simulation_of({"router": "d2lpm", "local": "fcfs", "dp": 2}, "d2lpm", form)
    expected = served(simulation, {"charge": "input"} | form)
    assert charged.total == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_the_example_of_a_fair_scheduler_charges_as_the_others_do(monkeypatch, form):
    monkeypatch.setenv(VARIABLE, str(EXAMPLE))
    registry._with_plugins.cache_clear()
    try:
        assert_conserved("fair-share", form)
    finally:
        monkeypatch.undo()
        registry._with_plugins.cache_clear()
