"""Test several routers before one simulated fleet: service by client, and shares."""

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import read_experiment, resolve
from fairbench.config.spec import identity
from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.clock import Clock
from fairbench.errors import UsageError
from fairbench.schedulers.peers import RoutersParams, Totals, ingress_shares
from fairbench.sim.ingress import Gossip, Peer, RouterIngresses, arrival_routers
from fairbench.sim.run import Simulation, simulate
from tests.invariants import check_all
from tests.sim.sim_helpers import small_spec

CASE = Path(__file__).resolve().parents[2] / "examples" / "two-routers.toml"
SHORT = {"duration_s": 40.0}


def asked(client, number):
    return Request(number, client, number, 0, (Segment(f"p{number}", 8),), 8, 8, 0.0)


def several(scheduler="fcfs", number=2, flags=None, **settings):
    given = {"num_programs": 3, "request_rate": 50.0, "routers": number} | (flags or {})
    return small_spec(scheduler, "chat", dp=2, flags=given, **settings)


def premium_to_regular(flags=None, settings=None):
    """Return the service in the window of the client of weight 4, relative to the other."""
    spec = resolve(SHORT | (flags or {}), settings, read_experiment(CASE))
    rows = {row["client"]: row for row in simulate(spec).summary["clients"]}
    rates = [rows[name]["service_rate_tok_s"] for name in ("premium", "regular")]
    return rates[0] / rates[1]


@given(skew=st.floats(1, 1000), number=st.integers(1, 64))
def test_the_favourite_gets_a_multiple_of_the_least_preferred(skew, number):
    parts = ingress_shares(skew, number)
    assert sum(parts) == pytest.approx(1)
    assert parts == sorted(parts, reverse=True)
    if number > 1:
        assert parts[0] / parts[-1] == pytest.approx(skew)


def test_requests_spread_by_the_skew_and_favourites_rotate():
    params = RoutersParams(skew=9.0)
    arrives = arrival_routers(params, 2, ("a", "b"), seed=1)
    of = {c: Counter(arrives(asked(c, n)) for n in range(2000)) for c in ("a", "b")}
    assert of["a"][0] / 2000 == pytest.approx(0.9, abs=0.03)
    assert of["b"][1] / 2000 == pytest.approx(0.9, abs=0.03)
    one = arrival_routers(RoutersParams(skew=9.0, favourite="one"), 2, ("a", "b"), seed=1)
    assert Counter(one(asked("b", n)) for n in range(2000))[0] / 2000 > 0.85


def test_the_router_of_a_clients_requests_does_not_depend_on_other_clients():
    alone, beside = (
        arrival_routers(RoutersParams(skew=3.0), 4, ("a", "b"), seed=7) for _ in range(2)
    )
    for n in range(50):
        beside(asked("b", n))
        assert alone(asked("a", n)) == beside(asked("a", n))


def test_a_sticky_client_stays_and_clients_spread():
    clients = [f"client-{n}" for n in range(200)]
    arrives = arrival_routers(RoutersParams(form="sticky"), 4, clients, seed=3)
    homes = {client: arrives(asked(client, 0)) for client in clients}
    assert all(arrives(asked(client, n)) == homes[client] for client in clients for n in range(3))
    assert min(Counter(homes.values()).values()) > 25


def test_a_single_router_is_not_in_names_or_files():
    without = small_spec("fcfs", "chat", dp=2, flags={"num_programs": 3, "request_rate": 50.0})
    assert identity(several(number=1)) == identity(without)
    assert "routers" not in simulate(several(number=1)).summary


@pytest.mark.parametrize(
    ("router", "gateway", "form"),
    [
        ("d2lpm", None, "independent"),
        ("d2lpm", None, "sticky"),
        ("d2lpm", None, "exchange"),
        ("d2lpm", None, "ledger"),
        ("d2lpm", "drr", "exchange"),
        ("d2lpm", "vtc", "ledger"),
        ("client-round-robin", "vtc", "exchange"),
        ("client-round-robin", "drr", "independent"),
    ],
)
def test_every_request_is_served_once(router, gateway, form):
    flags = {"router": router, "local": "dlpm"}
    if gateway:
        flags |= {"gateway": gateway, "saturation": "concurrency"}
    spec = several("d2lpm", 3, flags, routers__form=form, routers__skew=10.0)
    result = simulate(spec)
    check_all(result)
    assert result.summary["routers"] == 3
    assert result.summary["completed"] == result.summary["num_requests"] > 20


