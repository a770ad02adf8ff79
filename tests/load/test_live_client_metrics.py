"""Test the metrics of each client: shares, waiting times, weights, refusals, balances."""

import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.fairness import max_min
from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_engines.vllm.scheduler_host import VLLMHome
from fairbench_load import client_metrics
from fairbench_load.client_metrics import (
    FIRST_TOKEN,
    QUEUE_TIME,
    SHARE,
    SHARES_EVERY_S,
    WINDOW_S,
    Ledger,
    RecentShares,
    fair_shares,
)
from fairbench_load.headers import OTHERS
from fairbench_load.plugin_config import plugin_config
from fairbench_serve.metrics import TotalsByClient
from tests.engines.test_live_load_cap import ENGINE, Req, Theirs, sglang_pass, vllm_pass
from tests.load.live_scrapes import STREAM, asked, exported, home, routed

CLIENT = "client"


def of(client, **labels):
    return tuple(sorted({CLIENT: client, **labels}.items()))


# shares


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 8)), min_size=1, max_size=8),
)
def test_fair_shares_are_those_of_the_metrics(total, clients):
    demands, weights = map(np.array, zip(*clients, strict=True))
    names = [f"client-{n}" for n in range(len(clients))]
    found = fair_shares(
        min(total, demands.sum()),
        dict(zip(names, demands, strict=True)),
        dict(zip(names, weights, strict=True)),
    )
    expected = max_min(min(total, demands.sum()), demands, weights)
    assert [found[name] for name in names] == pytest.approx(list(expected), rel=1e-9)


BOTH = {"heavy": 90, "light": 10}


@pytest.mark.parametrize(
    ("service", "waiting", "weights", "expected"),
    [
        # 50 tokens are due to each; the light client got a fifth of that
        (BOTH, ("heavy", "light"), {}, {"heavy": 1.8, "light": 0.2}),
        # the heavy client did not wait at all, and got more than half
        (BOTH, ("light",), {}, {"heavy": 1.8, "light": 0.2}),
        (BOTH, ("heavy",), {}, {"heavy": 1.0, "light": 1.0}),  # no other client waits
        # 75 and 25 are due by weight
        ({"gold": 60, "free": 40}, ("gold", "free"), {"gold": 3}, {"gold": 0.8, "free": 1.6}),
        ({"heavy": 100}, ("heavy", "starved"), {}, {"heavy": 2.0, "starved": 0.0}),
        ({}, ("first",), {}, {}),
    ],
)
def test_a_share_is_relative_to_the_max_min_fair_share(service, waiting, weights, expected):
    assert RecentShares(0.0).ratios(9.0, service, waiting, weights) == pytest.approx(expected)


@pytest.mark.parametrize(("waits", "ratio"), [(1, 1.0), (3, 1.0), (4, 0.2), (6, 0.2)])
def test_a_client_that_waits_at_most_looks_asks_for_more(waits, ratio):
    shares = RecentShares(0.0)
    for number in range(1, 7):
        waiting = {"heavy"} | ({"light"} if number > 6 - waits else set())
        service = {"heavy": 90 * number, "light": 10 * number}
        found = shares.ratios(number * SHARES_EVERY_S, service, waiting, {})
    assert found["light"] == pytest.approx(ratio)


def test_a_share_looks_back_one_minute():
    shares = RecentShares(0.0)
    for number in range(30):  # the flood ended at 60 s; afterwards, both get the same
        now_s = number * SHARES_EVERY_S
        flood = 90 * min(number, 12) + 10 * max(0, number - 12)
        found = shares.ratios(now_s, {"a": flood, "b": 10 * number}, "ab", {})
        if now_s == WINDOW_S:
            assert found == pytest.approx({"a": 1.8, "b": 0.2})
    assert found == pytest.approx({"a": 1, "b": 1})


def test_clients_without_totals_of_their_own_are_not_over_their_share():
    found = RecentShares(0.0).ratios(1.0, {OTHERS: 1000, "a": 10, "b": 30}, "ab", {})
    assert found == pytest.approx({"a": 0.5, "b": 1.5})


def test_a_total_that_begins_again_is_no_negative_service():
    shares = RecentShares(0.0)
    shares.ratios(10.0, {"a": 500}, (), {})
    assert shares.ratios(70.0, {"a": 20, "b": 20}, (), {}) == pytest.approx({"b": 1.0})


# the exporter inside the engines


def test_the_exporter_shows_who_is_over_its_share_and_forgets_it_when_idle(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: clock.now_s, now_s=100.0)
    monkeypatch.setattr(client_metrics, "time", clock)
    host = home(waiting=("heavy", "light"), balances={"light": -3.0})
    seen = []

    def use(exporter):
        host.ledger = Ledger(exporter)
        host.ledger.count("extend_tokens", "heavy", 70)
        host.ledger.count("output_tokens", "heavy", 10)
        host.ledger.count("extend_tokens", "light", 10)
        exporter.update_gauges(host)
        seen.append(dict(exporter._shown))
        host.waiting, host.idle = (), True
        clock.now_s += 1
        exporter.update_gauges(host)

    found = exported(use)
    assert seen == [pytest.approx({"heavy": 1.8, "light": 0.2})]
    assert found[SHARE, of("heavy")] == found[SHARE, of("light")] == 1.0
    assert found["fairbench_client_balance", of("light")] == -3.0
    assert found["fairbench_client_output_tokens_total", of("heavy")] == 10


