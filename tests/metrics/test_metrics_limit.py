"""Test the limit of a run: worked examples, all orders of a few requests, and seeded faults."""

from dataclasses import replace
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import PS_PER_S, Segment
from fairbench.hardware.catalogue import load_profile
from fairbench.metrics import limit
from fairbench.metrics.limit import (
    ARRIVALS,
    PROGRAM,
    WORK,
    alone_times,
    cheapest,
    least_makespan,
    least_work,
    limit_values,
    most_at,
    time_spent,
    with_memory,
    work_from,
)
from fairbench.metrics.records import FINISHED, UNFINISHED, LoneStep, WorkPrices
from fairbench.metrics.summary import summarize as summary_of
from fairbench.metrics.tables import Tables
from fairbench.results.run_facts import work_prices
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.distinct_prefixes import DistinctPrefixes
from tests.metrics.metrics_helpers import facts, log, programs, requests
from tests.sim.sim_helpers import Home, prompt
from tests.strategies import examples

# In seconds: 1 per prompt token, 10 per request, 0.5 per pair, 0.25 per cached token; 2 per decoded
# token, 0.1 per token of context; alone 3 for the first token, 4 for others, 0.2 of context.
PRICES = WorkPrices(1.0, 10.0, 0.5, 0.25, 2.0, 0.1, 3.0, 4.0, 0.2)


def tables(rows, jobs=({},), steps=()):
    made = [{"request_id": at, **row} for at, row in enumerate(rows)]
    compulsory = np.array([row.pop("compulsory", row["input_tokens"]) for row in made])
    return Tables(
        ["c0", "c1"], replace(requests(*made), compulsory_tokens=compulsory), programs(*jobs),
        log(*steps),
    )  # fmt: skip


def priced(**changes):
    return facts(prices=PRICES, **changes)


def makespan(found, given, work):
    alone_s = alone_times(found.requests, found.programs, given.prices)
    return least_makespan(found, given, work, alone_s)


def test_the_least_work_of_a_request_by_hand():
    found = tables([{"input_tokens": 10, "compulsory": 4, "output_tokens": 3}])
    work = least_work(found.requests, PRICES)
    # Prefill: 4 tokens, the request, and 4 x 6 + 4 x 5 / 2 = 34 pairs. Decoding: 2 steps that read
    # 11 + 12 tokens.
    assert work.prefill_s.tolist() == [4 + 10 + 17]
    assert work.decode_s.tolist() == [pytest.approx(2 * 2 + 2.3)]


def test_a_long_cached_prefix_is_read_and_one_answer_token_comes_with_the_prompt():
    found = tables([{"input_tokens": 101, "compulsory": 1, "output_tokens": 1}])
    cheap = PRICES._replace(attention_s=0.001)
    work = least_work(found.requests, cheap)
    # reading 100 cached tokens takes longer than 101 pairs
    assert work.prefill_s.tolist() == [1 + 10 + 25]
    assert work.decode_s.tolist() == [0.0]


def test_unfinished_requests_are_no_work():
    row = {"input_tokens": 10, "status": UNFINISHED, "output_tokens": 5}
    assert least_work(tables([row]).requests, PRICES).in_all_s.tolist() == [0.0]


def test_unknown_prompts_have_no_limit():
    row = requests({"input_tokens": 10})
    with pytest.raises(ValueError, match=r"compulsory_tokens .* must not be None"):
        least_work(row, PRICES)
    unknown = Tables(["c0", "c1"], row, programs({}), log())
    assert limit_values(unknown, priced(), None) == {}


def test_a_program_alone_takes_its_longest_chain_of_calls():
    rows = [
        {"input_tokens": 1, "output_tokens": output, "depth": depth, "program_id": program}
        for program, depth, output in ((7, 0, 3), (7, 0, 1), (7, 1, 2), (9, 0, 1))
    ]
    found = tables(rows, ({"program_id": 7}, {"program_id": 9}))
    # 3.5 s for the first token; 4 s and 0.2 s x (1 + step) for each further token
    first, second, third = 3.5, 4 + 0.4, 4 + 0.6
    expected = [max(first + second + third, first + first + second), first]
    assert alone_times(found.requests, found.programs, PRICES).tolist() == pytest.approx(expected)


