"""Test that the incremental waiting queue has exactly the order of sorting a list."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sequence import Sequence
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.errors import UsageError
from fairbench.schedulers.prefix_tree import path
from fairbench.schedulers.views import ListView
from tests.sim.sim_helpers import prompt
from tests.strategies import common, examples, prompts, tokens_of
from tests.worker_invariants import check_tree

clients = st.sampled_from(["x", "y", "z"])
texts = prompts(lengths=(3, 31, 32, 33, 40), max_size=2)
# a scheduler's answers to the offered requests
credits = st.fixed_dictionaries(dict.fromkeys("xyz", st.sampled_from([-1, 0, 1])))
decisions = st.lists(st.sampled_from(["pass", "admit", "skip", "unskip"]) | credits, max_size=8)


def test_only_a_cache_aware_scheduler_gets_the_match_order():
    with pytest.raises(UsageError, match=r"match_order\(\) needs cache_aware = True in the sched"):
        WaitingQueue(KVCache(2000), cache_aware=False).match_order()


class Both:
    """A cache and both views of one queue. ``pass_over`` requires that they always agree."""

    def __init__(self, cache_aware=True, capacity=2000):
        self.cache = KVCache(capacity)
        self.fast = WaitingQueue(self.cache, cache_aware)
        self.slow = ListView([], self.matched, lambda request: self.sequences[request].prompt)
        self.sequences = {}
        self.running = []
        self.tokens = {}

    def arrive(self, text, client="x"):
        total = prompt_tokens(text)
        request = Request(len(self.sequences), client, 0, 0, text, total, 9)
        sequence = Sequence(request, Segment(f"out-{request.request_id}", 9), 0, lambda _: None)
        self.sequences[request] = sequence
        self.enter(request)
        return request

    def enter(self, request):
        self.tokens[request] = tokens_of(self.sequences[request].prompt)
        self.fast.enter(self.sequences[request])
        self.slow.enter(request)

    def matched(self, request):
        """Return the match, token by token, against all cached prompts."""
        tokens = self.tokens[request]
        ends = (tokens_of(path(node)) for node in self.cache.nodes())
        return max((common(tokens, end) for end in ends), default=0)

    def store(self, text):
        total = prompt_tokens(text)
        node, place = self.cache.match(text, total)
        if total - node.depth <= self.cache.free:
            self.cache.allocate(total - node.depth)
            self.cache.insert(node, text, place, total)

    def retract(self, request, produced):
        self.running.remove(request)
        self.sequences[request].produced += produced
        self.sequences[request].retract(0)
        self.enter(request)

    def pass_over(self, decisions=(), *, refresh=True, matching=True, again=False):
        """Run one pass, in which a scheduler looks (``again``: twice) and decides.

        Returns the requests that it was offered.
        """
        plan = iter(decisions)
        offered = self.scan(plan, refresh, matching)
        if again:
            offered += self.scan(plan, False, matching)
        self.fast.end_pass()
        return offered

    def scan(self, plan, refresh, matching):
        if matching:
            fast, slow = (view.match_order(refresh=refresh) for view in (self.fast, self.slow))
        else:
            fast, slow = self.fast.queue_order(), self.slow.queue_order()
        offered = []
        for request in slow:
            assert next(fast) is request
            offered.append(request)
            match next(plan, "pass"):
                case "admit":
                    self.fast.admit(request)
                    self.slow.leave(request)
                    self.running.append(request)
                case "skip":
                    fast.skip(request.client)
                    slow.skip(request.client)
                case "unskip":
                    fast.unskip_all()
                    slow.unskip_all()
                case dict(credit):
                    fast.skip_debtors(credit)
                    slow.skip_debtors(credit)
        assert next(fast, None) is None
        return offered


def test_a_client_in_debt_is_skipped_at_its_turn():
    both = Both()
    for number, client in enumerate("xyzxyz"):
        both.arrive(prompt(f"p{number}", 40), client)
    credit = {"x": 1, "y": 1, "z": 0}
    offered = both.pass_over(["pass", credit, "pass"])
    assert [request.client for request in offered] == ["x", "y", "x", "y"]
    offered = both.pass_over([credit, "pass", "unskip"])
    assert [request.client for request in offered] == ["x", "y", "x", "y", "z"]


def test_an_admitted_request_is_not_the_turn_of_a_client_in_debt():
    both = Both()
    for client in "xzxz":
        both.arrive(prompt("p", 3), client)
    first = [{"x": 1, "y": 1, "z": -1}, {"x": -1, "y": -1, "z": 1}]  # the second look's credits
    offered = both.pass_over(["pass", "admit", "pass", "pass", *first], again=True)
    assert [request.client for request in offered] == ["x", "z", "x", "z", "x", "x", "z"]


class QueueAgainstList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.both = Both()

    @rule(text=texts, client=clients)
    def arrive(self, text, client):
        self.both.arrive(text, client)

    @rule(text=texts)
    def store(self, text):
        self.both.store(text)

    @rule(tokens=st.integers(1, 200))
    def evict(self, tokens):
        self.both.cache.evict(tokens)

    @rule(decisions=decisions, refresh=st.booleans(), again=st.booleans())
    def look(self, decisions, refresh, again):
        self.both.pass_over(decisions, refresh=refresh, again=again)

    @rule(decisions=decisions)
    def look_in_queue_order(self, decisions):
        self.both.pass_over(decisions, matching=False)

    @precondition(lambda self: self.both.running)
    @rule(pick=st.integers(0, 99), produced=st.integers(1, 40))
    def retract(self, pick, produced):
        running = self.both.running
        self.both.retract(running[pick % len(running)], produced)

    @invariant()
    def both_say_the_same(self):
        fast, slow = self.both.fast, self.both.slow
        assert len(fast) == len(slow)
        assert sorted(fast.clients()) == sorted(slow.clients())
        for client in slow.clients():
            assert fast.oldest(client) is slow.oldest(client)
        for request in slow.queue_order():
            assert fast.matched_tokens(request) == slow.matched_tokens(request)
            assert fast.sequence_of(request) is self.both.sequences[request]
        check_tree(self.both.cache)


QueueAgainstList.TestCase.settings = settings(examples(150), stateful_step_count=30)
TestQueueAgainstList = QueueAgainstList.TestCase


def test_siblings_with_a_cold_prefix_come_last_until_it_is_cached():
    both = Both()
    first, second = (both.arrive(prompt("a", 40, own, 9)) for own in "pq")
    other = both.arrive(prompt("b", 40))
    assert both.pass_over() == [first, other, second]
    both.store(prompt("a", 40))
    # Both match 40 tokens now. A stable sort of the previous order keeps first before second.
    assert both.pass_over() == [first, second, other]
    both.cache.evict(1000)
    assert both.pass_over() == [first, other, second]


def test_sharing_31_tokens_or_having_33_cached_is_not_deprioritised():
    both = Both()
    a = [both.arrive(prompt("a", 31, own, 9)) for own in "pq"]
    assert both.pass_over() == a
    both.store(prompt("b", 33))
    b = [both.arrive(prompt("b", 33, own, 9)) for own in "rs"]
    c = [both.arrive(prompt("c", 32, own, 9)) for own in "tu"]
    assert both.pass_over() == [*b, *a, c[0], c[1]]
    # 32 cached tokens still count as cold, so the second request continues to come last.
    both.store(prompt("c", 32))
    assert both.pass_over() == [*b, c[0], *a, c[1]]


def test_33_cached_tokens_are_not_cold_although_one_is_computed_again():
    both = Both()
    both.store(prompt("a", 33))
    a = [both.arrive(prompt("a", 33)) for _ in range(2)]
    assert both.pass_over() == a
    other = both.arrive(prompt("b", 40))
    assert both.pass_over() == [*a, other]


def test_a_cold_group_has_a_new_leader_when_the_first_is_admitted():
    both = Both()
    requests = [both.arrive(prompt("a", 40, own, 9)) for own in "pqr"]
    late = both.arrive(prompt("b", 40))
    assert both.pass_over(["admit"]) == [requests[0], late, *requests[1:]]
    assert both.pass_over() == [late, requests[1], requests[2]]


def test_without_refresh_newcomers_are_at_the_end_of_the_previous_order():
    both = Both()
    both.store(prompt("b", 40))
    a, b = both.arrive(prompt("a", 40)), both.arrive(prompt("b", 50))
    assert both.pass_over() == [b, a]
    warm = both.arrive(prompt("b", 40, "c", 9))
    assert both.pass_over(refresh=False) == [b, a, warm]
    assert both.pass_over() == [b, warm, a]


def test_a_retracted_request_waits_at_the_end_with_its_outputs():
    both = Both()
    first, second = both.arrive(prompt("a", 10)), both.arrive(prompt("b", 10))
    both.pass_over(["admit"])
    both.retract(first, 4)
    assert both.pass_over(matching=False) == [second, first]
    assert both.fast.sequence_of(first).total == 14
    both.store((*first.prompt, Segment("out-0", 9)))
    assert both.fast.matched_tokens(first) == both.slow.matched_tokens(first) == 13
    assert both.pass_over() == [first, second]


def test_a_scan_never_offers_a_request_twice_and_never_goes_back():
    both = Both(cache_aware=False)
    for client in "xxyxy":
        both.arrive(prompt("a", 5), client)
    offered = both.pass_over(["skip", "unskip", "admit", "skip"], matching=False)
    assert [r.client for r in offered] == list("xyxy")


def test_a_candidate_is_matched_to_one_token_less_than_its_length_and_touched():
    both = Both()
    request = both.arrive(prompt("a", 10))
    for survivor in (10, 9):
        both.store(prompt("a", 10))
        both.store(prompt("b", 10))
        node, place = both.fast.match(request)
        assert (node.depth, place) == (9, (0, 9))
        # The tenth token is touched when its node is cut, the first time, and then not again.
        both.cache.evict(2)
        assert sum(node.length for node in both.cache.nodes()) == survivor
        assert {path(node)[0].key for node in both.cache.nodes()} == {"a"}


def test_waiting_requests_protect_their_prefixes():
    both = Both()
    both.store(prompt("a", 10))
    both.store(prompt("b", 10))
    request = both.arrive(prompt("a", 20))
    both.pass_over()
    both.cache.evict(1)
    assert [path(node) for node in both.cache.nodes()] == [prompt("a", 10)]
    both.store(prompt("b", 10))
    both.pass_over(["admit"])  # the touch of this last refresh stays
    assert both.running == [request]
    both.cache.evict(1)
    assert [path(node) for node in both.cache.nodes()] == [prompt("a", 10)]


def test_the_head_of_the_queue_is_touched_last_and_in_limited_number():
    both = Both(cache_aware=False)
    for key in "abc":
        both.arrive(prompt(key, 10))
        both.store(prompt(key, 10))
    both.fast.touch_head(2)
    for survivors in ("ab", "a", ""):
        both.cache.evict(1)
        assert sorted(path(node)[0].key for node in both.cache.nodes()) == list(survivors)
