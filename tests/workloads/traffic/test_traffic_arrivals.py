"""Test that other kinds of traffic drive a whole simulation with no module changed."""

from collections import Counter
from dataclasses import dataclass, replace
from math import inf

import pytest

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation
from fairbench.streams import stream
from fairbench.workloads.items import Item
from fairbench.workloads.plan import ClientPlan, expected_programs, last_arrival_s, program_stream
from fairbench.workloads.programs import make_params
from fairbench.workloads.spec import load_workload
from fairbench.workloads.traffic.arrivals import Arrival, ArrivalSource, GammaArrivals, Rate


@dataclass(frozen=True)
class Listed:
    """A small recorded trace with its own times, and the lengths of each request."""

    listed: tuple[Arrival, ...]
    timed = True

    def arrivals(self, rng):
        return iter(self.listed)

    def expected_programs(self, before_s=inf):
        return float(len(self.listed))

    def last_arrival_s(self, rng):
        return max((at_s for at_s, _ in self.listed), default=0.0)


def trace_plans(rows, spec):
    """Return the clients of a trace with rows of (time, client, input tokens, output tokens)."""
    params = make_params("chat", spec.workload.params, "trace")
    names = sorted({client for _, client, _, _ in rows})
    return tuple(
        ClientPlan(
            index=index,
            clients=len(names),
            client=name,
            misbehaving=False,
            kind="chat",  # programs of one turn, in which each request is by itself
            params=params,
            arrivals=Listed(
                tuple(
                    Arrival(at_s, Item(f"trace/{number}", 0, ((asked, answered),)))
                    for number, (at_s, client, asked, answered) in enumerate(rows)
                    if client == name
                )
            ),
        )
        for index, name in enumerate(names)
    )


def population(spec, seed, size):
    """Return many clients. A few send most of the load, each with its own rate and messages."""
    rng = stream(seed, "population")
    usual = make_params("chat", spec.workload.params, "population")
    return tuple(
        ClientPlan(
            index=index,
            clients=size,
            client=f"user-{index:05d}",
            misbehaving=False,
            kind="chat",
            params=replace(usual, user_tokens=rng.uniform(20.0, 200.0), turns_max=2),
            arrivals=GammaArrivals((Rate(0.0, 0.02 * rng.paretovariate(1.2)),), until_s=20.0),
        )
        for index in range(size)
    )


def simulated(spec, plans):
    """Simulate these clients. Return the requests and the summary."""
    simulation = Simulation(spec, plans, None)
    assert simulation.run()
    result = simulation.result(True, None)
    return result.requests, result.summary


SPEC = resolve({"workload": "chat", "scenario": "none", "duration_s": 30.0, "warmup_s": 0.0})
ROWS = [(0.0, "org/a", 100, 5), (0.25, "b", 30, 9), (0.25, "org/a", 700, 1), (3.5, "b", 40, 300)]


@pytest.mark.parametrize("source", [Listed(()), GammaArrivals((Rate(0.0, 1.0),))])
def test_sources_of_arrivals_follow_the_interface(source: ArrivalSource):
    for name in ("timed", "arrivals", "expected_programs", "last_arrival_s"):
        assert hasattr(source, name)


@pytest.mark.slow
def test_a_recorded_trace_is_served_as_recorded():
    plans = trace_plans(ROWS, SPEC)
    requests, summary = simulated(SPEC, plans)
    columns = ("arrival_s", "client", "input_tokens", "output_tokens")
    served = sorted(zip(*(requests[name].tolist() for name in columns), strict=True))
    assert served == sorted(ROWS)
    assert [client["client"] for client in summary["clients"]] == ["b", "org/a"]
    assert summary["num_programs"] == sum(map(expected_programs, plans)) == 4
    assert last_arrival_s(plans, seed=5) == 3.5


def test_a_seed_moves_no_recorded_time():
    (plan, _) = trace_plans(ROWS, SPEC)
    once, again = ([at_s for at_s, _ in program_stream(plan, seed=seed)] for seed in (0, 1))
    assert once == again == [0.25, 3.5]


@pytest.mark.slow
def test_a_population_of_many_clients_is_served():
    plans = population(SPEC, seed=1, size=300)
    requests, summary = simulated(SPEC, plans)
    assert len(summary["clients"]) == 300
    sent = Counter(requests["client"].tolist())
    assert 1 < max(sent.values()) < len(requests["client"])
    assert sum(map(expected_programs, plans)) < inf
    assert population(SPEC, seed=1, size=300) == plans != population(SPEC, seed=2, size=300)


def test_names_come_from_the_workload():
    table = load_workload("chat").model_dump(mode="json", exclude_none=True)
    workload = table | {"client_names": ["alice", "bob"]}
    spec = resolve(
        {"workload": workload, "num_programs": 1, "scheduler": "vtc"}, {"vtc.weights": {"bob": 2.0}}
    )
    names = [plan.client for plan in spec.client_plans()]
    assert names == ["alice", "bob", "client-2", "client-3"]
    requests, _ = simulated(spec, spec.client_plans())
    assert set(requests["client"].tolist()) == set(names)
    assert resolve({"workload": workload, "clients": 5}).client_plans()[4].client == "client-4"
