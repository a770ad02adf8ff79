"""Test the limit call by call: worked examples, all orders of few programs, and all schedulers."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.core import PS_PER_S
from fairbench.hardware.catalogue import load_profile
from fairbench.metrics.limit import alone_times, least_makespan, least_work
from fairbench.metrics.records import UNFINISHED, WorkPrices
from fairbench.metrics.tables import Tables
from fairbench.results.run_facts import work_prices
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import PAIRS
from fairbench_studies.limit.call_limit import call_times, least_makespan_by_calls
from tests.invariants import run_checked
from tests.metrics.metrics_helpers import facts, log, programs, requests
from tests.sim.sim_helpers import Home
from tests.slow_params import slow
from tests.strategies import examples

PRICES = WorkPrices(*[0.0] * 6, lone_first_s=3.0, lone_token_s=1.0, lone_context_s=0.0)
FULL = PRICES._replace(request_s=10.0)


def tables(rows, jobs=({},)):
    made = [{"request_id": at, "input_tokens": 1, **row} for at, row in enumerate(rows)]
    known = replace(requests(*made), compulsory_tokens=np.ones(len(made), np.int64))
    return Tables(["c0", "c1"], known, programs(*jobs), log())


def chain(*calls, program=0):
    """Return the calls of a conversation, given the arrival, end and output tokens of each."""
    return [
        {"program_id": program, "depth": depth, "arrival_s": arrival_s, "finish_s": finish_s,
         "output_tokens": output}
        for depth, (arrival_s, finish_s, output) in enumerate(calls)
    ]  # fmt: skip


def least_s(found, prices=FULL, **changes):
    given, work = facts(prices=prices, **changes), least_work(found.requests, prices)
    return least_makespan_by_calls(found.requests, found.programs, given, work)


def times_of(found, **changes):
    return call_times(found.requests, found.programs, facts(prices=PRICES, **changes))


def test_a_conversation_by_hand():
    # Alone, the calls take 3, 4 and 5 s. The user thinks for 20 and 7 s.
    rows = chain((0.0, 9.0, 1), (29.0, 36.0, 2), (43.0, 60.0, 3))
    times = times_of(tables(rows))
    assert times.alone_s.tolist() == [3, 4, 5]
    assert times.begin_s.tolist() == [0, 3 + 20, 3 + 20 + 4 + 7]
    assert times.tail_s.tolist() == [20 + 4 + 7 + 5, 7 + 5, 0]
    assert least_s(tables(rows), PRICES) == 34 + 5


def test_parallel_calls_wait_for_the_shortest_and_have_no_tail():
    rows = [
        {"depth": depth, "arrival_s": arrival_s, "finish_s": finish_s, "output_tokens": output}
        for depth, arrival_s, finish_s, output in (
            (0, 0.0, 5.0, 1), (1, 6.0, 20.0, 1), (1, 6.0, 30.0, 8), (2, 31.0, 40.0, 1),
        )
    ]  # fmt: skip
    times = times_of(tables(rows))
    assert times.begin_s.tolist() == [0, 4, 4, 4 + 3 + 1]
    assert times.tail_s.tolist() == [1 + 10, 0, 0, 0]


def test_calls_without_order_arrive_when_they_do():
    rows = [{"arrival_s": at, "finish_s": at + 90, "output_tokens": 1} for at in (100.0, 150.0)]
    found = tables(rows, ({"arrival_s": 100.0},))
    assert times_of(found).begin_s.tolist() == [100, 150]
    assert times_of(found, closed_loop=frozenset({0})).begin_s.tolist() == [0, 50]


def test_work_that_begins_late_and_is_followed_by_a_tail():
    # Four conversations: each call costs 10 s, and the second calls begin at 23 s.
    rows = [
        one for at in range(4)
        for one in chain((0.0, 9.0, 1), (29.0, 36.0, 2), (43.0, 60.0, 3), program=at)
    ]  # fmt: skip
    found = tables(rows, [{"program_id": at} for at in range(4)])
    assert least_s(found) == 12 * 10
    assert least_s(found, workers=4) == 4 * 10 / 4 + 36  # the first calls, and their tails
    assert least_s(found, workers=2) == 23 + 8 * 10 / 2


def test_a_program_with_an_unfinished_call_has_neither_pauses_nor_tails():
    rows = chain((0.0, 9.0, 1), (29.0, 36.0, 2), (43.0, 60.0, 3))
    rows[2]["status"] = UNFINISHED
    times = times_of(tables(rows))
    assert times.begin_s.tolist() == [0, 3]
    assert times.tail_s.tolist() == [0, 0]


def test_no_finished_call_has_no_limit():
    assert least_s(tables([{"status": UNFINISHED}])) == 0


class ByProgram(FCFS):
    """A scheduler that serves all requests of the first program in an order, then of the second."""

    def __init__(self, order):
        super().__init__(FCFS.Params())
        self._order = order

    def select(self, view, now_s):
        for client in self._order:
            yield from (one for one in view.queue_order() if one.client == client)


PROFILE = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")


def finished(talks, order, running):
    """Return the rows of conversations that one replica serves in the given order.

    A conversation is an arrival and calls: think time, prompt tokens and output tokens.
    """
    names = [f"c{at}" for at in range(len(talks))]
    home = Home(ByProgram([names[at] for at in order]), pool=50_000, profile=PROFILE,
                clients=names, max_running_requests=running)  # fmt: skip
    made = []

    def send(talk, depth, now_ps):
        think_s, prompt, output = talks[talk][1][depth]
        at_ps = now_ps + round(think_s * PS_PER_S)

        def done(sequence):
            made.append((talk, depth, sequence))
            if depth + 1 < len(talks[talk][1]):
                send(talk, depth + 1, sequence.finish_ps)

        home.send(prompt, output, at_ps=at_ps, client=names[talk], on_done=done)

    for talk, (arrival_s, _) in enumerate(talks):
        send(talk, 0, round(arrival_s * PS_PER_S))
    home.run()
    return [
        {"program_id": talk, "client": 0, "depth": depth, "output_tokens": one.produced,
         "input_tokens": one.request.input_tokens, "arrival_s": one.arrival_ps / PS_PER_S,
         "finish_s": one.finish_ps / PS_PER_S}
        for talk, depth, one in made
    ]  # fmt: skip


def bounds(talks, running):
    """Return the bound from the records of each order, and the best end of all orders."""
    orders = [finished(talks, order, running) for order in permutations(range(len(talks)))]
    jobs = [{"program_id": at, "arrival_s": arrival_s + calls[0][0]}
            for at, (arrival_s, calls) in enumerate(talks)]  # fmt: skip
    prices = work_prices(PROFILE, pass_tokens=8_192, batch=running, mixed=False)
    found, prompts_s = [], 0.0
    for rows in orders:
        here = tables(rows, jobs)
        whole = replace(here.requests, compulsory_tokens=here.requests.input_tokens)
        prompts_s = float(least_work(whole, prices).prefill_s.sum())
        found.append(least_s(replace(here, requests=whole), prices))
    return found, prompts_s, min(max(row["finish_s"] for row in rows) for rows in orders)


CALL = st.tuples(st.floats(0, 2), st.integers(1, 4_000), st.integers(1, 60))
TALK = st.tuples(st.floats(0, 3), st.lists(CALL, min_size=1, max_size=3))


@examples(25)
@given(st.lists(TALK, min_size=1, max_size=4), st.integers(1, 3))
def test_no_order_of_conversations_is_faster(talks, running):
    found, prompts_s, best_s = bounds(talks, running)
    assert max(found) <= best_s
    # The order decides only which late calls pay for their prompts.
    assert max(found) - min(found) <= prompts_s + 1e-6


def test_the_best_of_all_orders_is_near_the_limit_where_users_think():
    calls = [(3.0, 500, 20), (3.0, 500, 20), (3.0, 500, 20)]
    (found, *_), _, best_s = bounds([(0.0, calls), (0.5, calls), (1.0, calls[:2])], 4)
    assert 0.97 * best_s <= found <= best_s


def test_a_think_time_that_is_too_long_is_caught():
    talks = [(0.0, [(0.0, 100, 20), (2.0, 100, 20)])]
    rows = finished(talks, (0,), 1)
    late = [{**row, "arrival_s": row["arrival_s"] + 0.1 * row["depth"]} for row in rows]
    prices = work_prices(PROFILE, pass_tokens=8_192, batch=1, mixed=False)
    assert least_s(tables(late), prices) > max(row["finish_s"] for row in rows)


FAST = ("d2lpm", "fair-finish", "fcfs", "vtc")


@pytest.mark.parametrize("scheduler", [*FAST, *slow(*sorted(PAIRS.keys() - FAST))])
def test_no_scheduler_is_faster_than_its_limit_call_by_call(scheduler):
    spec = {"workload": "chat", "dp": 2, "num_programs": 6, "scheduler": scheduler}
    result = run_checked(resolve(spec))
    assert result.summary["limit_ratio"]


def test_the_limit_call_by_call_is_tighter():
    found = tables(chain((0.0, 9.0, 1), (29.0, 36.0, 2)))
    work, given = least_work(found.requests, PRICES), facts(prices=PRICES)
    alone_s = alone_times(found.requests, found.programs, PRICES)
    assert least_makespan(found, given, work, alone_s).least_s == 7
    assert least_s(found, PRICES) == 27
