"""Test that labels of points are the shortest texts that tell the points apart."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.config.spec import experiment_tables
from fairbench.results.experiments import grid_labels, key_of, place_of, point_names, scheduler_of
from tests.strategies import examples


def labelled(*points):
    """Return the labels of experiments, which are given as flags and settings."""
    specs = [
        resolve({"workload": "chat", **flags}, dict(assignments)) for flags, *assignments in points
    ]
    return grid_labels([experiment_tables(spec) for spec in specs])


def test_a_configuration_is_workload_scenario_and_replicas():
    assert labelled(({"dp": 2},), ({"scenario": "none", "seed": 4},)) == [
        ("chat s1 dp 2", "d2lpm"),
        ("chat none dp 1", "d2lpm"),
    ]


def test_other_differences_are_added_where_they_occur():
    first, second, third = labelled(
        ({"num_programs": 4},), ({"clients": 9},), ({"workload": "judge", "clients": 9},)
    )
    assert first[0] == "chat s1 dp 1 clients=4 duration_s=default num_programs=4"
    assert second[0] == "chat s1 dp 1 clients=9 duration_s=300.0 num_programs=default"
    assert third[0] == "judge s1 dp 1"


def test_scheduler_parameters_are_added_within_their_configuration():
    dlpm = {"scheduler": "dlpm"}
    found = labelled(
        (dlpm, ("dlpm.quantum", 1000)), (dlpm,), ({"scheduler": "vtc"},), ({**dlpm, "dp": 2},)
    )
    assert [scheduler for _, scheduler in found] == [
        "dlpm dlpm.quantum=1000",
        "dlpm dlpm.quantum=2000",
        "vtc",
        "dlpm",
    ]


def test_sglangs_policy_is_part_of_the_scheduler_and_its_other_settings_are_not():
    ours = {"backend": {"kind": "sglang"}, "model": "m", "scheduler": "lpm"}
    stock = {**ours, "backend": {"kind": "sglang", "schedule_policy": "lpm"}}
    wide = {**ours, "backend": {"kind": "sglang", "tp": 2}}
    assert labelled((ours,), (stock,), (wide,)) == [
        ("chat s1 dp 1 backend.tp=1", "lpm schedule_policy=default"),
        ("chat s1 dp 1 backend.tp=1", 'lpm schedule_policy="lpm"'),
        ("chat s1 dp 1 backend.tp=2", "lpm"),
    ]


def test_points_that_differ_only_in_seed_are_named_by_all_settings():
    specs = [resolve({"workload": "chat", "seed": seed}) for seed in (0, 1)]
    assert point_names(specs) == ["chat s1 dp 1, d2lpm, seed 0", "chat s1 dp 1, d2lpm, seed 1"]


POINTS = st.tuples(
    st.fixed_dictionaries(
        {
            "scheduler": st.sampled_from(["vtc", "dlpm", "round-robin+vtc"]),
            "dp": st.integers(1, 2),
            "clients": st.integers(4, 5),
            "seed": st.integers(0, 1),
        }
    ),
    st.tuples(
        st.sampled_from(["dlpm.quantum", "engine.max_running_requests", "chat.turns_max"]),
        st.integers(6, 7),
    ),
)


@examples(25)
@given(st.lists(POINTS, min_size=2, max_size=6))
def test_labels_are_equal_only_for_equal_configuration_and_scheduler(points):
    specs = [resolve({"workload": "chat", **flags}, dict([setting])) for flags, setting in points]
    tables = [experiment_tables(spec) for spec in specs]
    keys = [(key_of({**place_of(one), "seed": None}), key_of(scheduler_of(one))) for one in tables]
    found = grid_labels(tables)
    assert len(set(zip(keys, found, strict=True))) == len(set(keys)) == len(set(found))
    for (place, _), (place_key, _) in zip(found, keys, strict=True):
        assert [name for name, _ in found].count(place) == [one for one, _ in keys].count(place_key)
