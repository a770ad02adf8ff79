"""Test eviction policies against a model of tokens and claims, and in whole runs."""

from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from fairbench.core import Request, Segment
from fairbench.engine.client_cache import ClientCache
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.policies import Claimant
from fairbench.schedulers.eviction.registry import ALL_EVICTIONS, build_eviction
from fairbench.schedulers.prefix_tree import path
from fairbench.sim.run import simulate
from tests.invariants import assert_same_records, run_checked
from tests.sim.eviction_machine import EvictionMachine
from tests.sim.memory_pool import Pool
from tests.sim.sim_helpers import prompt, small_spec
from tests.strategies import examples, prefixes_of, prompts, tokens_of

CLIENTS = {"x": 1.0, "y": 2.0, "z": 1.0}
BY_CLIENT = ("quota", "quota-lending", "max-min")
texts = prompts(lengths=(1, 2, 3, 5))
picks = st.integers(0, 99)


def claims_of(pool):
    """Return the clients that claim each cached token prefix, by a walk over the tree."""
    claims = {}
    for node in pool.cache.nodes():
        tokens = tokens_of(path(node))
        for length in range(node.depth - node.length + 1, node.depth + 1):
            claims[tokens[:length]] = set(node.holders)
    return claims


def residency_of(pool):
    """Return the tokens of each client in memory, exactly."""
    held = defaultdict(Fraction)
    for holders in claims_of(pool).values():
        for client in holders:
            held[client] += Fraction(1, len(holders))
    for one in pool.running:
        held[one.request.client] += one.private
    return held


class PoolAgainstTokens(EvictionMachine):
    """Random starts, steps, ends and retractions under one policy."""

    policy = "max-min"

    def __init__(self):
        super().__init__(Pool(self.policy, 24, CLIENTS))

    @rule(client=st.sampled_from(list(CLIENTS)), text=texts)
    def start(self, client, text):
        self.pool.start(client, text)

    @invariant()
    def memory_is_conserved(self):
        cache = self.pool.cache
        private = sum(one.private for one in self.pool.running)
        assert cache.free + cache.evictable + cache.locked + private == cache.capacity
        assert cache.evictable + cache.locked == len(claims_of(self.pool))

    @invariant()
    def a_running_request_keeps_its_tokens_and_claims(self):
        claims = claims_of(self.pool)
        for one in self.pool.running:
            for prefix in prefixes_of(one.held):
                assert one.request.client in claims[prefix]

    @invariant()
    def residency_is_what_a_walk_counts_and_the_log_says(self):
        counted = residency_of(self.pool)
        logged = defaultdict(Fraction)
        names = list(CLIENTS)
        log = self.pool.log
        rows = zip(*(log.column(name) for name in ("client", "holders", "change")), strict=True)
        for client, holders, change in rows:
            logged[names[client]] += Fraction(int(change), int(holders))
        for client in CLIENTS:
            assert logged[client] == counted[client]
            assert self.pool.cache.residency.held(client) == pytest.approx(float(counted[client]))

    @invariant()
    def every_claim_reaches_the_root_and_nothing_is_unclaimed(self):
        claims = claims_of(self.pool)
        for prefix, holders in claims.items():
            assert holders
            if len(prefix) > 1:
                assert holders <= claims[prefix[:-1]]


def machine(name):
    made = type(f"PoolUnder_{name}", (PoolAgainstTokens,), {"policy": name})
    case = made.TestCase
    case.settings = settings(examples(25), stateful_step_count=30)
    return case


TestLRU, TestLFU, TestRetention = machine("lru"), machine("lfu"), machine("retention")
TestQuota, TestLending, TestMaxMin = machine("quota"), machine("quota-lending"), machine("max-min")


# with a single client

steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), texts),
        st.tuples(st.sampled_from(["finish", "retract"]), picks),
        st.tuples(st.just("decode"), st.none()),
    ),
    max_size=40,
)


def play(pool, actions, client="x"):
    for name, value in actions:
        if name == "start":
            pool.start(client, value)
        elif name == "decode":
            pool.decode()
        elif pool.running:
            getattr(pool, name)(value % len(pool.running))
    return pool.evicted


@given(actions=steps)
@examples(60)
def test_with_one_client_the_engine_lru_quota_lending_and_max_min_evict_the_same(actions):
    own = play(Pool(None, 20, {"x": 1.0}), actions)
    for name in ("lru", "quota", "quota-lending", "max-min"):
        assert play(Pool(name, 20, {"x": 1.0}), actions) == own, name


@given(actions=steps)
@examples(60)
def test_lru_evicts_the_same_for_several_clients_as_the_engine_does(actions):
    pools = [Pool(None, 20, CLIENTS), Pool("lru", 20, CLIENTS)]
    for pool in pools:
        for number, action in enumerate(actions):
            play(pool, [action], "xyz"[number % 3])
    assert pools[0].evicted == pools[1].evicted


