"""Test eviction policies on vLLM's blocks against a model of tokens and claims."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from fairbench.core import Segment, prompt_tokens
from fairbench.schedulers.eviction.registry import ALL_EVICTIONS
from fairbench.sim.run import Simulation, simulate
from tests.invariants import assert_same_records
from tests.sim.block_pool import BlockPool, check_claims, claims_of, residency_of
from tests.sim.eviction_machine import EvictionMachine
from tests.sim.sim_helpers import prompt, small_spec
from tests.sim.vllm_invariants import watch_vllm
from tests.strategies import examples, prompts, tokens_of

CLIENTS = {"x": 1.0, "y": 2.0, "z": 1.0}
texts = prompts(lengths=(1, 2, 3, 5, 8))
picks = st.integers(0, 99)
SIZE = 2


class BlocksAgainstTokens(EvictionMachine):
    """Random starts, steps, ends and preemptions under one policy."""

    policy = "max-min"

    def __init__(self):
        super().__init__(BlockPool(self.policy, 14, SIZE, CLIENTS))

    @rule(client=st.sampled_from(list(CLIENTS)), text=texts)
    def start(self, client, text):
        self.pool.start(client, text)

    @invariant()
    def memory_is_conserved(self):
        cache = self.pool.cache
        held = sum(cache.residency.held(client) for client in CLIENTS)
        assert held == pytest.approx((cache.blocks - cache.blank) * SIZE)

    @invariant()
    def a_running_request_keeps_its_tokens_and_claims(self):
        claims = claims_of(self.pool.cache)
        for one in self.pool.running:
            for end in range(SIZE, one.node.depth + 1, SIZE):
                assert one.request.client in claims[tokens_of(one.text)[:end]]

    @invariant()
    def claims_and_residency_are_what_a_walk_finds(self):
        pool = self.pool
        blank = [(one.request.client, pool.blank_of(one)) for one in pool.running]
        check_claims(pool.cache, blank)
        logged = dict.fromkeys(CLIENTS, Fraction())
        rows = (pool.log.column(name) for name in ("client", "holders", "change"))
        for client, holders, change in zip(*rows, strict=True):
            logged[list(CLIENTS)[client]] += Fraction(int(change), int(holders))
        counted = residency_of(pool.cache, blank)
        assert logged == {client: counted[client] for client in CLIENTS}


def machine(name):
    made = type(f"BlocksUnder_{name}", (BlocksAgainstTokens,), {"policy": name})
    case = made.TestCase
    case.settings = settings(examples(25), stateful_step_count=30)
    return case


TestLRU, TestLFU, TestRetention = machine("lru"), machine("lfu"), machine("retention")
TestQuota, TestLending, TestMaxMin = machine("quota"), machine("quota-lending"), machine("max-min")


# comparison with vLLM's own order

steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), texts),
        st.tuples(st.sampled_from(["finish", "retract"]), picks),
        st.tuples(st.just("decode"), st.none()),
    ),
    max_size=40,
)


def play(pool, actions, clients="x"):
    for number, (name, value) in enumerate(actions):
        if name == "start":
            pool.start(clients[number % len(clients)], value)
        elif name == "decode":
            pool.decode()
        elif pool.running:
            getattr(pool, name)(value % len(pool.running))
    return pool.evicted


@given(actions=steps)
@examples(80)
def test_lru_evicts_the_same_for_several_clients_as_vllm_does(actions):
    own = play(BlockPool(None, 10, SIZE, CLIENTS), actions, "xyz")
    assert play(BlockPool("lru", 10, SIZE, CLIENTS), actions, "xyz") == own


@given(actions=steps)
@examples(60)
def test_with_one_client_vllm_lru_quota_lending_and_max_min_evict_the_same(actions):
    own = play(BlockPool(None, 10, SIZE, {"x": 1.0}), actions)
    for name in ("lru", "quota", "quota-lending", "max-min"):
        assert play(BlockPool(name, 10, SIZE, {"x": 1.0}), actions) == own, name


# the bound

small = st.lists(st.tuples(st.sampled_from("yz"), texts), min_size=1, max_size=12)


@pytest.mark.parametrize("name", ["quota", "quota-lending", "max-min"])
@given(noise=small, weight=st.sampled_from([0.5, 1.0, 3.0]), length=st.sampled_from([7, 8]))
@examples(40)
def test_a_working_set_within_the_share_is_all_hits_from_the_second_pass_on(
    name, noise, weight, length
):
    """The exception is the tokens of a block that a returning request computes in any case."""
    pool = BlockPool(name, 30, SIZE, {"x": weight, "y": 1.0, "z": 1.0})
    spare = int(pool.share("x")) - SIZE  # for the block that a returning request computes
    working_set = [prompt(f"x{number}", length) for number in range(spare // 8)]
    for lap in range(3):
        for text in working_set:
            for client, other in noise:
                text_of = tuple(Segment(f"{client}-{key}", tokens) for key, tokens in other)
                if prompt_tokens(text_of) + SIZE <= pool.share(client):
                    pool.start(client, text_of)
                    if pool.running:
                        pool.finish(0)
            assert pool.start("x", text) == (6 if lap else 0)
            pool.finish(0)


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
    pool = BlockPool("max-min", 14, SIZE, CLIENTS)
    for client, value in actions:
        before = claims_of(pool.cache)
        held = {one: pool.cache.residency.held(one) for one in CLIENTS}
        if client == "finish":
            if pool.running:
                pool.finish(value % len(pool.running))
        elif pool.pinned(client) + prompt_tokens(value) + SIZE <= pool.share(client):
            pool.start(client, value)
        after = claims_of(pool.cache)
        for prefix, holders in before.items():
            for lost in holders - after.get(prefix, set()):
                assert lost == client or held[lost] > pool.share(lost)


# by hand


def run_alone(pool, client, name, tokens):
    cached = pool.start(client, prompt(name, tokens))
    pool.finish(0)
    return cached


def test_max_min_takes_the_blocks_of_the_flood_from_the_last_to_the_first():
    """Each client has 10 tokens of 10 blocks of 2. y's third prompt exceeds its share.

    That prompt needs two blocks more than are blank.
    """
    want = {"max-min": [("y1", 6, 4)], "lru": [("x", 6, 4)]}
    for policy, evicted in want.items():
        pool = BlockPool(policy, 10, SIZE, {"x": 1.0, "y": 1.0})
        for client, name in (("x", "x"), ("y", "y1"), ("y", "y2"), ("y", "y3")):
            assert run_alone(pool, client, name, 6) == 0
        assert [(text[0][0], len(text), tokens) for text, tokens in pool.evicted] == evicted
        assert run_alone(pool, "x", "x", 6) == (4 if policy == "max-min" else 2)
        held = {client: pool.cache.residency.held(client) for client in "xy"}
        assert sum(held.values()) == 20
        if policy == "max-min":
            assert held == {"x": 8, "y": 12}  # x has two blocks, with its last two tokens each


def test_a_spare_block_is_evicted_before_used_ones_and_claims_stay():
    """x and y compute the same four tokens, so the last of two blocks exists twice."""
    pool = BlockPool("lfu", 5, SIZE, CLIENTS)
    common = prompt("common", 4)
    assert (pool.start("x", common), pool.start("y", common)) == (0, 2)
    held = pool.cache.residency.held
    assert (held("x"), held("y")) == (3, 3)
    for _ in "xy":
        pool.finish(0)
    run_alone(pool, "z", "other", 2)
    assert pool.cache.blank == 1
    pool.start("z", prompt("third", 3))
    assert pool.evicted == []  # no block that a prompt could hit is evicted
    assert (held("x"), held("y"), held("z")) == (2, 2, 6)
    assert claims_of(pool.cache)[tokens_of(common)] == {"x", "y"}


def test_new_blocks_of_a_request_belong_to_its_client_alone():
    """y used the same four tokens as x, and was retracted before x went on."""
    pool = BlockPool("lfu", 10, SIZE, CLIENTS)
    common = prompt("common", 5)
    assert (pool.start("x", common), pool.start("y", common)) == (0, 4)
    pool.retract(1)
    pool.decode()
    claims = claims_of(pool.cache)
    assert [claims[length] for length in sorted(claims, key=len)] == [{"x", "y"}] * 2 + [{"x"}]
    held = pool.cache.residency.held
    assert (held("x"), held("y")) == (4 / 2 + 2, 4 / 2)


def test_a_shared_prefix_outlives_the_claim_of_the_client_above_its_share():
    pool = BlockPool("max-min", 12, SIZE, {"x": 1.0, "y": 1.0})
    for client in "xy":
        run_alone(pool, client, "common", 5)
    for number in range(6):
        run_alone(pool, "y", f"y{number}", 5)
    assert claims_of(pool.cache)[tokens_of(prompt("common", 4))] == {"x"}
    assert pool.cache.residency.held("x") == 4


def test_a_static_quota_binds_while_memory_is_free_and_a_lent_one_does_not():
    for name, kept in (("quota", 8), ("quota-lending", 16)):
        pool = BlockPool(name, 20, SIZE, {"x": 1.0, "y": 1.0}, **{f"{name}.percent": {"x": 20.0}})
        for number in range(4):
            run_alone(pool, "x", f"x{number}", 4)
        assert pool.cache.residency.held("x") == kept


def test_retention_drops_sessions_that_do_not_return():
    pool = BlockPool("retention", 4, SIZE, {"x": 1.0}, **{"retention.first_s": 5.0})
    for name in ("ended", "session"):
        pool.start("x", prompt(name, 4))
        (one,) = pool.running
        one.request = replace(one.request, calls_left=0 if name == "ended" else 1)
        pool.finish(0)
    run_alone(pool, "x", "new", 2)
    assert [text[0][0] for text, _ in pool.evicted] == ["ended"]


# whole runs

CELL = {"vllm__num_gpu_blocks_override": 400, "vllm__max_num_batched_tokens": 512}


def cell(name, scheduler="fcfs", workload="chat", **more):
    flags = {"engine": "vllm"} | ({"eviction": name} if name else {}) | more
    return small_spec(scheduler, workload, flags=flags, **CELL)


@pytest.mark.parametrize("name", list(ALL_EVICTIONS))
def test_whole_runs_keep_every_invariant(name):
    spec = cell(name)
    source = spec.source()
    simulation = Simulation(spec, spec.client_plans(), source)
    watch_vllm(simulation.clock, simulation.cluster.workers)
    simulation.run()
    result = simulation.result(True, source)
    assert_same_records(result, simulate(spec))


@pytest.mark.parametrize(("scheduler", "dp"), [("lpm", 1), ("d2lpm", 2)])
def test_named_lru_gives_the_records_of_the_default(scheduler, dp):
    named = simulate(cell("lru", scheduler, "judge", dp=dp))
    assert_same_records(named, simulate(cell(None, scheduler, "judge", dp=dp)))
