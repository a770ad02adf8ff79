"""The textbook's scheduler in the textbook's replica gives the numbers that it prints."""

import random
from dataclasses import dataclass

import pytest

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Preempt, Running
from fairbench.schedulers.local.edf_textbook import BLOCK_TOKENS, TextbookEDF, blocks, victims

BUDGET, BATCH = 120, 24


class InOrder:
    """The listing's FCFS: in order of arrival, passing over who does not fit."""

    def select(self, view, now_s):
        for request in sorted(view.queue_order(), key=lambda request: request.arrival_s):
            if not (yield request):
                continue


def printed_load(seed=7, count=80, horizon=200):
    """Its requests: seven in ten short and urgent, the others long with much slack."""
    rng, made = random.Random(seed), []
    for number in range(count):
        arrival = rng.randint(0, horizon)
        short = rng.random() < 0.7
        ranges = [(8, 40), (8, 32), (30, 60)] if short else [(64, 200), (160, 320), (220, 360)]
        prompt, answer, slack = (rng.randint(*one) for one in ranges)
        made.append(
            Request(number, "short" if short else "long", number, 0, (Segment("p", prompt),),
                    prompt, answer, float(arrival), float(arrival + slack))
        )  # fmt: skip
    return sorted(made, key=lambda request: request.arrival_s)


@dataclass
class Outcome:
    """What the listing prints, and what it does not look at."""

    finished: int
    on_time: int
    short_on_time: float
    steps: int
    peak_blocks: int
    steps_over_budget: int
    preempted: int
    tokens_lost: int


class Replica:
    """The printed loop: admission against the blocks of prompts, then a token for everyone.

    It is its own waiting view and running view.
    """

    def __init__(self, scheduler, requests):
        self.scheduler, self.step = scheduler, 0
        self.waiting = list(requests)
        self.produced = {}

    def __iter__(self):
        for request, made in self.produced.items():
            yield Running(request, made, request.input_tokens + made, 0)

    @property
    def running(self):
        return self

    @property
    def free_tokens(self):
        return (BUDGET - self.used()) * BLOCK_TOKENS

    def used(self):
        return sum(blocks(one.held_tokens) for one in self)

    def queue_order(self):
        return [request for request in self.waiting if request.arrival_s <= self.step]

    def admit(self, request):
        fits = len(self.produced) < BATCH and self.used() + blocks(request.input_tokens) <= BUDGET
        if fits:
            self.waiting.remove(request)
            self.produced[request] = 0
        return fits

    def run(self):
        everyone, done, lost, peak, over = list(self.waiting), {}, [], 0, 0
        while (self.waiting or self.produced) and self.step < 1400:
            selection, answer = self.scheduler.select(self, float(self.step)), None
            while True:
                try:
                    asked = selection.send(answer)
                except StopIteration:
                    break
                if isinstance(asked, Preempt):
                    lost.append(self.produced.pop(asked.request))
                    self.waiting.append(asked.request)
                    answer = True
                else:
                    answer = self.admit(asked)
            for request in list(self.produced):
                self.produced[request] += 1
            for request, made in list(self.produced.items()):
                if made >= request.max_new_tokens:
                    done[request] = self.step
                    del self.produced[request]
            peak, over = max(peak, self.used()), over + (self.used() > BUDGET)
            self.step += 1
        on_time = [request for request, step in done.items() if step <= request.deadline_s]
        short = [request for request in everyone if request.client == "short"]
        part = sum(request.client == "short" for request in on_time) / len(short)
        return Outcome(len(done), len(on_time), part, self.step, peak, over, len(lost), sum(lost))


def test_its_printed_numbers():
    edf = TextbookEDF(TextbookEDF.Params(step_s=1.0))
    got = Replica(edf, printed_load()).run()
    assert (got.finished, got.on_time, got.short_on_time, got.steps) == (80, 65, 1.0, 948)


def test_its_printed_numbers_in_order_of_arrival():
    got = Replica(InOrder(), printed_load()).run()
    assert (got.finished, got.on_time, round(got.short_on_time, 2), got.steps) == (
        *(80, 34), 0.46, 814
    )  # fmt: skip


def test_it_breaks_its_own_budget_and_thrashes():
    edf = Replica(TextbookEDF(TextbookEDF.Params(step_s=1.0)), printed_load()).run()
    fcfs = Replica(InOrder(), printed_load()).run()
    assert (fcfs.peak_blocks, fcfs.steps_over_budget) == (162, 408)
    assert (edf.peak_blocks, edf.steps_over_budget) == (150, 80)
    assert (edf.preempted, edf.tokens_lost) == (768, 1011)


def running(number, prompt, made, answer):
    request = Request(number, "a", number, 0, (Segment("p", prompt),), prompt, answer)
    return Running(request, made, prompt + made, 0)


@pytest.mark.parametrize(
    ("free", "expected"),
    [(48, []), (47, [2]), (0, [2]), (-16, [2, 0]), (-1000, [2, 0])],
)
def test_the_longest_to_go_make_room_and_those_near_their_end_none(free, expected):
    # to go: 150, 100 and 200 tokens; held: 2, 10 and 3 blocks; three blocks are needed
    batch = [running(0, 20, 10, 160), running(1, 100, 60, 160), running(2, 40, 0, 200)]
    waiting = Request(9, "a", 9, 0, (Segment("q", 40),), 40, 5)
    assert [one.request_id for one in victims(waiting, batch, free)] == expected
