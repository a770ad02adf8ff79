"""Test that an experiment's weights reach the schedulers and the metrics."""

import numpy as np
import pytest

from fairbench.sim.alone import simulate_alone
from fairbench.sim.run import simulate
from tests.sim.sim_helpers import small_spec

BUSY = {"num_programs": 2_000, "duration_s": 60.0, "warmup_s": 15.0, "max_drain_s": 1.0}
BUSY |= {"scenario": "none"}
FINE = {"dlpm__quantum": 500, "d2lpm__worker_quantum": 5_000}


def overloaded(scheduler, weights, dp=1, **settings):
    """Return conversations with a client per weight, always more than can be served."""
    named = {f"client-{number}": weight for number, weight in enumerate(weights)}
    flags = BUSY | {"weights": named, "clients": len(weights), "request_rate": 6.0 * dp}
    return small_spec(scheduler, "chat", dp=dp, pool=20_000, flags=flags, **settings)


@pytest.mark.parametrize(("scheduler", "dp"), [("vtc", 1), ("dlpm", 1), ("d2lpm", 2)])
def test_two_to_one_gives_each_its_fair_share(scheduler, dp):
    settings = {} if scheduler == "vtc" else FINE
    summary = simulate(overloaded(scheduler, (2.0, 1.0), dp, **settings)).summary
    assert not summary["demand_limited"]
    heavy, light = summary["clients"]
    assert (heavy["weight"], light["weight"]) == (2.0, 1.0)
    assert heavy["entitlement_tok_s"] == pytest.approx(2 * light["entitlement_tok_s"])
    for client in (heavy, light):
        assert client["entitlement_ratio"] == pytest.approx(1, abs=0.03)
    assert summary["jain_index"] > 0.999
    assert 0 < summary["max_service_gap"] <= summary["service_gap_bound"]


def test_vtc_serves_one_to_four_in_proportion():
    """[VTC] §4.3 has these weights in its artifact, within 3%."""
    summary = simulate(overloaded("vtc", (1.0, 2.0, 3.0, 4.0), vtc__charge="input")).summary
    rates = [client["service_rate_tok_s"] for client in summary["clients"]]
    for weight, rate in enumerate(rates, 1):
        assert rate / sum(rates) == pytest.approx(weight / 10, rel=0.03)


def test_equal_service_is_a_smaller_share_of_a_larger_entitlement():
    """fcfs ignores weights. At 3:1 and equal load, clients get 2/3 of and twice their shares."""
    summary = simulate(overloaded("fcfs", (3.0, 1.0))).summary
    heavy, light = (client["entitlement_ratio"] for client in summary["clients"])
    assert heavy == pytest.approx(2 / 3, abs=0.1)
    assert light == pytest.approx(2, abs=0.2)
    # Jain's index of x/3 and x is (4/3)^2 / (2 * 10/9) = 0.8.
    assert summary["jain_index"] == pytest.approx(0.8, abs=0.04)


def test_another_spelling_of_weights_is_the_same_experiment():
    """``vtc.weights`` is the older spelling, whose value is an entitlement."""
    plain = small_spec("vtc", "chat", flags={"weights": {"client-1": 2.0}})
    assert small_spec("vtc", "chat", vtc__weights={"client-1": 2.0}) == plain
    assert plain.settings["vtc.weights"] == {}


def test_weights_of_one_change_nothing():
    plain = simulate(small_spec("d2lpm", "chat"))
    ones = simulate(small_spec("d2lpm", "chat", flags={"weights": {"client-0": 1.0}}))
    assert ones.summary == plain.summary
    assert "weight" not in plain.summary["clients"][0]
    for name, table in plain.tables().items():
        for column, values in table.items():
            same = np.asarray(ones.tables()[name][column])
            np.testing.assert_array_equal(same, np.asarray(values), err_msg=f"{name}.{column}")


def test_a_client_alone_has_the_part_of_the_cluster_that_its_weight_gives():
    """At 1:1:2, the last client has half the cluster, like one of two clients of equal weight."""
    flags = {"num_programs": 6, "request_rate": 4.0, "scenario": "none"}
    by_weight = flags | {"clients": 3, "weights": {"client-2": 2.0}}
    third = simulate_alone(small_spec("fcfs", "judge", pool=60_000, flags=by_weight))[2]
    alike = simulate_alone(small_spec("fcfs", "judge", pool=60_000, flags=flags | {"clients": 3}))
    assert third["client"] == alike[2]["client"] == "client-2"
    assert third["p50_s"] < alike[2]["p50_s"]
    assert (
        alike[0]["p50_s"]
        < simulate_alone(small_spec("fcfs", "judge", pool=60_000, flags=by_weight))[0]["p50_s"]
    )
