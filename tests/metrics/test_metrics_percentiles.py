"""Test user-chosen percentiles by hand, and that all other values stay the same."""

import re

import pytest

from fairbench.errors import UsageError
from fairbench.metrics.catalogue import chosen_metrics, columns_of, metric_of
from fairbench.metrics.metric import Display
from fairbench.metrics.records import UNFINISHED
from fairbench.metrics.shown_percentiles import parse_percentiles, written_percentiles
from tests.metrics.metrics_helpers import NAN, facts, log, programs, requests, summary_of


def eleven():
    """Return 11 programs of the well-behaved client 1, with one request each, 0 to 10 s long."""
    made = [
        {"program_id": n, "client": 1, "arrival_s": 1.0, "first_token_s": 1.0 + n / 10,
         "finish_s": 1.0 + n, "output_tokens": 11, "input_tokens": 5}
        for n in range(11)
    ]  # fmt: skip
    keys = ("program_id", "client", "arrival_s", "finish_s")
    return made, [{key: one[key] for key in keys} for one in made]


def summary(percentiles=(), made=None, made_by=None):
    usual = eleven()
    known = facts(percentiles=percentiles)
    return summary_of(requests(*(made or usual[0])), programs(*(made_by or usual[1])), log(), known)


def test_chosen_percentiles_equal_hand_computed_values():
    json = summary((10, 90))
    assert json["percentiles"] == "10,90"
    row = json["clients"][1]
    assert (row["p10_s"], row["p90_s"]) == (1.0, 9.0)
    assert (json["victim_p10_s"], json["victim_p90_s"]) == (1.0, 9.0)
    assert json["p90_ttft_ms"] == pytest.approx(900)
    assert json["p10_e2el_ms"] == pytest.approx(1000)
    assert json["p90_tpot_ms"] == pytest.approx(90 * (10 - 1))  # 0.9 n s over ten gaps


def test_permanent_objects_do_not_change():
    plain, chosen = summary(), summary((50, 90, 95, 99))
    nested = {"clients", "notes"}
    assert all(plain[key] == chosen[key] for key in plain.keys() - nested)
    assert plain["notes"].items() <= chosen["notes"].items()
    for one, other in zip(plain["clients"], chosen["clients"], strict=True):
        assert one == {key: other[key] for key in one}
    added = {"percentiles", "victim_p90_s", "p95_ttft_ms", "p95_tpot_ms", "p95_e2el_ms"}
    assert chosen.keys() - plain.keys() == added | {f"p90_{n}_ms" for n in ("ttft", "tpot", "e2el")}


def test_a_percentile_among_unfinished_programs_is_a_lower_bound():
    made, made_by = eleven()
    made[10] |= {"finish_s": NAN, "status": UNFINISHED}
    made_by[10] |= {"finish_s": NAN, "status": UNFINISHED}
    json = summary((80, 99), made, made_by)
    assert json["censored"].count("clients.c1.p99_s") == 1
    assert "victim_p99_s" in json["censored"]
    assert "victim_p80_s" not in json["censored"]


def test_without_values_percentiles_give_the_reason():
    json = summary_of(requests(), programs(), log(), facts(percentiles=(90,)))
    assert json["victim_p90_s"] is None
    assert json["clients"][0]["p90_s"] is None
    assert json["p90_ttft_ms"] is None
    for key in ("victim_p90_s", "clients.c1.p90_s", "p90_ttft_ms"):
        assert json["notes"][key]


@pytest.mark.parametrize("text", ["0", "100", "50,50", "50,,90", "p50", "99.9", "-5", "50;90", "٥"])
def test_wrong_percentiles_are_refused(text):
    with pytest.raises(UsageError, match="whole numbers from 1 to 99"):
        parse_percentiles(text)


def test_percentiles_are_written_in_ascending_order():
    assert written_percentiles(parse_percentiles(" 99, 5,50")) == "5,50,99"
    assert parse_percentiles("") == ()


def test_every_percentile_key_has_a_catalogue_entry_and_no_other_key_has():
    assert all(metric_of(one.key) == one for one in chosen_metrics((1, 42)))
    assert metric_of("clients.web.v1.p42_s").key == "p42_s"
    for key in ("p0_s", "p100_s", "p42_itl_ms", "victim_p42_ttft_ms", "sharing_incentive_p42"):
        assert metric_of(key) is None


def test_tables_show_exactly_the_chosen_percentiles():
    for display in (Display.CLIENTS, Display.COMPARISON, Display.REPEATS):

        def percentiles(*chosen, display=display):
            titles = [one.title for one in columns_of(display, 95, chosen)]
            titles = [one.removeprefix("well-behaved ") for one in titles]
            chosen_ones = [one for one in titles if not re.search("haring|lowdown", one)]
            return [one.split()[0].strip(",") for one in chosen_ones if re.search(r"P\d", one)]

        assert percentiles() == ["P50", "P95"]
        assert percentiles(10, 90) == ["P10", "P90"]
