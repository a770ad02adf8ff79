"""Test by hand, and token by token, who pays for a shared prefix."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import NoBound, Request, Segment, prompt_tokens
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.shared_prefixes import SharedCharges
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.routing.d2lpm import D2LPM

DOCUMENT = (Segment("doc", 90),)


def request(client, prompt=DOCUMENT, number=0):
    return Request(number, client, 0, 0, prompt, prompt_tokens(prompt), 10)


def paid(shared, *events):
    """Return the total payment of each client. Events are (client, computed document tokens)."""
    total = Counter()
    for client, computed in events:
        total.update(shared.tokens_by_client(request(client), computed))
    return {client: round(tokens, 6) for client, tokens in total.items()}


def test_three_rules_for_one_document_equal_hand_computed_payments():
    events = [("a", 90), ("b", 0), ("b", 0), ("c", 0)]
    assert paid(SharedCharges("owner"), *events) == {"a": 90, "b": 0, "c": 0}
    assert paid(SharedCharges("each"), *events) == {"a": 90, "b": 180, "c": 90}
    assert paid(SharedCharges("split"), *events) == {"a": 30, "b": 30, "c": 30}


def test_a_recomputed_prefix_is_paid_again_and_keeps_its_owner():
    events = [("a", 90), ("b", 0), ("b", 90), ("c", 0)]
    assert paid(SharedCharges("owner"), *events) == {"a": 180, "b": 0, "c": 0}
    assert paid(SharedCharges("split"), *events) == {"a": 45, "b": 90, "c": 45}


def test_only_evicted_tokens_are_paid_again():
    events = [("a", 90), ("b", 40)]  # the last 40 tokens had been evicted
    assert paid(SharedCharges("split"), *events) == {"a": 65, "b": 65}
    assert paid(SharedCharges("owner"), *events) == {"a": 130, "b": 0}


def test_tokens_of_unknown_origin_are_free():
    assert paid(SharedCharges("split"), ("a", 30), ("b", 0)) == {"a": 15, "b": 15}


def test_a_request_pays_alone_for_the_part_beyond_whole_pages():
    longer = Request(0, "b", 0, 0, DOCUMENT, 97, 10)
    assert SharedCharges("owner").tokens_by_client(longer, 97) == {"b": 97}


class Naive:
    """An oracle that does the same accounting token by token."""

    def __init__(self):
        self.sharers = defaultdict(list)
        self.owner = {}

    def split(self, client, tokens, cached):
        due = Counter()
        for place, token in enumerate(tokens):
            if place >= cached:
                self.sharers[token] = [client]
                due[client] += 1
            elif (before := self.sharers[token]) and client not in before:
                due[client] += 1 / (len(before) + 1)
                for other in before:
                    due[other] -= 1 / len(before) - 1 / (len(before) + 1)
                before.append(client)
        return due

    def owned(self, client, tokens, cached):
        due = Counter()
        for token in tokens[cached:]:
            due[self.owner.setdefault(token, client)] += 1
        return due


segments = st.builds(Segment, st.sampled_from("xyz"), st.integers(1, 4))
sends = st.tuples(
    st.sampled_from("abc"), st.lists(segments, min_size=1, max_size=3), st.floats(0, 1)
)


@given(st.lists(sends, max_size=15), st.sampled_from(["split", "owner"]))
def test_every_token_is_charged_as_in_the_oracle_and_no_payment_is_lost(sent, sharing):
    shared, naive = SharedCharges(sharing), Naive()
    for client, parts, cached_part in sent:
        prompt = tuple(parts)
        length = prompt_tokens(prompt)
        cached = int(cached_part * (length - 1))
        tokens = [(key, place) for key, of in prompt for place in range(of)]
        # a token is identified by the whole prefix that ends with it
        path = [tuple(tokens[: at + 1]) for at in range(length)]
        due = shared.tokens_by_client(request(client, prompt), length - cached)
        rule = naive.split if sharing == "split" else naive.owned
        expected = rule(client, path, cached)
        clients = {*due, *expected}
        assert {c: due.get(c, 0) for c in clients} == pytest.approx(
            {c: expected.get(c, 0) for c in clients}
        )
        assert sum(due.values()) == pytest.approx(length - cached)


@pytest.mark.parametrize("make", [DLPM, VTC])
def test_local_schedulers_charge_by_the_rule(make):
    scheduler = make(make.Params(sharing="split"))
    scheduler.prepare(Setup())
    held = scheduler.credit if make is DLPM else scheduler.counters
    sign = -1 if make is DLPM else 1
    first, second = request("a"), request("b", number=1)
    for one, computed in ((first, 90), (second, 0)):
        scheduler.on_arrival(one, Empty(), 0.0)
        held[one.client] = 0
        scheduler.on_admitted(one, computed, recompute=False)
    assert held == {"a": sign * 45, "b": sign * 45}
    assert isinstance(scheduler.service_bound(), NoBound)


class Empty:
    """A queue without waiting requests."""

    def clients(self):
        return ()


def test_dlpm_remembers_debts_to_an_absent_owner():
    scheduler = DLPM(DLPM.Params(sharing="owner"))
    scheduler.on_arrival(first := request("a"), Empty(), 0.0)
    scheduler.credit["a"] = 100
    scheduler.on_admitted(first, 90, recompute=False)
    scheduler.on_finish(first)
    assert scheduler.credit == {}, "a left in credit, which is dropped"
    scheduler.on_arrival(again := request("b", number=1), Empty(), 0.0)
    scheduler.on_admitted(again, 90, recompute=False)
    assert scheduler.credit == {"a": -90, "b": 0}


@pytest.mark.parametrize(
    ("charge", "expected"),
    [
        ("input", {"a": -90, "b": -90}),
        ("uncached", {"a": -90, "b": -1}),
        ("split", {"a": -45.5, "b": -45.5}),
        ("owner", {"a": -91, "b": 0}),
    ],
)
def test_d2lpm_charges_by_the_rule_at_each_worker(charge, expected):
    router = D2LPM(D2LPM.Params(worker_quantum=1000, charge=charge), 1)
    for number, client in enumerate("ab"):
        router.route(request(client, number=number), 0.0)
    left = {client: credit[0] - 1000 for client, credit in router.credit.items()}
    assert left == pytest.approx(expected)
