"""Test fair finish by hand, against a recomputation from the log, and by properties."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, prompt_tokens
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.base import Setup
from fairbench.schedulers.output_lengths import PRIOR_OUTPUT_TOKENS, OutputLengths
from fairbench.schedulers.parts.finishes import RequestWork, WorkerBacklog
from fairbench.schedulers.parts.fleet import members
from fairbench.schedulers.routing.fair_finish import FairFinish
from tests.schedulers.routing.router_helpers import NaiveLocations, answer, prompt, prompts, request
from tests.strategies import examples

# work of the initially expected outputs, when costs are unknown
PRIOR = 2 * round(PRIOR_OUTPUT_TOKENS)


def make(workers=2, weights=None, costs=None, **params) -> FairFinish:
    router = FairFinish(FairFinish.Params(**params), workers)
    router.prepare(Setup(weights=weights or {}, costs=costs))
    return router


class Linear:
    """Costs: 1 ms per prefill token, 4 ms per iteration; a step takes 10 ms, plus 2 per request and
    1 us per token.
    """

    def prefill_s(self, cached_tokens, new_tokens):
        return 0.004 + 0.001 * new_tokens + 1e-6 * cached_tokens * new_tokens

    def decode_step_s(self, requests, context_tokens):
        return 0.010 + 0.002 * requests + 1e-6 * context_tokens


class TestWork:
    def test_work_on_a_linear_engine_equals_a_hand_computation(self):
        """99 new tokens after 500 add 98 + 49.5 ms to an iteration; 10 steps take 2 ms + 605 us
        each.

        A token of prefill is 1,023 / 1,024 ms.
        """
        work = RequestWork(Linear())
        assert work.work_tokens(500, 100, 10) == round((99 + 50 + 20 + 6.05) * 1024 / 1023)

    def test_work_is_counted_in_tokens_of_a_prompt(self):
        work = RequestWork(ProfileCosts(load_profile("a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10")))
        assert work.work_tokens(0, 1024, 0) == pytest.approx(1024, abs=1)
        assert work.work_tokens(20_000, 1024, 0) > 1.5 * 1024  # attention
        assert work.work_tokens(1023, 1, 256) > 256

    def test_work_grows_with_prompt_uncached_part_and_output(self):
        work = RequestWork(ProfileCosts(load_profile("h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14")))
        for more in ((2_000, 200, 50), (1_000, 900, 50), (1_000, 200, 300)):
            assert work.work_tokens(*more) > work.work_tokens(1_000, 200, 50)

    def test_if_costs_are_unknown_service_weights_count(self):
        work = RequestWork()
        assert work.work_tokens(500, 100, 10) == 120
        assert work.work_tokens(500, 0, 0) == 1


class TestBacklog:
    def test_others_count_for_no_more_than_fair_sharing_allows_them(self):
        """a has 10 and adds 20: by the time its 30 are done, c gets all of its 5 and b 30 of its
        100.
        """
        backlog = WorkerBacklog(lambda client: 1)
        for number, (client, work) in enumerate([("a", 10), ("b", 60), ("b", 40), ("c", 5)]):
            backlog.add_work(number, client, work)
        assert backlog.finish_of_more("a", 20) == 30 + 30 + 5
        assert backlog.finish_of_more("new", 1) == 1 + 1 + 1 + 1
        assert backlog.finish_of_more("b", 1) == 101 + 10 + 5
        backlog.remove_work(1)
        assert backlog.finish_of_more("a", 50) == 60 + 40 + 5

    def test_weights_change_the_backlog_of_others(self):
        """A client of weight 2 waits half as long; others of weight 3 get three times as much."""
        weights = {"heavy": 2, "b": 3}
        backlog = WorkerBacklog(lambda client: weights.get(client, 1))
        backlog.add_work(0, "b", 100)
        backlog.add_work(1, "c", 100)
        assert backlog.finish_of_more("heavy", 20) == 20 + 30 + 10
        assert backlog.finish_of_more("a", 20) == 20 + 60 + 20
        assert backlog.finish_of_more("a", 50) == 50 + 100 + 50

    @given(
        st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50), st.booleans())),
        st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1, 2, 3.7])),
        st.integers(1, 80),
    )
    def test_the_finish_follows_the_formula(self, events, weights, work):
        backlog, under_way = WorkerBacklog(lambda c: weights.get(c, 1)), {}
        for number, (client, more, over) in enumerate(events):
            backlog.add_work(number, client, more)
            under_way[number] = client, more
            if over:
                gone = next(iter(under_way))
                backlog.remove_work(gone)
                del under_way[gone]
            for one in "abcde":
                naive = naive_finish(under_way, one, work, weights)
                assert backlog.finish_of_more(one, work) == pytest.approx(naive)
        for number in under_way:
            backlog.remove_work(number)
        assert [backlog.work(client) for client in "abcde"] == [0] * 5
        assert backlog.finish_of_more("a", work) == work


def naive_finish(under_way, client, work, weights) -> float:
    """Compute F_w by the formula, from all requests in flight there: {id: (client, work)}."""
    total: dict[str, int] = {}
    for whose, cost in under_way.values():
        total[whose] = total.get(whose, 0) + cost
    x = total.get(client, 0) + work
    mine = weights.get(client, 1)
    return x + sum(
        min(cost, x * weights.get(j, 1) / mine) for j, cost in total.items() if j != client
    )


class TestSlackByHand:
    """Costs are unknown here, so a request of 100 uncached tokens is 100 + 256 of work.

    The slack is a multiple of the matched tokens.
    """

    @pytest.mark.parametrize(
        ("slack", "expected"),
        [(5.2, [0, 0, 0, 1]), (5.1, [0, 0, 1]), (2.6, [0, 0, 1]), (2.5, [0, 1])],
    )
    def test_the_holder_is_kept_unless_another_is_better_by_more_than_the_slack(
        self, slack, expected
    ):
        """Worker 0 takes 356 and then 257 per request, worker 1 takes 356: 257, 514, 771 more."""
        router = make(slack=slack)
        told = [router.route(request(n, "a", ("p", 100)), 0.0) for n in range(len(expected))]
        assert told == expected

    @pytest.mark.parametrize(
        ("factor", "slack", "expected"),
        [(0.5, 2.6, [0, 0, 0, 1]), (0.5, 2.5, [0, 0, 1]), (2, 5.2, [0, 0, 1]), (2, 5.1, [0, 1])],
    )
    def test_outputs_expected_several_times_as_long_change_the_choice(
        self, factor, slack, expected
    ):
        """With half the output, each adds 1 + 128 of work at worker 0, with twice the output 1 +
        512.
        """
        router = make(slack=slack, length_factor=factor)
        told = [router.route(request(n, "a", ("p", 100)), 0.0) for n in range(len(expected))]
        assert told == expected

    @pytest.mark.parametrize(("shared", "expected"), [(10, [0, 1]), (90, [0, 0, 1])])
    def test_a_short_shared_prefix_attracts_little(self, shared, expected):
        """With 10 shared tokens the slack is 40, and worker 0 is behind by 346.

        With 90 shared tokens the slack is 360, and worker 0 is behind by 266, then by 532.
        """
        router = make(slack=4)
        told = [
            router.route(request(n, "a", ("all", shared), (f"own{n}", 100 - shared)), 0.0)
            for n in range(len(expected))
        ]
        assert told == expected

    def test_the_flood_of_another_client_drives_no_client_from_its_prefix(self):
        """b's 100 requests at worker 0 count for no more than a's own 257 of work there."""
        router = make(slack=5.2)
        router.route(request(0, "a", ("p", 100)), 0.0)
        router.on_finish(request(0, "a", ("p", 100)), 0, answer(0), 0.0)
        router.on_worker_leave(1, 0.0)
        for number in range(1, 101):
            router.route(request(number, "b", (f"q{number}", 50)), 0.0)
        router.on_worker_join(1, 0.0)
        assert router.route(request(101, "a", ("p", 100)), 0.0) == 0
        assert router.route(request(102, "b", ("q1", 50)), 0.0) == 1

    def test_the_cost_of_a_match_is_that_of_the_engine(self):
        """The prompt has 499 tokens beyond an iteration's fixed part, at 1.024 ms per 1,023 /
        1,024.
        """
        assert make(slack=7)._slack(500) == 7 * 500
        assert make(slack=7, costs=Linear())._slack(500) == 7 * 499
        assert make(slack=inf)._slack(0) == 0

    def test_known_outputs_of_a_client_count(self):
        router = make(slack=inf)
        first = request(0, "a", ("p", 100))
        router.route(first, 0.0)
        router.on_finish(first, 0, answer(40), 0.0)
        router.route(request(1, "a", ("q", 100)), 0.0)
        assert sum(one.work("a") for one in router._backlogs.values()) == 100 + 2 * 40

    def test_prompt_and_output_are_in_the_cache_afterwards(self):
        router = make(slack=inf)
        first = request(0, "a", ("p", 100))
        at = router.route(first, 0.0)
        router.on_finish(first, at, answer(40), 0.0)
        router.route(request(1, "a", ("p", 100), ("answer", 40), ("more", 10)), 0.0)
        assert router._backlogs[at].work("a") == 10 + 2 * 40


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("abc"), prompts()),
        st.tuples(st.just("send"), st.sampled_from("abc"), prompts()),
        st.tuples(st.just("end"), st.integers(0, 30), st.integers(0, 900)),
        st.tuples(st.just("fail"), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.integers(0, 2)),
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("evict"), st.integers(0, 30), st.integers(1, 9)),
    ),
    max_size=40,
)
WEIGHTS = {"b": 2.0, "c": 0.5}
WORKERS = 3


class Naive:
    """An oracle that lists all work in flight and every prefix, and recomputes everything."""

    def __init__(self, slack: float) -> None:
        self.slack, self.work, self.lengths = slack, RequestWork(Linear()), OutputLengths()
        self.up, self.tree = {0, 1, 2}, NaiveLocations()
        self.under_way: dict[int, dict[int, tuple[str, int]]] = {w: {} for w in self.up}

    def estimates(self, sent: Request) -> dict[int, tuple[float, int]]:
        cached = self.tree.cached_tokens(sent.prompt, WORKERS)
        found = {}
        for worker in sorted(self.up):
            hit = min(cached.get(worker, 0), sent.input_tokens - 1)
            expected = self.lengths.expected(sent.client)
            work = self.work.work_tokens(hit, sent.input_tokens - hit, expected)
            at = naive_finish(self.under_way[worker], sent.client, work, WEIGHTS)
            found[worker] = at, work
        return found

    def allowed(self, sent: Request, of: dict[int, tuple[float, int]]) -> list[int]:
        longest, holders = self.tree.holders(sent.prompt, WORKERS)
        finish = {worker: at for worker, (at, _) in of.items()}
        best = min(finish.values())
        holding = {w: finish[w] for w in holders & self.up} if longest else {}
        worth = self.slack * self.work.work_tokens(0, longest, 0) if longest else 0
        if holding and min(holding.values()) - best <= worth + 1e-6:
            best = min(holding.values())
            return [w for w, at in holding.items() if at == pytest.approx(best)]
        return [w for w, at in finish.items() if at == pytest.approx(best)]


def play(events, slack: float) -> tuple[FairFinish, list[int]]:
    router, naive = make(WORKERS, WEIGHTS, Linear(), slack=slack), Naive(slack)
    flights: list[tuple[Request, int]] = []
    chosen: list[int] = []
    for kind, *told in events:
        if kind == "send":
            sent = Request(len(chosen), told[0], 0, 0, told[1], prompt_tokens(told[1]), 9)
            of = naive.estimates(sent)
            worker = router.route(sent, 0.0)
            assert worker in naive.allowed(sent, of)
            naive.under_way[worker][sent.request_id] = sent.client, of[worker][1]
            naive.tree.insert(sent.prompt, worker)
            flights.append((sent, worker))
            chosen.append(worker)
        elif kind in ("end", "fail") and flights:
            sent, worker = flights.pop(told[0] % len(flights))
            here = naive.under_way.get(worker, {}).pop(sent.request_id, None) is not None
            if kind == "fail":
                router.on_failure(sent, worker, 0.0)
                continue
            output = answer(told[1])
            router.on_finish(sent, worker, output, 0.0)
            if here and output.length:
                naive.lengths.learn(sent.client, output.length)
                # Prompts end in no output: tokens that follow do not matter here.
                naive.tree.insert(sent.prompt, worker)
        elif kind == "leave" and told[0] in naive.up and len(naive.up) > 1:
            naive.up.discard(told[0])
            del naive.under_way[told[0]]
            naive.tree.purge(told[0])
            router.on_worker_leave(told[0], 0.0)
        elif kind == "join":
            naive.up.add(told[0])
            naive.under_way[told[0]] = {}
            naive.tree.purge(told[0])
            router.on_worker_join(told[0], 0.0)
        elif kind == "evict" and flights:
            sent, worker = flights[told[0] % len(flights)]
            gone = min(told[1], sent.input_tokens)
            naive.tree.evict(sent.prompt, gone, worker)
            router.on_evict(sent.prompt, gone, worker, 0.0)
        for worker in naive.up:
            total = sum(work for _, work in naive.under_way[worker].values())
            assert sum(router._backlogs[worker].work(c) for c in "abc") == total
    for sent, worker in flights:
        router.on_finish(sent, worker, answer(3), 0.0)
    assert all(one.work(c) == 0 for one in router._backlogs.values() for c in "abc")
    return router, chosen


@given(EVENTS, st.sampled_from([0.0, 1.0, 10.0, 100.0, inf]))
@examples(60)
def test_every_choice_follows_the_formula_and_every_backlog_returns_to_zero(events, slack):
    _, chosen = play(events, slack)
    assert play(events, slack)[1] == chosen


@given(st.lists(st.tuples(st.sampled_from("abc"), prompts()), min_size=1, max_size=30))
@examples(30)
def test_without_slack_the_lowest_estimate_wins(sends):
    router = make(WORKERS, WEIGHTS, Linear(), slack=0)
    for number, (client, made) in enumerate(sends):
        sent = Request(number, client, 0, 0, made, prompt_tokens(made), 9)
        costs = router._costs(sent, router._tree.levels(router._tree.find(made).node))
        finish = {
            worker: router._backlogs[worker].finish_of_more(client, work)
            for work, workers in costs
            for worker in members(workers)
        }
        assert finish[router.route(sent, 0.0)] == min(finish.values())


def test_to_a_client_of_more_weight_the_backlog_of_others_matters_less():
    """b's backlog of 1,000 at worker 0 counts in full for a weight of 1, and a quarter for 4."""
    chosen = {}
    for weight in (1, 4):
        router = make(weights={"a": weight}, slack=1)
        first = request(0, "a", ("p", 100))
        assert router.route(first, 0.0) == 0
        router.on_finish(first, 0, answer(0), 0.0)
        router._backlogs[0].add_work(99, "b", 1000)
        chosen[weight] = router.route(request(1, "a", ("p", 100)), 0.0)
    # 257 + 257 there against 356 at worker 1; with weight 4 it is 257 + 64.
    assert chosen == {1: 1, 4: 0}


def test_weights_changed_in_place_count_immediately():
    """f and g keep h away by 356 each, the work of its request, until g has twice the weight."""
    weights = {"f": 1.0, "g": 1.0}
    router = make(weights=weights, slack=0)
    router._backlogs[0].add_work(98, "f", 1000)
    router._backlogs[1].add_work(99, "g", 1000)
    first = request(0, "h", ("p", 100))
    assert router.route(first, 0.0) == 0
    router.on_failure(first, 0, 0.0)
    weights["g"] = 2.0
    router.on_weights()
    assert router.route(request(1, "h", ("q", 100)), 0.0) == 0  # a tie would go to worker 1


def test_the_output_limit_of_a_client_does_not_count():
    for allowed in (1, 100_000):
        router = make()
        made = prompt(("p", 100))
        router.route(Request(0, "a", 0, 0, made, 100, allowed), 0.0)
        assert sum(one.work("a") for one in router._backlogs.values()) == 100 + PRIOR
