"""Test schedulers by name, bundled and installed."""

from math import inf

import pytest

from fairbench import doors
from fairbench.errors import UsageError
from fairbench.hardware.engine_params import EngineParams
from fairbench.schedulers import registry
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.registry import (
    DETECTORS,
    AdmissionParams,
    GatewayParams,
    detector_class,
    policies_by_name,
    policy_class,
)
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import make_params, param_names


@pytest.mark.parametrize("name", registry.locals_by_name())
def test_every_local_scheduler_is_known_by_its_own_name(name):
    assert registry.build_local(name, {}).name == name


@pytest.mark.parametrize("name", registry.routers_by_name())
def test_every_router_is_known_by_its_own_name(name):
    assert registry.build_router(name, {}, 4).name == name


@pytest.mark.parametrize("name", registry.locals_by_name())
def test_every_local_scheduler_knows_the_facts_of_its_run(name):
    """An engine's own process gets these facts from the scheduler."""
    scheduler, setup = registry.build_local(name, {}), Setup(weights={"a": 2.0})
    scheduler.prepare(setup)
    assert scheduler.setup is setup


MAY_BE_INFINITE = {  # each of these says what infinity means
    *("fair-finish.slack", "ray-prefix.imbalanced_threshold"),
    *("preble-e2.rebalance_threshold", "preble-e2.autoscale_factor", "preble-e2.imbalance_ratio"),
    *("preble-e2-code.rebalance_threshold", "preble-e2-code.autoscale_factor"),
    *("preble-e2-code.hit_ratio", "edf.aging_s", "edf.rescue_s"),
    *("edf-dlpm.aging_s", "dlpm-edf.aging_s"),
}
PARTS = [
    *((name, registry.local_class(name).Params) for name in registry.locals_by_name()),
    *((name, registry.router_class(name).Params) for name in registry.routers_by_name()),
    *((name, policy_class(name).Params) for name in policies_by_name()),
    *((name, detector_class(name).Params) for name in DETECTORS),
    *(("admission", AdmissionParams), ("gateway", GatewayParams)),
]


@pytest.mark.parametrize(
    ("part", "params", "key"),
    [(*part, f"{part[0]}.{one}") for part in PARTS for one in param_names(part[1])],
)
def test_infinity_is_refused_in_one_line_where_it_means_nothing(part, params, key):
    if key in MAY_BE_INFINITE:
        make_params(part, params, {key: inf})
    else:
        with pytest.raises(UsageError, match=rf"^{key} = inf: (must be|choose from) .*$"):
            make_params(part, params, {key: inf})


def test_no_name_is_both_a_router_and_a_local_scheduler():
    assert not set(registry.locals_by_name()) & set(registry.routers_by_name())


@pytest.mark.parametrize(("pair", "parts"), registry.PAIRS.items())
def test_pairs_consist_of_parts_that_exist(pair, parts):
    router, local = parts
    assert registry.split_pair(pair) == parts
    assert registry.split_pair(f"{router}+{local}") == parts
    assert registry.pair_name(router, local) == pair
    assert router in registry.routers_by_name()
    assert local in registry.locals_by_name()


def test_a_pair_without_a_name_is_named_by_its_parts():
    assert registry.pair_name("round-robin", "vtc") == "round-robin+vtc"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: registry.split_pair("dplm"), r"unknown scheduler 'dplm'.*Did you mean 'dlpm'"),
        (lambda: registry.local_class("vct"), r"unknown local scheduler 'vct'.*mean 'vtc'"),
        (lambda: registry.router_class("round_robin"), r"unknown router.*mean 'round-robin'"),
    ],
)
def test_unknown_names_offer_the_nearest(call, message):
    with pytest.raises(UsageError, match=message):
        call()


class FakeEntryPoint:
    """An entry point as ``importlib.metadata`` finds it for a user's installed scheduler."""

    def __init__(self, name, value):
        self.name, self.value = name, value


class Mine(FCFS):
    """First come, first served under another name."""

    name = "mine"


@pytest.fixture
def install(monkeypatch):
    def install(name, value):
        points = {registry.LOCAL_GROUP: [FakeEntryPoint(name, value)]}
        monkeypatch.setattr(doors, "entry_points", lambda group: points.get(group, []))
        registry._with_plugins.cache_clear()

    yield install
    registry._with_plugins.cache_clear()


def test_a_scheduler_of_the_user_is_found_by_its_entry_point(install):
    install("mine", f"{__name__}:Mine")
    assert isinstance(registry.build_local("mine", {}), Mine)
    assert "mine" in registry.params_classes()


@pytest.mark.parametrize("name", ["vtc", "d2lpm"])
def test_no_entry_point_can_take_a_bundled_name(install, name):
    install(name, f"{__name__}:Mine")
    with pytest.raises(
        UsageError, match=f"the name '{name}' of the scheduler .* is already in use"
    ):
        registry.locals_by_name()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:Mine", "cannot be loaded from no_such_module:Mine"),
        (f"{__name__}:Theirs", "cannot be loaded"),
        (f"{__name__}:FakeEntryPoint", "must be a class derived from LocalScheduler"),
    ],
)
def test_a_broken_entry_point_is_one_clear_line(install, value, message):
    install("mine", value)
    with pytest.raises(UsageError, match=message):
        registry.build_local("mine", {})


@pytest.mark.parametrize("name", ["vtc", "vtc-predict", "lcf"])
def test_weights_name_existing_clients(name):
    scheduler = registry.build_local(name, {f"{name}.weights": {"client-1": 2.0}})
    scheduler.prepare(Setup(clients=("client-0", "client-1")))
    with pytest.raises(
        UsageError,
        match=rf"^unknown client in {name}\.weights 'client-1': choose from client-0, client-2\."
        r" Did you mean 'client-",
    ):
        scheduler.prepare(Setup(clients=("client-0", "client-2")))


@pytest.mark.parametrize("name", registry.locals_by_name())
def test_no_scheduler_takes_names_of_clients_by_itself(name):
    scheduler = registry.build_local(name, {})
    scheduler.prepare(Setup(clients=("a",)))  # raises on any other client's name
    assert scheduler.setup.clients == ("a",)


def test_a_pool_larger_than_any_cluster_is_refused():
    settings = {"engine.max_total_tokens": 10**9}
    assert make_params("engine", EngineParams, settings).max_total_tokens == 10**9
    with pytest.raises(UsageError, match=r"^engine\.max_total_tokens = 1000000001: must be less"):
        make_params("engine", EngineParams, {"engine.max_total_tokens": 10**9 + 1})
