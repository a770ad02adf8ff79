"""Test clients' weights from the workload, a file, settings and flags."""

import re
import tomllib
from pathlib import Path

import pytest

from fairbench.config import identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.config.sweep import make_sweep, points, sweep_of
from fairbench.errors import DataError, UsageError
from fairbench.workloads.plan import tenant_paths_of
from fairbench.workloads.spec import load_workload

CHAT = load_workload("chat").model_dump(mode="json", exclude_none=True)
NAMED = CHAT | {"client_names": ["gold", "free"], "client_weights": {"gold": 4, "client-2": 0.5}}


def stored(spec):
    """Return the keys of the stored experiment file."""
    return tomllib.loads(to_toml(spec))


def weights_of(flags, settings=None, file=None):
    spec = resolve(flags, settings, file)
    again = resolve({}, {}, stored(spec))
    assert again == spec
    assert identity(again) == identity(spec)
    plans = {plan.client: plan.weight for plan in spec.client_plans()}
    assert {name: one for name, one in plans.items() if one != 1} == {
        name: one for name, one in (spec.weights or {}).items() if one != 1
    }
    return spec.weights


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"gold": 4.0, "client-2": 0.5}),
        ({"weights": {"free": 2}}, {"gold": 4.0, "free": 2.0, "client-2": 0.5}),
        ({"weights": {"gold": 1}}, {"gold": 1.0, "client-2": 0.5}),
        ({"weights": {"free": 1}}, {"gold": 4.0, "client-2": 0.5}),
        ({"clients": 2, "scenario": "none"}, {"gold": 4.0}),
        ({"clients": 6, "weights": {"client-5": 3}}, {"gold": 4.0, "client-2": 0.5, "client-5": 3}),
    ],
)
def test_weights_from_flags_are_added_to_those_of_the_workload(flags, expected):
    assert weights_of({"workload": NAMED, **flags}) == expected


def test_an_experiment_without_weights_is_unchanged():
    plain = resolve({"workload": "chat"})
    assert plain.weights is None
    assert "weights" not in stored(plain)
    ones = resolve({"workload": "chat", "weights": {"client-0": 1, "client-3": 1.0}})
    assert identity(ones) == identity(plain)


def test_the_order_of_weights_makes_no_difference():
    one = resolve({"weights": {"client-2": 3.0, "client-0": 2.0}})
    other = resolve({"weights": {"client-0": 2.0, "client-2": 3.0}})
    assert identity(one) == identity(other)


def test_a_stored_run_with_weights_of_vtc_has_them_as_weights_of_the_experiment():
    old = stored(resolve({"scheduler": "vtc"}))
    old["settings"]["vtc"]["weights"] = {"client-1": 2.7}
    assert weights_of({}, file=old) == {"client-1": 2.7}
    spec = resolve({}, {}, old)
    assert spec.settings["vtc.weights"] == {}
    assert spec == resolve({"scheduler": "vtc", "weights": {"client-1": 2.7}})
    # This scheduler ignored weights, so the old run had none in effect.
    assert resolve({"scheduler": "dlpm"}, {}, old).weights is None


def test_settings_nearer_to_the_user_take_precedence():
    file = stored(resolve({"scheduler": "vtc", "weights": {"client-0": 2, "client-1": 2}}))
    assert weights_of({}, {"vtc.weights": {"client-0": 3}}, file) == {"client-0": 3, "client-1": 2}
    both = {"vtc.weights": {"client-0": 3, "client-1": 3}}
    assert weights_of({"weights": {"client-1": 5}}, both, file) == {"client-0": 3, "client-1": 5}