# the bound

small = st.lists(st.tuples(st.sampled_from("yz"), texts), min_size=1, max_size=12)


@pytest.mark.parametrize("name", ["quota", "quota-lending", "max-min"])
@given(noise=small, weight=st.sampled_from([0.5, 1.0, 3.0]))
@examples(40)
def test_a_working_set_within_the_share_is_all_hits_from_the_second_pass_on(name, noise, weight):
    weights = {"x": weight, "y": 1.0, "z": 1.0}
    pool = Pool(name, 40, weights)
    share = int(pool.share("x"))
    working_set = [prompt(f"x{number}", 4) for number in range(share // 4)]
    for lap in range(3):
        for text in working_set:
            for client, other in noise:
                text_of = tuple(Segment(f"{client}-{key}", length) for key, length in other)
                if sum(length for _, length in other) <= pool.share(client):
                    pool.start(client, text_of)
                    if pool.running:
                        pool.finish(0)
            hit = pool.start("x", text)
            assert hit == (4 if lap else 0)
            pool.finish(0)
    assert not any(tokens[0][0].startswith("x") for tokens, _ in pool.evicted)


@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(list(CLIENTS)), texts), st.tuples(st.just("finish"), picks)
        ),
        max_size=40,
    )
)
@examples(80)
def test_clients_below_their_share_lose_nothing_while_no_client_pins_more_than_its_share(actions):
    pool = Pool("max-min", 24, CLIENTS)
    for client, value in actions:
        before, held = claims_of(pool), residency_of(pool)
        if client == "finish":
            if pool.running:
                pool.finish(value % len(pool.running))
        elif pool.pinned(client) + sum(length for _, length in value) <= pool.share(client):
            pool.start(client, value)
        after = claims_of(pool)
        for prefix, holders in before.items():
            for lost in holders - after.get(prefix, set()):
                if lost != client:
                    assert held[lost] > pool.share(lost)


def test_lru_lets_a_flood_evict_tokens_that_max_min_keeps():
    def hits(name):
        pool = Pool(name, 100, {"x": 1.0, "y": 1.0})
        found = []
        for lap in range(4):
            found.append(pool.start("x", prompt("x", 40)))
            pool.finish(0)
            for number in range(5):
                pool.start("y", prompt(f"y{lap}-{number}", 20))
                pool.finish(0)
        return found

    assert hits("lru") == [0, 0, 0, 0]
    assert hits("max-min") == hits("quota") == hits("quota-lending") == [0, 40, 40, 40]


def test_a_static_quota_binds_while_memory_is_free_and_a_lent_one_does_not():
    for name, kept in (("quota", 40), ("quota-lending", 80)):
        pool = Pool(name, 100, {"x": 1.0, "y": 1.0}, **{f"{name}.percent": {"x": 40.0}})
        for number in range(4):
            pool.start("x", prompt(f"x{number}", 20))
            pool.finish(0)
        assert pool.cache.residency.held("x") == kept


def test_a_lent_quota_is_taken_back_from_the_borrower():
    pool = Pool("quota-lending", 100, {"x": 1.0, "y": 1.0})
    for number in range(5):
        pool.start("x", prompt(f"x{number}", 20))
        pool.finish(0)
    pool.start("y", prompt("y", 50))
    held = pool.cache.residency.held
    assert (held("x"), held("y")) == (40, 50)


def test_a_shared_prefix_outlives_the_claim_of_the_client_above_its_share():
    pool = Pool("max-min", 60, {"x": 1.0, "y": 1.0})
    for client in "xy":
        pool.start(client, prompt("common", 10))
        pool.finish(0)
    for number in range(6):
        pool.start("y", prompt(f"y{number}", 10))
        pool.finish(0)
    assert claims_of(pool)[tokens_of(prompt("common", 10))] == {"x"}
    assert pool.cache.residency.held("x") == 10


def test_lfu_drops_the_least_used_tokens():
    pool = Pool("lfu", 30, {"x": 1.0})
    for name in ("often", "often", "once", "late"):
        pool.start("x", prompt(name, 10))
        pool.finish(0)
    pool.start("x", prompt("new", 10))
    assert [tokens[0][0] for tokens, _ in pool.evicted] == ["once"]


def test_lfu_adds_the_uses_of_an_evicted_end_to_the_beginning_of_its_prompt():
    pool = Pool("lfu", 30, {"x": 1.0})
    begun = prompt("begin", 10)
    used = [begun] * 2 + [(*begun, *prompt("end", 10))] * 2 + [prompt("other", 10)] * 3
    for text in used:
        pool.start("x", text)
        pool.finish(0)
    pool.start("x", prompt("new", 20))
    # The end, with two uses, goes first. The beginning then has four, and the other prompt three.
    assert [(tokens[-1][0], count) for tokens, count in pool.evicted] == [
        ("end", 10),
        ("other", 10),
    ]


