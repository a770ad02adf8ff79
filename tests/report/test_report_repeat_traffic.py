"""Test that a repeated run's page names the heavy client and its victims over all seeds."""

import numpy as np

from fairbench.metrics.floods import Flood, Harm, Victim
from fairbench.metrics.traffic import Traffic
from fairbench.report.pages.repeat_page import repeat_headlines, repeat_lines
from fairbench.report.traffic_lines import JudgedTraffic

NONE = np.array([])


def seed(floods, harm=None, waits=(1.0,)):
    """Return the traffic of a seed in which clients flood with given shares of the load."""
    traffic = Traffic(("a", "b", "c"), NONE, NONE, NONE, np.array(waits))
    found = tuple(Flood(client, 0.0, 9.0, share, 5.0, 99, False) for client, share in floods)
    return JudgedTraffic(traffic, found, harm, tuple("abc"[one.client] for one in found))


def hurt(count, median_s, usual_s):
    victims = tuple(Victim(client, 9, median_s, usual_s) for client in range(count))
    return Harm(0.0, 9.0, victims, median_s, usual_s)


def test_the_client_that_floods_most_often_is_named_with_its_load_and_victims():
    seeds = [
        seed([(1, 0.6), (0, 0.3), (1, 0.5)], hurt(2, 3.0, 0.25)),
        seed([(1, 0.71)], hurt(1, 2.0, 0.25)),
        seed([]),
    ]
    assert list(repeat_headlines(seeds)) == [
        ("who floods", "b", "in 2 of 3 seeds, 60% to 71% of the load then"),
        ("who waits", "1 to 2 clients", "in 2 of 3 seeds, median wait 2.00 to 3.00 s"),
    ]
    assert list(repeat_lines(seeds)) == [
        "b floods in 2 of 3 seeds: 60% to 71% of the load in that time.",
        "a floods in 1 of 3 seeds: 30% of the load in that time.",
        "Other clients wait in 2 of 3 seeds: 1 to 2 clients, median time to first token "
        "2.00 to 3.00 s, usually 0.25 s.",
    ]


def test_a_flood_without_delays_has_no_victims_if_waits_are_known():
    label, value, _ = list(repeat_headlines([seed([(2, 0.9)])]))[1]
    assert (label, value) == ("who waits", "nobody")
    assert len(list(repeat_headlines([seed([(2, 0.9)], waits=(np.nan,))]))) == 1


def test_without_a_flood_no_client_is_named():
    assert list(repeat_headlines([seed([])])) == list(repeat_lines([seed([])])) == []
