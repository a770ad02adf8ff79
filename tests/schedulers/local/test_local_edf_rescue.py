"""Test which request's memory EDF takes, and when: by hand-computed values, and that none loses
memory twice in vain.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Preempt, Running, Setup
from fairbench.schedulers.local.edf import EDF
from fairbench.schedulers.parts.slack import Slack, Victims
from tests.schedulers.local.local_server import Server
from tests.strategies import examples


class Costs:
    """Costs: a prefill takes 1 s and 0.01 s per token, a step 1 s."""

    def prefill_s(self, cached_tokens, new_tokens):
        return 1 + new_tokens / 100

    def decode_step_s(self, requests, context_tokens):
        return 1.0


def edf(swap_token_s=None, **params):
    scheduler = EDF(EDF.Params(**{"rescue_s": 2.0, "progress": 3} | params))
    scheduler.prepare(Setup(costs=Costs(), swap_token_s=swap_token_s))
    return scheduler


def request(number, tokens=10, new=10, end=None, first=None, at_s=0.0):
    prompt = (Segment(f"p{number}", tokens),)
    return Request(number, "a", number, 0, prompt, tokens, new, at_s, end, first_token_by_s=first)


def home_with(running, scheduler=None, slots=9, tokens=100):
    home = Server(scheduler or edf(), slots=slots, tokens=tokens)
    home.arrive(*running)
    home.run_pass()
    assert len(home) == len(running)
    return home


def test_edf_waits_for_room_as_long_as_possible_and_then_takes_memory():
    home = home_with([request(0, tokens=50, new=50, end=500.0)])
    urgent = request(1, tokens=20, new=10, first=10.0, at_s=1.0)
    home.step()
    home.arrive(urgent)
    # Its prefill takes 1.2 s, so it has to begin at 8.8 s, and is rescued from 6.8 s on.
    for now in range(1, 7):
        home.run_pass()
        assert home.preempted == [], now
        home.step()
    home.run_pass()
    assert [one.request_id for one in home.preempted] == [0]
    assert urgent in home.produced


@pytest.mark.parametrize(
    ("urgent", "why"),
    [
        (request(1, tokens=20, first=0.5), "late already"),
        (request(1, tokens=20, first=50.0), "time enough"),
        (request(1, tokens=200, first=4.0), "too large for all of the memory"),
    ],
)
def test_a_request_that_preemption_cannot_help_takes_nothing(urgent, why):
    home = home_with([request(0, tokens=50, new=50, end=500.0)])
    home.arrive(urgent)
    home.run_pass()
    assert home.preempted == [], why


@pytest.mark.parametrize(
    ("ends", "victims"),
    [
        ((300.0, 500.0, 400.0), [1]),  # most time to spare
        ((300.0, 20.0, 400.0), [1]),  # late in any case: 40 tokens to go
        ((44.3, 44.1, 44.0), [0]),  # 22.1 s for the urgent request, 1.1 s to return, 21 s to go
        ((44.0, 43.0, 44.1), []),  # this request would make all others late
    ],
)
def test_the_victim_has_time_to_spare(ends, victims):
    home = home_with([request(i, new=22, end=end) for i, end in enumerate(ends)])
    urgent = request(9, tokens=10, new=22, first=3.0)
    home.arrive(urgent)
    home.run_pass()
    assert [one.request_id for one in home.preempted] == victims
    assert (urgent in home.produced) == bool(victims)


@pytest.mark.parametrize(
    ("swap_token_s", "preempt", "swaps"),
    [
        (None, "quicker", False),
        (0.001, "quicker", True),
        (0.1, "quicker", False),  # 5 s in each direction against 1.5 s
        (0.1, "swap", True),
        (0.001, "recompute", False),
    ],
)
def test_edf_swaps_if_that_is_quicker(swap_token_s, preempt, swaps):
    scheduler = edf(swap_token_s, preempt=preempt)
    one = Running(request(0), 1, 50, 9)
    wishes = scheduler._victims.free_memory(one)
    assert next(wishes) == Preempt(one.request, swaps)
    if swaps:  # the host has no room for it
        assert wishes.send(False) == Preempt(one.request, False)


def test_the_pace_of_a_preempted_request_counts_from_its_first_token():
    slack = Slack(30.0)
    slack.prepare(Setup(costs=Costs()))
    victims = Victims(
        slack, swaps=False, always_swaps=False, rescue_s=2.0, aging_s=60.0, progress=0
    )
    begun, fresh = (
        replace(request(number, tokens=100, new=11, first=9.0), token_every_s=2.0)
        for number in range(2)
    )
    for one, produced in ((begun, 4), (fresh, 0)):
        slack.track_request(one)
        slack.note_admission(one, 100, 0.0)
        slack.states[one].produced = produced
        victims.note_retraction(one)
        slack.note_admission(one, 100, 50.0)
    assert slack.due_s(begun) == 2 + 10 * 2  # the first token came at 2 s
    slack.states[fresh].produced = 1
    assert slack.due_s(fresh) == 52 + 10 * 2  # the first token comes only now


def test_an_aged_request_keeps_its_memory():
    home = home_with([request(0, tokens=50, new=90, end=500.0)], edf(aging_s=5.0), tokens=150)
    home.run(6)
    home.arrive(request(1, tokens=20, new=10, first=8.0, at_s=6.0))
    home.run(2)
    assert home.preempted == []


arrivals = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(2, 40)), max_size=3),
    max_size=25,
)


@given(arrivals, st.integers(0, 4))
@examples(60)
def test_no_request_loses_its_memory_twice_before_progress(steps, progress):
    home = Server(edf(progress=progress, rescue_s=100.0), slots=3, tokens=120)
    lost, seen, number = {}, 0, 0
    for batch in steps:
        home.step()
        for tokens, new, within in batch:
            due_s = home.now_s + within
            one = request(number, tokens, new, at_s=home.now_s)
            end = {"deadline_s": due_s} if number % 2 else {"first_token_by_s": due_s}
            home.arrive(replace(one, **end))
            number += 1
        home.run_pass()
        for victim in home.preempted[seen:]:
            kept = home.kept[victim]
            assert kept - lost.get(victim, -progress) >= progress
            lost[victim] = kept
        seen = len(home.preempted)
    home.run(400)
    assert len(home.finished) == number