@pytest.mark.parametrize("router", ["dynamo", "preble-e2", "fair-finish", "vtc-basic", "oracle"])
def test_several_routers_of_other_kinds_run_too(router):
    flags = {"router": router, "local": "dlpm"}
    result = simulate(several("d2lpm", 2, flags, routers__skew=10.0))
    check_all(result)
    assert result.summary["completed"] == result.summary["num_requests"] > 20


def test_admission_control_works_before_each_router():
    spec = several(flags={"goodput": {"e2el": "2s"}}, admission__policy="demote")
    result = simulate(spec)
    check_all(result)
    assert 0 < result.summary["demoted"] < result.summary["completed"]


def test_each_router_gets_its_own_ends_and_all_evictions():
    spec = several("d2lpm", 2, routers__skew=10.0, engine__max_total_tokens=3000)
    simulation = Simulation(spec, spec.client_plans(), None)
    heard = [Counter() for _ in range(2)]
    for counter, router in zip(heard, simulation.router.routers, strict=True):
        for hook in ("route", "on_finish", "on_evict"):
            spy(router, hook, counter)
    assert isinstance(simulation.cluster.ingress, RouterIngresses)
    simulation.run()
    assert all(one["route"] == one["on_finish"] > 0 for one in heard)
    assert heard[0]["on_evict"] == heard[1]["on_evict"] > 0
    assert not simulation.router.owners


def spy(router, hook, counter):
    real = getattr(router, hook)

    def heard(*args):
        counter[hook] += 1
        return real(*args)

    setattr(router, hook, heard)


def test_skewed_ingress_turns_four_to_one_into_one_to_one():
    """The values are Dynamo's: issue 15187 has 255:65 and 163:162."""
    assert premium_to_regular({"routers": 1}) == pytest.approx(4, rel=0.05)
    assert premium_to_regular(None, {"routers.skew": 1.0}) == pytest.approx(4, rel=0.1)
    assert premium_to_regular() == pytest.approx(1, abs=0.3)


@pytest.mark.slow
def test_routers_that_hear_of_each_other_keep_four_to_one():
    exchange = {"routers.form": "exchange", "routers.every_s": 1.0}
    assert premium_to_regular(None, exchange) == pytest.approx(4, rel=0.05)
    bad = {"routers.lost": 0.5, "routers.repeated": 0.5, "routers.delay_s": 0.1}
    assert premium_to_regular(None, exchange | bad) == pytest.approx(4, rel=0.1)
    assert premium_to_regular(None, {"routers.form": "ledger"}) == pytest.approx(4, rel=0.05)


def test_routers_send_their_totals_in_turn_and_hear_them_after_the_delay():
    clock, sent, heard = Clock(), [], []

    class Part:
        def __init__(self, number):
            self.number = number

        def export_totals(self):
            sent.append((self.number, clock.now_ps / PS_PER_S))
            return Totals(1, {}, {})

        def merge_totals(self, origin, totals, now_s):
            heard.append((origin, self.number, now_s))

        def heard_totals(self):
            return {}

        def charged_totals(self):
            return {}

    peers = [Peer([Part(number)], lambda: None) for number in range(4)]
    Gossip(clock, peers, RoutersParams(form="exchange", every_s=2.0, delay_s=0.25), Random(0))
    while clock.next_ps() <= 3 * PS_PER_S:
        clock.step()
    assert sent == [(0, 0.5), (1, 1.0), (2, 1.5), (3, 2.0), (0, 2.5), (1, 3.0)]
    first = [(number, at_s) for origin, number, at_s in heard if origin == "0"]
    assert first == [(n, at_s) for at_s in (0.75, 2.75) for n in (1, 2, 3)]


def test_charges_are_unheard_until_the_message_that_brings_them():
    clock = Clock()

    class Part:
        """Counters that charge a client ``rate`` tokens per second."""

        def __init__(self, rate):
            self.rate, self.heard = rate, {}

        def charged_totals(self):
            return {"x": {0: self.rate * clock.now_ps / PS_PER_S}}

        def export_totals(self):
            return Totals(1, self.charged_totals(), {})

        def merge_totals(self, origin, totals, now_s):
            self.heard[origin] = totals

        def heard_totals(self):
            return self.heard

    peers = [Peer([Part(rate)], lambda: None) for rate in (4.0, 0.0)]
    gossip = Gossip(clock, peers, RoutersParams("exchange", every_s=2.0, delay_s=0.25), Random(0))
    while clock.next_ps() <= 4 * PS_PER_S:
        clock.step()
    # The message of second 3 arrives at 3.25 s, when the charges of second 1 are known.
    assert gossip.unheard.tokens == 4 * (3.25 - 1)