def test_the_cause_of_the_makespan():
    row = {"input_tokens": 10, "output_tokens": 1}
    many = tables([{**row, "program_id": at} for at in range(4)],
                  [{"program_id": at} for at in range(4)])  # fmt: skip
    work = least_work(many.requests, PRICES)  # 4 x (10 + 10 + 27.5 s)
    assert makespan(many, priced(), work) == (190.0, WORK)
    assert makespan(many, priced(workers=4), work) == (47.5, WORK)
    late = replace(
        many, programs=replace(many.programs, arrival_s=np.array([0.0, 0, 500, 600])),
        requests=replace(many.requests, finish_s=np.array([50.0, 100, 550, 650])),
    )  # fmt: skip
    assert makespan(late, priced(), work) == (647.5, ARRIVALS)
    closed = priced(closed_loop=frozenset({0}))
    assert makespan(late, closed, work) == (190.0, WORK)
    single = tables([{"input_tokens": 1, "output_tokens": 101}])
    alone = makespan(single, priced(workers=8), least_work(single.requests, PRICES))
    assert alone == (3.5 + 400 + 0.2 * (100 + 5050), PROGRAM)


def test_a_late_request_pays_for_no_prefix_that_an_unfinished_request_may_share():
    row = {"input_tokens": 10, "output_tokens": 1}
    ends = ({"finish_s": 100.0, "compulsory": 1}, {"finish_s": 60.0}, {"finish_s": 120.0})
    found = tables([{**row, **one} for one in ends])
    work, rows = least_work(found.requests, PRICES), np.arange(3)
    late = work_from(found.requests, priced(), work, np.array([0.0, 50, 55]), rows)
    # The last request ends after all others, so its 47.5 s are work from 55 s on. The second may
    # share its prompt with the first, so it counts with one prompt token: 1 + 10 + 5 s.
    assert late.prefill_s[late.times_s >= 55].max() == 47.5
    assert late.prefill_s[late.times_s >= 50].max() == 47.5 + 16
    assert late.prefill_s.max() == pytest.approx(work.prefill_s.sum())
    broken = replace(found.requests, status=np.array([UNFINISHED, FINISHED, FINISHED]))
    after = work_from(broken, priced(), least_work(broken, PRICES), np.array([0.0, 50, 55]), rows)
    assert after.prefill_s[after.times_s > 0].max() == 2 * 16


def test_both_sides_of_a_disaggregated_cluster_have_their_own_work():
    found = tables([{"input_tokens": 10, "output_tokens": 101}])
    work = least_work(found.requests, PRICES)
    split = priced(workers=4, prefill_workers=1)
    answers_s = float(work.decode_s[0])
    cheap = PRICES._replace(lone_token_s=0.0, lone_context_s=0.0)
    assert makespan(found, replace(split, prices=cheap), work).least_s == answers_s / 3


def test_every_second_has_a_purpose():
    row = {"input_tokens": 4, "extend_tokens": 4, "admitted_s": 10.0, "output_tokens": 3}
    again = {**row, "compulsory": 1, "arrival_s": 40.0, "admitted_s": 60.0, "output_tokens": 1}
    prefill, decode = {"extend_tokens": 4}, {"step_growth_s": 0.1, "context_tokens": 5, "steps": 2}
    steps = [
        prefill | {"start_s": 10.0, "end_s": 40.0},
        decode | {"start_s": 40.0, "end_s": 50.0},
        prefill | {"start_s": 60.0, "end_s": 80.0},
    ]
    found = tables([row, again], steps=steps)
    spent = time_spent(found, priced(), least_work(found.requests, PRICES))
    assert spent.prefill_s == (4 + 10 + 5) + (1 + 10 + 2)
    assert spent.decode_s == pytest.approx(2 * 2 + 0.1 * 11)
    assert spent.recomputed_s == 3 + 3  # three tokens, and 6 of their pairs
    assert spent.small_decode_s == pytest.approx(10 - 5.1)
    assert spent.small_prefill_s == pytest.approx(30 + 20 - 32 - 6)
    assert spent.idle_waiting_s == pytest.approx(10 + 10)  # 0 to 10 s and 50 to 60 s
    assert spent.idle_s == pytest.approx(20)
    assert spent.whole_s == pytest.approx(100)


def test_tokens_that_memory_cannot_keep_are_work_in_addition():
    row = {"input_tokens": 10, "output_tokens": 1}
    found = tables([row, {**row, "compulsory": 4}])
    work = least_work(found.requests, PRICES)
    base_s = 10 + 10 + 27.5 + 4 + 10 + 17
    for computed, hit_rate, more_s in ((17, 0.15, 3), (14, 0.3, 0), (9, 0.3, 0)):
        given = priced(workers=2, least_computed=computed)
        with_them = with_memory(found.requests, given, work)
        assert with_them == pytest.approx((hit_rate, (base_s + more_s) / 2))