def test_another_workload_does_not_take_over_weights_that_were_only_a_default():
    file = stored(resolve({"workload": NAMED}))
    assert weights_of({"workload": "judge"}, file=file) is None
    chosen = stored(resolve({"workload": "chat", "weights": {"client-1": 2}}))
    assert weights_of({"workload": "judge"}, file=chosen) == {"client-1": 2.0}


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"clent-0": 2}, "unknown client in weights 'clent-0': choose from client-0, client-1, "
         "client-2. Did you mean 'client-0'?"),
        ({"clent-0": 1}, "unknown client in weights 'clent-0': choose from"),
        ({"client-0": 0}, "weights.client-0 = 0: must be greater than or equal to"),
        ({"client-0": -2.0}, "weights.client-0 = -2.0: must be"),
        ({"client-0": float("nan")}, "weights.client-0 = nan: must be"),
        ({"client-0": "2"}, "weights.client-0 = '2': must be a valid number"),
        ([2, 1], "weights = [2, 1]: must be a table of NAME = WEIGHT"),
    ],
)  # fmt: skip
def test_wrong_weights_are_refused_in_one_line(weights, complaint):
    with pytest.raises(UsageError) as refused:
        resolve({"weights": weights})
    assert str(refused.value).startswith(complaint)
    assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match=r"^x\.toml: "):
        resolve({}, {}, {"weights": weights}, path=Path("x.toml"))


def test_a_workload_file_gives_weights_to_existing_clients_only():
    with pytest.raises(UsageError, match=r"unknown client in client_weights 'golt'.*'gold'"):
        resolve({"workload": NAMED | {"client_weights": {"golt": 2}}})
    with pytest.raises(UsageError, match=r"client_weights\.gold = 0"):
        resolve({"workload": NAMED | {"client_weights": {"gold": 0}}})


def test_sweeps_have_them_at_every_point_or_as_an_axis():
    flags = {"schedulers": ["vtc", "dlpm"], "weights": {"client-0": 2.0}}
    assert [one.weights for one in points(sweep_of(None, flags, {}))] == [{"client-0": 2.0}] * 2
    grid = {"weights": [{"client-0": 2}, {"client-0": 3}]}
    swept = points(make_sweep({"name": "x", "grid": grid}))
    assert [one.weights for one in swept] == [{"client-0": 2.0}, {"client-0": 3.0}]


def test_the_example_of_the_documents_is_a_workload():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "weights.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    greedy = {"workload": tomllib.loads(example), "scenario": "greedy"}
    assert weights_of(greedy) == {"gold": 4.0, "silver": 2.0}


TENANTS = CHAT | {
    "client_names": ["acme/ml/ann", "acme/ml/bob", "acme/cid"],
    "client_weights": {"acme/": 4, "acme/ml/ann": 2},
}


def test_tenants_have_weights_as_clients_have():
    spec = resolve({"workload": TENANTS, "weights": {"acme/ml/": 3}})
    assert spec.weights == {"acme/ml/ann": 2.0, "acme/": 4.0, "acme/ml/": 3.0}
    assert spec.tenant_weights == {"acme/": 4.0, "acme/ml/": 3.0}
    assert resolve({}, {}, stored(spec)) == spec
    plans = spec.client_plans()
    assert [plan.weight for plan in plans] == [2.0, 1.0, 1.0, 1.0]
    assert [plan.owner for plan in plans] == ["acme", "acme", "acme", "client-3"]
    assert resolve({"workload": TENANTS, "clients": 3, "scenario": "none"}).tenant_weights == {
        "acme/": 4.0
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client_weights": {"acme": 2}}, "client in client_weights 'acme'.*Did you mean 'acme/'"),
        ({"client_weights": {"acme/web/": 2}}, "client in client_weights 'acme/web/'"),
        ({"client_names": ["acme/"]}, "letters, digits"),
        ({"client_names": ["acme//ann"]}, "letters, digits"),
    ],
)
def test_only_tenants_names_end_in_a_slash(change, message):
    with pytest.raises((UsageError, DataError), match=message):
        resolve({"workload": TENANTS | change})


def test_a_client_with_an_owner_is_placed_below_it():
    owned = CHAT | {"client_owners": {"client-1": "client-0", "client-2": "mal"}}
    plans = resolve({"workload": owned, "weights": {"client-1": 2}}).client_plans()
    assert tenant_paths_of(plans) == {
        "client-0": "client-0/client-0",
        "client-1": "client-0/client-1",
        "client-2": "mal/client-2",
    }
    assert tenant_paths_of(resolve({"workload": TENANTS}).client_plans()) == {}
