"""Test that a spec knows which values somebody chose, whatever file they come from."""

import tomllib

import pytest

from fairbench.config import to_toml
from fairbench.config.origins import chosen_part, is_edited, lacks_given, with_given
from fairbench.config.resolve import resolve

SMALL = {"workload": "chat", "scenario": "none", "num_programs": 2, "scheduler": "vtc"}
CHOSEN = [
    (SMALL, {}),
    (SMALL | {"clients": 5, "gpu": "h200"}, {"vtc.output_weight": 9}),
    (
        SMALL | {"weights": {"client-0": 3.0}, "duration_s": 41.0},
        {"engine.max_total_tokens": 9_000},
    ),
    ({"preset": "vtc-paper", "workload": "vtc-overload"}, {"vtc.lift": "none"}),
    ({"workload": "tot", "scenario": "s2", "model": "llama-3.2-3b"}, {"gateway.ttl_s": 5.0}),
]
EACH = pytest.mark.parametrize(("flags", "settings"), CHOSEN)


def tables(spec):
    return tomllib.loads(to_toml(spec))


def earlier(spec):
    """Return the tables of a spec as an older version stored them, without origins."""
    return tables(spec.model_copy(update={"given": None}))


def edited(file, **changes):
    return {**file, **changes}


@EACH
def test_a_file_that_tells_its_origins_is_not_changed(flags, settings):
    file = tables(resolve(flags, settings))
    assert with_given(file) is file


@EACH
def test_a_file_without_origins_gets_them_once(flags, settings):
    spec = resolve(flags, settings)
    old = earlier(spec)
    assert lacks_given(old)
    known = with_given(old)
    assert with_given(known) is known
    assert {key: one for key, one in known.items() if key != "given"} == old
    used = {key: one for key, one in settings.items() if key in spec.settings}
    assert known["given"]["settings"] == used  # the values in the file differ from all defaults
    again = resolve({}, {}, old)
    assert again == spec
    assert again.given["settings"] == used
    assert tables(again)["given"] == tables(resolve({}, {}, tables(again)))["given"]


@EACH
def test_chosen_values_of_a_file_without_origins_stay_under_other_flags(flags, settings):
    old, new = earlier(resolve(flags, settings)), tables(resolve(flags, settings))
    for more in ({"seed": 5}, {"duration_s": 33.0}, {"num_programs": 3}):
        assert resolve(more, {}, old) == resolve(more, {}, new)


@pytest.mark.parametrize("change", [{"dp": 3}, {"duration_s": 77.0}, {"warmup_s": 0.5}])
def test_an_edited_value_counts_as_chosen_beside_the_stored_ones(change):
    spec = resolve({"workload": "chat", "scheduler": "vtc"}, {"vtc.output_weight": 2})
    file = edited(tables(spec), **change)
    assert is_edited(file)
    known = with_given(file)
    assert not is_edited(known)
    assert known["given"]["settings"] == {"vtc.output_weight": 2}
    ((key, value),) = change.items()
    assert known["given"][key] == value
    assert getattr(resolve({"scenario": "none"}, {}, file), key) == value


def test_every_value_that_was_written_by_hand_was_chosen():
    file = {"workload": "chat", "dp": 1, "scheduler": "d2lpm", "settings": {"dlpm": {"quantum": 7}}}
    given = resolve({}, {}, file).given
    assert given == {
        **{"workload": "chat", "dp": 1, "scheduler": "d2lpm"},
        "settings": {"dlpm.quantum": 7},
    }


def test_a_manifest_tells_the_chosen_keys_of_a_file_without_origins():
    old = earlier(resolve(SMALL | {"clients": 5}, {"vtc.output_weight": 9, "vtc.input_weight": 4}))
    kept = chosen_part(with_given(old, ["clients", "vtc.output_weight"]))
    assert (kept["clients"], kept["settings"]) == (5, {"vtc.output_weight": 9})
    assert "clients" not in chosen_part(with_given(old, ["vtc.input_weight"]))


def test_origins_survive_a_whole_experiment_that_is_given_as_flags():
    spec = resolve(SMALL, {"vtc.output_weight": 9})
    assert resolve(earlier(spec)).given["settings"] == {"vtc.output_weight": 9}


@pytest.mark.parametrize("workload", ["agent", "cold-minority", "chat"])
def test_a_usual_warm_up_is_no_choice_even_if_it_is_more_than_a_tenth_of_the_run(workload):
    """The warm-up is limited to a tenth only if the user chose the duration."""
    given = with_given(earlier(resolve({"workload": workload})))["given"]
    assert given.keys().isdisjoint({"warmup_s", "duration_s", "max_drain_s", "clients"})