def test_a_summary_has_the_limit_of_the_memory_only_if_it_is_short():
    found = tables([{"input_tokens": 10, "output_tokens": 1, "finish_s": 100.0}] * 2)
    here = priced(lone=LoneStep(1.0, 0.0))
    short, enough = (summary_of(found, replace(here, least_computed=least)) for least in (20, None))
    assert short["limit_hit_rate"] == 0
    assert short["limit_memory_ratio"] == short["limit_ratio"]
    assert enough["limit_hit_rate"] is enough["limit_memory_ratio"] is None
    assert "holds all distinct prefixes" in enough["notes"]["limit_hit_rate"]


@pytest.mark.parametrize(
    ("compulsory", "given", "reason"),
    [(False, PRICES, "share a prefix"), (False, None, "share a prefix"), (True, None, "profile")],
)
def test_a_summary_says_why_it_has_no_limit(compulsory, given, reason):
    found = tables([{"input_tokens": 10, "output_tokens": 1, "finish_s": 100.0}])
    if not compulsory:
        found = replace(found, requests=replace(found.requests, compulsory_tokens=None))
    summary = summary_of(found, facts(prices=given))
    assert reason in summary["notes"]["limit"]
    assert "limit_ratio" not in summary


def test_a_live_run_has_a_limit_without_its_gpu_time():
    found = tables([{"input_tokens": 10, "output_tokens": 1, "finish_s": 100.0}])
    summary = summary_of(found, priced())
    assert summary["limit_ratio"] == pytest.approx(0.475)
    assert not [key for key in summary if key.startswith("time_") and key.endswith("_ratio")]


class InOrder(FCFS):
    """A scheduler that serves requests in a given order. They arrive together."""

    def __init__(self, order):
        super().__init__(FCFS.Params())
        self._order = order

    def select(self, view, now_s):
        waiting = {request.request_id: request for request in view.queue_order()}
        for number in self._order:
            if number in waiting:
                yield waiting[number]


PROFILE = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")
# Requests that share prefixes: prompts as segments, and outputs.
CASES = [
    [(("d", 900, f"q{at}", 40), 60) for at in range(5)],
    [(("a", 700), 5), (("b", 700, "x", 9), 90), (("a", 700, "y", 300), 30), (("b", 200), 10)],
    [((f"own{at}", 300 * at + 20), 40 + 10 * at) for at in range(6)],
]


def finished_s(case, order, running):
    home = Home(InOrder(order), pool=20_000, profile=PROFILE, max_running_requests=running)
    for parts, output in case:
        home.send(prompt(*parts), output)
    home.run()
    return max(one.finish_ps for one in home.sent) / PS_PER_S


def bounds(case, running, **faults):
    """Return the least makespan of requests that arrive together, and the best of all orders."""
    tree = DistinctPrefixes()
    rows = [
        {"input_tokens": sum(parts[1::2]), "output_tokens": output,
         "compulsory": tree.add(prompt(*parts), Segment(f"{at}", output), {})}
        for at, (parts, output) in enumerate(case)
    ]  # fmt: skip
    prices = work_prices(PROFILE, pass_tokens=8_192, batch=min(running, len(case)), mixed=False)
    prices = prices._replace(**{key: getattr(prices, key) * by for key, by in faults.items()})
    found = tables(rows)
    work = least_work(found.requests, prices)
    least_s = makespan(found, facts(prices=prices), work).least_s
    best_s = min(finished_s(case, order, running) for order in permutations(range(len(case))))
    return least_s, best_s


GAP = 0.25  # the best order is within this fraction of the limit


