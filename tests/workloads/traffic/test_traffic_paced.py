"""Test even or random gaps at a planned rate, by hand and in small time steps."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.streams import stream
from fairbench.workloads.traffic import KINDS, traffic_kind
from fairbench.workloads.traffic.arrival_patterns import PacedArrivals, Phase
from fairbench.workloads.traffic.arrivals import TrafficLoad
from tests.strategies import examples

LOAD = TrafficLoad(0, 2.0, 1.0, None, 100.0)
PHASES = [
    {"for_s": 10.0, "multiple": 1.0, "on_s": 2.0, "off_s": 3.0},
    {"for_s": 10.0, "multiple": 0.0},
    {"for_s": 20.0, "multiple": 0.5, "to_multiple": 2.0},
    {"for_s": 5.0, "multiple": 1.0},
]
PARAMS = {
    "constant": {},
    "on-off": {"on_s": 6.0, "off_s": 4.0},
    "ramp": {"from_multiple": 0.1, "to_multiple": 1.0},
    "phases": {"phases": PHASES},
    "diurnal": {"swing": 0.6, "period_s": 40.0, "peak_s": 10.0, "gaps": "even"},
    "bursts": {"every_s": 10.0, "for_s": 2.0, "multiple": 5.0, "gaps": "even"},
}


def times(source, seed=0):
    return [at_s for at_s, item in source.arrivals(stream(seed, "x")) if item is None]


def usual(kind, load=LOAD):
    return traffic_kind(kind, PARAMS[kind]).usual(load)


def test_constant_has_equal_gaps_after_a_random_start():
    found = times(usual("constant"))
    assert len(found) == 200
    assert 0 <= found[0] < 0.5
    assert [b - a for a, b in pairwise(found)] == pytest.approx([0.5] * 199)
    assert times(usual("constant"), seed=1)[0] != found[0]


def test_on_off_counts_only_the_on_periods():
    found = times(usual("on-off"))
    assert all(at_s % 10 < 6 for at_s in found)
    assert len(found) == 10 * 6 * 2
    assert usual("on-off").expected_programs() == 120


def test_a_ramp_sends_the_mean_of_both_rates_with_shrinking_gaps():
    found = times(usual("ramp"))
    assert usual("ramp").expected_programs() == pytest.approx(0.55 * 2 * 100)
    assert len(found) in (109, 110, 111)
    gaps = [b - a for a, b in pairwise(found)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] == pytest.approx(0.5, rel=0.02)


def rate_at(time_s):
    """Return the rate of PHASES at 2 programs/s, read directly from the table."""
    if time_s < 10:
        return 2.0 if time_s % 5 < 2 else 0.0
    if time_s < 20:
        return 0.0
    if time_s < 40:
        return 2 * (0.5 + 1.5 * (time_s - 20) / 20)
    return 2.0


@examples(30)
@given(st.floats(0, 90), st.floats(0, 90))
def test_phases_send_the_sum_of_their_rates_in_any_window(one_s, other_s):
    start_s, end_s = sorted((one_s, other_s))
    found = sum(start_s <= at_s < end_s for at_s in times(usual("phases")))
    step_s = 0.01
    steps = range(int(start_s / step_s), int(end_s / step_s))
    assert found == pytest.approx(sum(rate_at(n * step_s) for n in steps) * step_s, abs=1.1)


@pytest.mark.parametrize("kind", PARAMS)
def test_a_count_ends_the_stream_at_higher_rates_too(kind):
    load = LOAD._replace(num_programs=7)
    assert len(times(usual(kind, load))) == usual(kind, load).expected_programs() == 7
    more = traffic_kind(kind, PARAMS[kind]).misbehaving(load, 3.0, None)
    assert len(times(more)) == 21
    # the same plan at three times the rate
    every = times(traffic_kind(kind, PARAMS[kind]).misbehaving(LOAD, 3.0, None))
    assert len(every) == pytest.approx(3 * len(times(usual(kind))), abs=3)
    assert more.last_arrival_s(stream(0, "x")) == times(more)[-1]


def test_an_end_that_is_never_reached_blocks_no_client():
    silent = PacedArrivals(1.0, (Phase(10.0, 1.0), Phase(5.0, 0.0)), num_programs=50)
    assert len(times(silent)) == 10
    off = PacedArrivals(1.0, (Phase(inf, 0.0, on_s=1.0, off_s=1.0),), num_programs=50)
    assert times(off) == []
    assert silent.expected_programs() == 10


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize(
    ("changed", "said"),
    [({"programs_per_s": inf}, "request_rate = inf"), ({"burstiness": 2.0}, "burstiness = 2")],
)
def test_traffic_without_even_gaps_is_refused(kind, changed, said):
    with pytest.raises(UsageError, match=said):
        usual(kind, LOAD._replace(**changed))


def test_an_instant_ramp_and_a_stopped_heavy_client_are_refused():
    with pytest.raises(UsageError, match="num_programs: not supported for arrivals of kind ramp"):
        usual("ramp", LOAD._replace(until_s=inf, num_programs=5))
    with pytest.raises(UsageError, match="give the client arrivals of kind phases"):
        traffic_kind("constant", {}).misbehaving(LOAD, 2.0, 0.5)


@pytest.mark.parametrize(
    ("kind", "params", "said"),
    [
        ("on-off", {"on_s": 0.0, "off_s": 1.0}, "on_s = 0.0"),
        ("phases", {"phases": []}, "phases"),
        (
            "phases",
            {"phases": [{"for_s": 1.0, "multiple": 1.0, "on_s": 1.0}]},
            "on_s and off_s must both be above 0, or both be left",
        ),
        ("phases", {"phases": [{"for_s": 1.0}]}, "multiple"),
        ("ramp", {"from_multiple": -1.0, "to_multiple": 1.0}, "from_multiple"),
        ("ramp", {"from_multiple": 1.0, "to_multiple": 1.0, "gaps": "odd"}, "gaps = 'odd'"),
        ("diurnal", {"swing": 1.5}, "swing = 1.5"),
        ("bursts", {"every_s": 2.0, "for_s": 2.0, "multiple": 9.0}, "for_s = 2: must be below"),
    ],
)
def test_wrong_parameters_are_named(kind, params, said):
    with pytest.raises(UsageError, match=said):
        traffic_kind(kind, params)


def test_every_kind_of_even_gaps_is_tested_here():
    assert {*KINDS} - {"gamma", "trace", "azure", "replay", "closed"} == {*PARAMS}


RANDOM = {kind: params | {"gaps": "gamma"} for kind, params in PARAMS.items() if kind != "constant"}


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("burstiness", [0.5, 4.0])
def test_random_gaps_keep_the_rates_on_average(kind, burstiness):
    drawn = traffic_kind(kind, RANDOM[kind]).usual(TrafficLoad(0, 20.0, burstiness, None, 100.0))
    even = replace(drawn, burstiness=None)
    assert drawn.expected_programs() == even.expected_programs()
    # Each fifth of the run has the same number, within the limits of this burstiness.
    found, wanted = (
        [sum(20 * n <= t < 20 * n + 20 for t in every) for n in range(5)]
        for every in (times(drawn), times(even))
    )
    assert found == [pytest.approx(one, abs=5 * (one / burstiness) ** 0.5 + 5) for one in wanted]


@pytest.mark.parametrize("burstiness", [0.5, 4.0])
def test_random_gaps_have_the_requested_burstiness(burstiness):
    load = TrafficLoad(0, 20.0, burstiness, None, 500.0)
    found = times(traffic_kind("phases", {"phases": [PHASES[-1]], "gaps": "gamma"}).usual(load))
    gaps = [b - a for a, b in pairwise(found)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.06)


def test_gamma_in_one_phase_is_gamma():
    load = TrafficLoad(0, 3.0, 0.5, None, 50.0)
    one = traffic_kind("phases", {"phases": [PHASES[-1]], "gaps": "gamma"}).usual(load)
    assert times(one) == pytest.approx(times(traffic_kind("gamma", {}).usual(load)))


@given(st.floats(0, 1), st.floats(1, 1e5), st.floats(0, 1e5), st.integers(1, 4))
def test_a_day_has_the_requested_mean_rate(swing, period_s, peak_s, days):
    params = {"swing": swing, "period_s": period_s, "peak_s": peak_s}
    load = TrafficLoad(0, 1.7, 1.0, None, days * period_s)
    source = traffic_kind("diurnal", params).usual(load)
    assert source.expected_programs() == pytest.approx(1.7 * days * period_s)


def test_the_peak_of_a_day_is_at_its_time():
    found = times(traffic_kind("diurnal", PARAMS["diurnal"]).usual(LOAD._replace(until_s=40.0)))
    at_peak, at_night = (sum(abs(t - at) < 3 for t in found) for at in (10.0, 30.0))
    # 2/s times (1 +- 0.6 sinc): over 6 of 40 s, the mean of a cosine is 0.963
    assert at_peak == pytest.approx(12 * (1 + 0.6 * 0.963), abs=1.1)
    assert at_night == pytest.approx(12 * (1 - 0.6 * 0.963), abs=1.1)


def test_bursts_equal_a_hand_computation():
    found = times(usual("bursts"))
    assert usual("bursts").expected_programs() == 10 * (8 * 2 + 2 * 10)
    assert sum(t % 10 >= 8 for t in found) == pytest.approx(200, abs=11)


def test_repeating_phases_start_again():
    day = [{"for_s": 10.0, "multiple": 1.0}, {"for_s": 10.0, "multiple": 0.0}]
    once, again = (
        traffic_kind("phases", {"phases": day, "repeat": repeat}).usual(LOAD)
        for repeat in (False, True)
    )
    assert (once.expected_programs(), again.expected_programs()) == (20, 100)
    assert times(again)[:20] == times(once)
    assert all(at_s % 20 < 10 for at_s in times(again))


def test_silent_phases_that_repeat_end():
    silent = traffic_kind("phases", {"phases": [{"for_s": 1.0, "multiple": 0.0}], "repeat": True})
    assert times(silent.usual(LOAD._replace(until_s=inf))) == []
