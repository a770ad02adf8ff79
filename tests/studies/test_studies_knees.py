"""Test the knees of Preble's routers with hand-made latencies."""

from fairbench.config.sweep import read_sweep
from fairbench_studies.kit.rows import ROOT
from fairbench_studies.kit.table_store import read
from fairbench_studies.preble.knees import TARGET_S, Point, knees, table


def points(system, **p99s_s):
    """Return a point per load (``at_1`` is load 1) with these P99s. Means are half of them."""
    return [
        Point(system, float(load.removeprefix("at_")), [one / 2 for one in of], of)
        for load, of in p99s_s.items()
    ]


def test_the_knee_is_the_last_load_at_which_every_seed_is_within_the_target():
    made = points("a", at_1=[1.0, TARGET_S], at_2=[2.0, 3.0], at_3=[2.0, TARGET_S + 0.1])
    assert knees(made) == {"a": 2.0}


def test_a_load_within_the_target_after_a_missed_one_is_no_knee():
    assert knees(points("a", at_1=[1.0], at_2=[50.0], at_3=[1.0])) == {"a": 1.0}


def test_a_system_that_misses_at_once_has_no_knee():
    made = points("a", at_1=[30.0], at_2=[1.0]) + points("b", at_1=[1.0])
    assert knees(made) == {"b": 1.0}


def test_gains_are_means_of_ratios_within_a_seed():
    made = points("round-robin", at_1=[4.0, 12.0]) + points("preble", at_1=[2.0, 2.0])
    base, preble = table(made)
    assert preble["P99: round-robin's / this"] == "4.0x"  # the mean of 2 and 6
    assert preble["mean: round-robin's / this"] == "4.0x"
    assert (preble["mean, s"], preble["P99, s"]) == ("1.00", "2.0")
    assert base["mean: round-robin's / this"] == "1.0x"


def test_the_stored_table_has_every_system_at_every_load():
    sweep = read_sweep(str(ROOT / "results" / "tables" / "knees.toml"))
    rates = [[rate / sweep.base["dp"] for rate in grid["request_rate"]] for grid in sweep.grid]
    found = {(row["router"].strip("`"), row["load"]) for row in read("knees")}
    systems = ("round-robin", "preble", "memserve")
    expected = {
        (system, f"{load:.2f}")
        for system, loads in zip(systems, rates, strict=True)
        for load in loads
    }
    assert found == expected
