"""Test that a page's sentences on floods are consistent, and blame no well-behaved client."""

import numpy as np
import pytest

from fairbench.metrics.floods import floods
from fairbench.metrics.traffic import Traffic
from fairbench.report.pages.run_page import judged_traffic
from fairbench.report.pages.traffic_figures import (
    flood_headlines,
    traffic_figures,
    visible_clients,
)
from fairbench.report.result_lines import shortfall_of
from fairbench.report.traffic_lines import Shortfall, judged, traffic_lines

NAMES = ("a", "b", "c", "d")
SPAN_S = 600.0


def traffic(*parts, wait_s=0.2):
    """Return requests of 100 tokens at even gaps. Parts are (client, rate, from, to)."""
    rows = sorted(
        (at_s, client)
        for client, rate, start_s, end_s in parts
        for at_s in np.arange(start_s + 0.5 / rate, end_s, 1 / rate).tolist()
    )
    arrival_s, client = np.array([at for at, _ in rows]), np.array([one for _, one in rows])
    return Traffic(NAMES, client, arrival_s, np.full(len(rows), 100.0), np.full(len(rows), wait_s))


USUAL = [(client, 0.5, 0.0, SPAN_S) for client in (1, 2, 3)]
TWO = traffic((0, 30.0, 0.0, SPAN_S), *USUAL, (2, 15.0, 200.0, 260.0))
THREE = traffic((0, 30.0, 0.0, SPAN_S), *USUAL, (2, 15.0, 100.0, 160.0), (3, 12.0, 400.0, 460.0))
APART = traffic(*USUAL, (0, 20.0, 50.0, 150.0), (2, 15.0, 400.0, 500.0))


@pytest.mark.parametrize("given", [TWO, THREE, APART])
def test_shares_are_of_all_load_in_the_window_and_overlapping_floods_add_up(given):
    found = floods(given)
    assert len(found) >= 2
    for one in found:
        inside = (given.arrival_s >= one.start_s) & (given.arrival_s <= one.end_s)
        mine = (given.client[inside] == one.client).sum()
        assert one.share == pytest.approx(mine / inside.sum())
    assert found[0].share > found[1].share or given is APART


def test_a_part_of_the_load_that_delays_nobody_is_no_second_flood():
    """The second client has six times its usual load, which is 3% of the load at that time."""
    given = traffic((0, 90.0, 0.0, SPAN_S), *USUAL, (2, 2.5, 200.0, 260.0))
    assert [given.clients[one.client] for one in floods(given)] == ["a"]


def run(*heavy, trace="", **changes):
    clients = [{"client": name, "misbehaving": name in heavy} for name in NAMES]
    return {
        "clients": clients, "worst_windows": [], "failed": 0, "refused": 0, "trace": trace,
        "queue_empty_share": 0.1,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("summary", "heavy", "verbs"),
    [
        (run("a"), ("a",), ["a floods", "c bursts"]),
        (run("a", "c"), ("a", "c"), ["a floods", "c floods"]),
        (run(), (), ["a bursts", "c bursts"]),
        (run("a", trace="log.csv"), ("a",), ["a floods", "c bursts"]),
        # no flag says which client is heavy
        (run(trace="log.csv"), ("a", "c"), ["a floods", "c floods"]),
    ],
)
def test_a_client_that_the_workload_calls_well_behaved_bursts(summary, heavy, verbs):
    found = judged_traffic(summary, TWO)
    said = list(traffic_lines(found, "in this run"))
    assert found.heavy == heavy
    assert [" ".join(line.split()[:2]) for line in said[:2]] == verbs
    assert said[0].endswith("times the mean of the other clients.")
    assert said[1].endswith("of the load without larger floods.")
    cards = {card.label: card.value for card in flood_headlines(found)}
    assert cards.get("who floods", "") == ", ".join(heavy)


def test_one_flood_is_compared_with_the_other_clients():
    (line, _) = traffic_lines(judged(traffic((0, 30.0, 0.0, SPAN_S), *USUAL)), "in this run")
    assert line.startswith("a floods throughout: 95% of the load in that time, 60 times the mean")
    assert line.endswith("the mean of the other clients.")


WINDOW = {"client": "b", "share": 0.59, "start_s": 60.0, "end_s": 120.0}


@pytest.mark.parametrize(
    ("summary", "hurt"),
    [
        (run("a", worst_windows=[WINDOW]), "b"),
        (run("a", worst_windows=[{**WINDOW, "share": 0.9}]), "nobody"),
        (run("a", worst_windows=[{**WINDOW, "client": "a"}]), "a (heavy)"),
        (run("a", worst_windows=[WINDOW], failed=4, queue_empty_share=1.0), "nobody"),
        (run("a"), "nobody"),
    ],
)
def test_nobody_is_hurt_only_if_no_minute_was_bad(summary, hurt):
    found = judged_traffic(summary, TWO)
    assert found.harm is None
    cards = {card.label: (card.value, card.note) for card in flood_headlines(found)}
    assert cards["who waits"][0] == hurt
    last = list(traffic_lines(found, "in this run"))[-1]
    if hurt == "nobody":
        assert last == "No other client waited noticeably longer than usual."
    else:
        assert cards["who waits"][1] == "59.0% of its fair share, 60 to 120 s"
        assert last == f"{hurt} received 59.0% of its fair share from 60 to 120 s."
        assert shortfall_of(summary) == Shortfall(**{**WINDOW, "client": hurt})


@pytest.mark.parametrize(
    ("tokens", "heavy", "seen"),
    [
        ([9000.0, 10.0, 10.0, 10.0], ["a"], ["a"]),
        ([10.0, 9000.0, 10.0, 10.0], ["a"], ["a", "b"]),  # a flooding client is always named
        # a single client needs no "others"
        ([9000.0, 9000.0, 9000.0, 10.0], [], ["a", "b", "c", "d"]),
        ([30.0, 10.0, 10.0, 10.0], ["a"], ["a", "b", "c", "d"]),
    ],
)
def test_a_legend_names_the_clients_that_can_be_seen(tokens, heavy, seen):
    given = Traffic(NAMES, np.arange(4), np.arange(4.0), np.array(tokens), np.zeros(4))
    assert list(visible_clients(given, NAMES, heavy)) == seen


def test_a_flood_throughout_is_not_called_shaded():
    alone = traffic((0, 30.0, 0.0, SPAN_S), *USUAL)
    for given, said in (
        (alone, "The flood of a is on top."),
        (APART, "Shaded: the flood of a, c, which is on top."),
    ):
        load = next(traffic_figures(judged(given)))
        assert load.caption.endswith(said)
        assert ('class="shade"' in load.svg) is ("Shaded" in said)