def test_a_client_that_left_has_no_share(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: clock.now_s, now_s=100.0)
    monkeypatch.setattr(client_metrics, "time", clock)
    host = home()

    def use(exporter):
        host.ledger = Ledger(exporter)
        host.ledger.count("extend_tokens", "gone", 5)
        for _ in range(3):
            clock.now_s += WINDOW_S
            exporter.update_gauges(host)

    assert math.isnan(exported(use)[SHARE, of("gone")])


def test_waiting_times_are_histograms_of_a_bounded_number_of_clients(monkeypatch):
    monkeypatch.setattr(client_metrics, "MAX_HISTOGRAMS", 2)
    now_s = time.monotonic()

    def use(exporter):
        for number in range(5):
            exporter.waited(QUEUE_TIME, asked(f"client-{number}", arrival_s=now_s - 7))

    found = exported(use)
    name = f"fairbench_client_{QUEUE_TIME}"
    counts = {labels: n for (key, labels), n in found.items() if key == f"{name}_count"}
    assert counts == {of("client-0"): 1, of("client-1"): 1, of(OTHERS): 3}
    assert found[f"{name}_bucket", of("client-0", le="5.0")] == 0
    assert found[f"{name}_bucket", of("client-0", le="10.0")] == 1


def noting():
    """Return a ledger, and the list of the times that it exports."""
    waits = []
    exporter = SimpleNamespace(count=lambda *_: None, waited=lambda what, _: waits.append(what))
    return Ledger(exporter), waits


def test_a_request_in_sglang_waits_once_and_has_one_first_token():
    """A retracted request is admitted again, but its next tokens are not its first."""
    books, waits = noting()
    host, req = (
        SGLangHome(plugin_config("fcfs", {}), books, lambda refresh: [], lambda req: 0),
        Req(),
    )
    req.finished = lambda: False
    for again in (False, True):
        assert host.accepts(req, 0.0)
        host.queued(req, retracted=again, now_s=0.0)
        assert sglang_pass(host, [req]) == [req]
        for _ in range(3):
            req.output_ids = [*req.output_ids, 1]
            host.produced([req])
    assert waits == [QUEUE_TIME, FIRST_TOKEN]


def test_a_request_in_vllm_waits_once_and_has_one_first_token():
    books, waits = noting()
    host, one = VLLMHome(plugin_config("fcfs", {}), books, ENGINE), Theirs(0)
    host.add_request(one)
    for _ in range(2):
        assert vllm_pass(host) == [one]
        # a step without a token, such as a part of a prompt
        host.produced([SimpleNamespace(request_id=one.request_id, new_token_ids=[])])
        for _ in range(3):
            one.num_output_tokens += 1
            host.produced([SimpleNamespace(request_id=one.request_id, new_token_ids=[7])])
        one.status = SimpleNamespace(name="PREEMPTED")
        host.prepend_request(one)
    assert waits == [QUEUE_TIME, FIRST_TOKEN]


def test_both_engines_name_the_clients_that_wait():
    first = VLLMHome(plugin_config("vtc", {}), Ledger(), ENGINE)
    first.add_request(Theirs(0))
    assert list(first.waiting) == ["a"]
    assert vllm_pass(first)
    assert list(first.waiting) == []


# the router


def test_the_router_shows_weights_refusals_and_times_of_each_client():
    wrong = {"input_ids": "no ids"}
    calls = [("ann", STREAM), ("bob", STREAM), ("bob", wrong), ("eve", wrong)]
    found = routed(calls, weights={"ann": 4.0})
    assert found["fairbench_client_weight", of("ann")] == 4
    assert found["fairbench_client_weight", of("bob")] == 1
    refusals = "fairbench_client_refusals_total"
    assert found[refusals, of("bob", status="400")] == found[refusals, of("eve", status="400")] == 1
    assert (refusals, of("ann", status="400")) not in found
    for what in (QUEUE_TIME, FIRST_TOKEN):
        assert found[f"fairbench_client_{what}_count", of("ann")] == 1
    assert found[SHARE, of("ann")] == pytest.approx(1.0)


def test_an_answer_in_one_piece_has_no_first_token():
    found = routed([("ann", {**STREAM, "stream": False})])
    assert found["fairbench_client_queue_time_seconds_count", of("ann")] == 1
    assert not [name for name, _ in found if name.startswith(f"fairbench_client_{FIRST_TOKEN}")]


def test_a_refusal_for_an_unknown_key_names_no_client():
    found = routed([("ann", STREAM)], keys={"secret": "ann"})
    assert found["fairbench_refused_total", (("status", "401"),)] == 1
    assert not [name for name, _ in found if name == "fairbench_client_refusals_total"]


@pytest.mark.parametrize("router", [{"router": "d2lpm"}, {"gateway": "vtc"}, {"gateway": "drr"}])
def test_the_router_shows_balances(router):
    found = routed([("ann", STREAM), ("bob", STREAM)], **router)
    balances = {labels for name, labels in found if name == "fairbench_client_balance"}
    assert balances == {of("ann"), of("bob")}


def test_histograms_of_the_router_add_up_when_clients_lose_theirs(monkeypatch):
    totals = TotalsByClient()
    totals._times._most = 2
    for number in range(7):
        totals.count_held(f"client-{number}", number)
    (family,) = (one for one in totals.collect() if one.name.endswith(QUEUE_TIME))
    counts = {s.labels[CLIENT]: s.value for s in family.samples if s.name.endswith("_count")}
    assert counts == {"client-5": 1, "client-6": 1, OTHERS: 5}
    upto = {
        s.labels["le"]: s.value
        for s in family.samples
        if s.labels[CLIENT] == OTHERS and "le" in s.labels
    }
    assert (upto["0.5"], upto["1.0"], upto["2.5"], upto["+Inf"]) == (1, 2, 3, 5)