def test_asking_a_ledger_takes_the_time_of_the_network():
    """Every request takes twice the network delay. Without a delay, the time is zero."""
    for delay_s in (0.0, 0.25):
        spec = several("d2lpm", 2, routers__form="ledger", routers__delay_s=delay_s)
        table = simulate(spec).requests
        waited_s = np.asarray(table["routed_s"]) - np.asarray(table["arrival_s"])
        assert waited_s == pytest.approx(2 * delay_s)


def test_d2lpm_routers_know_all_credits_if_there_is_a_ledger():
    spec = several("d2lpm", 3, routers__form="ledger", routers__skew=10.0)
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    for ingress in simulation.cluster.ingress.ingresses:
        ingress.before_call()
    credits_ = [router.credit for router in simulation.router.routers]
    for client in credits_[0]:
        assert credits_[0][client] == pytest.approx(credits_[1][client])
        assert credits_[0][client] == pytest.approx(credits_[2][client])


@pytest.mark.parametrize("form", ["exchange", "ledger"])
def test_policies_without_totals_cannot_share_totals(form):
    flags = {"router": "least-loaded", "gateway": "drr", "saturation": "concurrency"}
    with pytest.raises(
        UsageError, match="the router least-loaded or the gateway drr has no counters"
    ):
        simulate(several(flags=flags, routers__form=form))
    tenants = {"d2lpm__tenants": "tree"}
    with pytest.raises(
        UsageError, match=r"d2lpm\.tenants: cannot be combined with routers that share counters"
    ):
        simulate(several("d2lpm", routers__form=form, **tenants))
    with pytest.raises(UsageError, match=r"cannot be combined with admission\.policy"):
        simulate(several("d2lpm", routers__form=form, admission__policy="demote"))


def test_the_same_seed_gives_the_same_records():
    lossy = {"routers__form": "exchange", "routers__lost": 0.5, "routers__repeated": 0.5}
    one, other = (simulate(several("d2lpm", 2, routers__skew=5.0, **lossy)) for _ in range(2))
    for name, column in one.requests.items():
        again = np.asarray(other.requests[name])
        assert np.array_equal(np.asarray(column), again, equal_nan=name.endswith("_s")), name


@pytest.mark.parametrize(
    ("flags", "settings", "words"),
    [
        ({"routers": 0}, {}, "routers"),
        ({"routers": 65}, {}, "routers"),
        (
            {"routers": 2, "backend": {"kind": "emulator"}},
            {},
            "must be 1, because only simulated runs support several routers",
        ),
        ({"routers": 2}, {"routers.form": "gossip"}, "routers.form"),
        ({"routers": 2}, {"routers.skew": 0.5}, "routers.skew"),
    ],
)
def test_impossible_values_are_refused_in_one_line(flags, settings, words):
    with pytest.raises(UsageError, match=words):
        resolve(flags, settings)


def test_a_router_learns_every_first_token_immediately_before_the_end():
    spec = small_spec("preble", "chat", dp=2, flags={"num_programs": 4, "request_rate": 50.0})
    simulation = Simulation(spec, spec.client_plans(), spec.source())
    router, heard, open_requests = simulation.router, {}, []
    told_first, told_end = router.on_first_token, router.on_finish

    def on_first_token(request, worker, at_s):
        heard[request.request_id] = (worker, at_s)
        open_requests.append(request.request_id)
        told_first(request, worker, at_s)

    def on_finish(request, worker, output, now_s):
        assert open_requests.pop() == request.request_id
        assert heard[request.request_id][1] <= now_s
        told_end(request, worker, output, now_s)

    router.on_first_token, router.on_finish = on_first_token, on_finish
    assert simulation.run()
    rows = simulation.result(True, None).requests
    columns = zip(rows["request_id"], rows["worker"], rows["first_token_s"], strict=True)
    recorded = {int(number): (int(worker), float(at_s)) for number, worker, at_s in columns}
    assert len(recorded) > 10
    assert heard == recorded
