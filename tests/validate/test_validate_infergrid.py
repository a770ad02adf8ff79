"""Test InferGrid's gateway queue: not better than FIFO, or worse, as published, and the reason."""

from functools import cache

import numpy as np
import pytest

from tests.validate.infergrid import ARMS, FLOODER, QUIET, Experiment

pytestmark = pytest.mark.slow


@cache
def played(name):
    return Experiment(ARMS[name]).run()


def quiet_s(name, percent=50):
    return np.percentile(played(name).ttft_s[QUIET], percent)


def test_fifo_starves_the_quiet_client_as_long_as_measured():
    assert quiet_s("fifo, 256 under way") == pytest.approx(15.1, rel=0.15)
    assert quiet_s("fifo, 256 under way", 99) == pytest.approx(28.7, rel=0.15)
    assert quiet_s("alone") < 0.03


@pytest.mark.parametrize("policy", ["infergrid-drr", "drr"])
def test_with_256_in_flight_a_fair_queue_has_no_requests_to_order(policy):
    for percent in (50, 99):
        fifo_s = quiet_s("fifo, 256 under way", percent)
        assert quiet_s(f"{policy}, 256", percent) == pytest.approx(fifo_s, rel=0.01)


@pytest.mark.parametrize("policy", ["infergrid-drr", "drr"])
def test_with_16_in_flight_latency_rises_because_clients_queue_for_connections(policy):
    name = f"{policy}, 16"
    assert quiet_s(name) == pytest.approx(44.0, rel=0.25)
    assert quiet_s(name, 99) == pytest.approx(53.6, rel=0.05)
    assert played(name).lost["gave up"] > 1_000  # clients give up after 60 s


def test_if_clients_queue_at_the_gateway_the_same_policy_helps():
    assert quiet_s("drr, 100, clients without a limit", 99) < 1.0


def test_a_token_bucket_helps_by_refusing_two_thirds_of_the_flood():
    lost, answered = played("token-bucket").lost, played("token-bucket").ttft_s[FLOODER]
    assert quiet_s("token-bucket") < 0.06
    assert lost["429"] / (len(answered) + lost["429"]) == pytest.approx(0.68, abs=0.02)