@pytest.mark.parametrize("running", [6, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_best_of_all_orders_is_near_the_limit(case, running):
    least_s, best_s = bounds(case, running)
    assert (1 - GAP) * best_s <= least_s <= best_s


@pytest.mark.parametrize(
    ("case", "price"),
    [(CASES[0], "decode_token_s"), ([((f"own{at}", 4_000), 1) for at in range(3)], "token_s")],
)
def test_a_price_that_is_twice_too_high_is_caught(case, price):
    least_s, best_s = bounds(case, len(case), **{price: 2})
    assert least_s > best_s


class Case(NamedTuple):
    """A request: arrival in seconds, shared document, tokens of document and question, answer."""

    arrival_s: float
    document: int
    shared: int
    own: int
    output: int

    def prompt(self, at):
        document = (f"d{self.document}", self.shared) if self.shared else ()
        return prompt(*document, f"q{at}", self.own)


def recorded(cases, order, running):
    """Return the tables of requests that one replica serves in a given order."""
    home = Home(InOrder(order), pool=200_000, profile=PROFILE, max_running_requests=running)
    for at, one in enumerate(cases):
        home.send(one.prompt(at), one.output, at_ps=round(one.arrival_s * PS_PER_S))
    home.run()
    tree = DistinctPrefixes()
    new = {
        at: tree.add(cases[at].prompt(at), Segment(f"out-{at}", cases[at].output), {})
        for at in sorted(range(len(cases)), key=lambda at: home.sent[at].finish_ps)
    }
    rows = [
        {"program_id": at, "arrival_s": one.arrival_s, "input_tokens": one.shared + one.own,
         "output_tokens": one.output, "compulsory": new[at],
         "finish_s": home.sent[at].finish_ps / PS_PER_S}
        for at, one in enumerate(cases)
    ]  # fmt: skip
    return tables(
        rows, [{"program_id": at, "arrival_s": one.arrival_s} for at, one in enumerate(cases)]
    )


def least_and_end(found, running):
    """Return the bound from the records of a run, and the end of the run."""
    prices = work_prices(PROFILE, pass_tokens=8_192, batch=running, mixed=False)
    least_s = makespan(found, facts(prices=prices), least_work(found.requests, prices)).least_s
    return least_s, float(found.requests.finish_s.max())


CASE = st.builds(
    Case, st.floats(0, 3), st.integers(0, 1), st.sampled_from([0, 500, 4_000]),
    st.integers(1, 300), st.integers(1, 120),
)  # fmt: skip


@examples(20)
@given(st.lists(CASE, min_size=1, max_size=4), st.integers(1, 4))
def test_no_order_ends_before_the_bound_by_the_records_of_any_other(cases, running):
    orders = permutations(range(len(cases)))
    bounds = [least_and_end(recorded(cases, one, running), running) for one in orders]
    assert max(least_s for least_s, _ in bounds) <= min(end_s for _, end_s in bounds)


def late_questions():
    """Return requests on ten documents, each read again just before its first answer."""
    return [Case(5.8 * late, at, 4_000, 20, 1 if late else 300)
            for late in (0, 1) for at in range(10)]  # fmt: skip


def test_prefixes_charged_to_late_requests_are_caught(monkeypatch):
    found = recorded(late_questions(), range(20), 64)
    least_s, end_s = least_and_end(found, 64)
    assert least_s <= end_s
    monkeypatch.setattr(limit, "_charged_until", lambda _requests, start_s: start_s)
    assert least_and_end(found, 64)[0] > 1.1 * end_s


def vertices(price, most, least, total):
    """Return the least cost over all vertices of the linear program."""
    best = np.inf
    for free in range(len(price)):
        for corner in product(*zip(least, most, strict=True)):
            amounts = list(corner)
            amounts[free] = total - (sum(corner) - corner[free])
            if least[free] - 1e-9 <= amounts[free] <= most[free] + 1e-9:
                best = min(best, float(np.dot(price, amounts)))
    return best


@examples(100)
@given(st.data())
def test_the_cheapest_total_is_a_vertex_of_the_linear_program(data):
    amounts = st.floats(0, 10)
    count = data.draw(st.integers(1, 4))
    price, least, room = (
        np.array(data.draw(st.lists(amounts, min_size=count, max_size=count))) for _ in range(3)
    )
    most = least + room
    total = least.sum() + data.draw(st.floats(0, 1)) * room.sum()
    expected = vertices(price, most, least, total)
    assert cheapest(price, most, least, total) == pytest.approx(expected, abs=1e-6)


def test_the_most_service_at_a_fair_share_by_hand():
    # A token of service costs 1 s for c0 and 3 s for c1. Each asks for 100 tokens, and there are
    # 160 s.
    price, demand, weight = np.array([1.0, 3.0]), np.array([100.0, 100.0]), np.ones(2)
    assert most_at(price, demand, weight, 0.0, 160.0) == pytest.approx(100 + 20)
    assert most_at(price, demand, weight, 1.0, 160.0) == pytest.approx(40 + 40)
    # c1 receives half of its fair share: x + y = T, y = T / 4, x + 3 y = 160.
    assert most_at(price, demand, weight, 0.5, 160.0) == pytest.approx(320 / 3)
    assert most_at(price, demand, weight, 1.0, 1000.0) == 200