@pytest.mark.parametrize("name", list(ALL_EVICTIONS))
def test_whole_runs_keep_every_invariant(name):
    spec = small_spec("fcfs", "judge", pool=9_000, flags={"eviction": name})
    result = run_checked(spec)
    assert_same_records(result, simulate(spec))


def test_named_lru_gives_the_records_of_the_default():
    cell = {"pool": 9_000, "engine__chunked_prefill_size": 512}
    named = simulate(small_spec("lpm", "tot", flags={"eviction": "lru"}, **cell))
    assert_same_records(named, simulate(small_spec("lpm", "tot", **cell)))


def test_impossible_quotas_are_refused_in_one_line():
    setup = Setup(("ann", "bob"), {}, 100)
    cases = [
        ({"ann": 80.0, "bob": 30.0}, "percent: the quotas add up to 110%, and at most 100%"),
        ({"ann": -1.0}, "percent.ann = -1: must be from 0 to 100"),
        ({"anne": 10.0}, "unknown client in quota.percent 'anne'"),
        ({"ann": 100.0}, ".percent: the quotas leave nothing for bob; give this"),
    ]
    for percent, message in cases:
        with pytest.raises(UsageError, match=message) as error:
            build_eviction("quota", {"quota.percent": percent}).prepare(setup)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="Did you mean 'max-min'"):
        build_eviction("maxmin", {})


def test_max_min_takes_the_largest_unpinned_part_over_weight():
    policy = build_eviction("max-min", {})
    policy.prepare(Setup(("a", "b", "c"), {"a": 1, "b": 2, "c": 1}, 100))
    above = [Claimant("a", 30, 20, 0), Claimant("b", 55, 41, 0), Claimant("c", 15, 15, 0)]
    assert policy.choose(above) == "b"
    assert policy.choose([above[0], above[2]]) == "a"
    assert policy.choose([above[2]]) == "c"
    # 20 tokens weigh more at weight 1 than 30 tokens at weight 2
    assert policy.choose([above[0], Claimant("b", 55, 30, 0)]) == "a"
    # All are below their shares. The client nearest to its share, including its requests, loses.
    assert policy.choose([Claimant("a", 5, 5, 19), Claimant("b", 30, 30, 0)]) == "a"


def test_retention_keeps_a_session_until_its_expected_return():
    policy = build_eviction("retention", {"retention.first_s": 8.0, "retention.factor": 1.0})

    def call(program, arrival_s, left=None):
        return Request(1, "x", program, 0, (), 1, 1, arrival_s, calls_left=left)

    assert policy.on_finish(call(1, 0.0), 2.0) == 10.0
    policy.on_start(call(1, 6.0), 6.0)  # returns after 4 s, which is expected from now on
    assert policy.on_finish(call(2, 6.0), 20.0) == 24.0
    assert policy.on_finish(call(3, 6.0, left=0), 30.0) == 30.0


@pytest.mark.parametrize("name", ["retention", "continuum-ttl"])
def test_the_end_of_a_session_leaves_the_prefix_of_another_session_kept(name):
    pool = Pool(name, 30, {"x": 1.0})
    for name in ("shared", "other"):
        pool.start("x", prompt(name, 10))
        pool.finish(0)  # the session is expected back
    for name in ("shared", "own", "large"):  # the last calls of three sessions
        pool.start("x", prompt(name, 10))
    for _ in range(3):
        pool.running[0].request = replace(pool.running[0].request, calls_left=0)
        pool.finish(0)
    pool.start("x", prompt("new", 10))
    assert [tokens[0][0] for tokens, _ in pool.evicted] == ["other", "own"]


def test_retention_never_keeps_tokens_for_longer_than_its_limit():
    def kept_s(first_s):
        settings = {"retention.first_s": first_s, "retention.factor": 1.5}
        request = Request(1, "x", 1, 0, (), 1, 1, 0.0)
        return build_eviction("retention", settings).on_finish(request, 100.0) - 100.0

    assert [kept_s(first_s) for first_s in (20.0, 200.0, 250.0, 400.0)] == [30, 300, 300, 300]


def test_counts_are_exact_in_any_order_of_claims():
    pool = Pool("max-min", 100, CLIENTS)
    for client in CLIENTS:
        pool.start(client, prompt("common", 30))
    held = Counter({client: pool.cache.residency.held(client) for client in CLIENTS})
    assert held == {"x": 10, "y": 10, "z": 10}
    assert isinstance(pool.cache, ClientCache)
