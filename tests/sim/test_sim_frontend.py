"""Test the server's frontend before the scheduler: its turns, delays and queue."""

from dataclasses import replace

from fairbench.engine.sequence import REFUSED
from fairbench.hardware.timing import Frontend, perturbed
from fairbench.sim.front import SimFleet
from fairbench.streams import stream
from tests.sim.sim_helpers import PLAIN, US, Home

# 2 ms per request and 0.01 ms per token, one at a time; 5 ms of other delay, in parallel
FRONTED = replace(PLAIN, frontend=Frontend(2.0, 0.01, 5.0))


def test_requests_take_turns_and_then_the_parallel_delay():
    home = Home(profile=FRONTED)
    one, two = home.send(100, 1), home.send(200, 1)
    home.run()
    # Turns of 3 and 4 ms and 5 ms of delay bring requests to the scheduler after 8 and 12 ms.
    # Prefills take 2 and 3 ms.
    assert home.prefills() == [(8_000, 1, 100), (12_000, 1, 200)]
    assert (one.finish_ps // US, two.finish_ps // US) == (10_000, 15_000)


def test_a_first_token_waits_for_the_turns_before_it():
    home = Home(profile=replace(FRONTED, frontend=Frontend(10.0, 0.0, 0.0)))
    first, _ = home.send(100, 1), home.send(100, 1, at_ps=1_000 * US)
    home.run()
    # Ready after 10 + 2 ms, while the process handles the second request until 20.
    assert first.first_token_ps == first.finish_ps == 20_000 * US


def test_requests_on_their_way_count_as_queued_and_can_be_withdrawn():
    home = Home(profile=FRONTED)
    one, two = home.send(100, 1), home.send(100, 1)
    home.run(until_ps=1)
    load = SimFleet([home.worker]).load(0)
    assert (load.in_flight, load.queued, load.running) == (2, 2, 0)
    assert home.worker.in_flight() == [one, two]
    home.worker.abort(two)
    assert two.status == REFUSED
    assert home.worker.in_flight() == [one]
    home.run()
    assert two.first_token_ps < 0 < one.first_token_ps


def test_a_timing_error_changes_the_frontend_too():
    off = perturbed(FRONTED, 10.0, stream(0, "timing-error"))
    for name in ("request_ms", "token_ms", "delay_ms"):
        factor = getattr(off.frontend, name) / getattr(FRONTED.frontend, name)
        assert 0.9 <= factor <= 1.1
        assert factor != 1
