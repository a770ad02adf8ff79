"""Test the textbook's scheduler in its replica against the numbers that the book prints."""

from dataclasses import replace

import pytest

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Running
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.textbook.claims import judge_listing, judge_textbook, played
from fairbench_studies.textbook.edf import TextbookEDF, victims
from fairbench_studies.textbook.replica import InOrder, Replica, printed_load


def test_the_replica_gives_the_printed_numbers():
    edf = TextbookEDF(TextbookEDF.Params(step_s=1.0))
    got = Replica(edf, printed_load()).run()
    assert (got.finished, got.on_time, got.short_on_time, got.steps) == (80, 65, 1.0, 948)


def test_the_replica_gives_the_printed_numbers_in_order_of_arrival():
    got = Replica(InOrder(), printed_load()).run()
    assert (got.finished, got.on_time, round(got.short_on_time, 2), got.steps) == (
        *(80, 34), 0.46, 814
    )  # fmt: skip


def test_the_textbook_scheduler_exceeds_its_budget_and_thrashes():
    edf = Replica(TextbookEDF(TextbookEDF.Params(step_s=1.0)), printed_load()).run()
    fcfs = Replica(InOrder(), printed_load()).run()
    assert (fcfs.peak_blocks, fcfs.steps_over_budget) == (162, 408)
    assert (edf.peak_blocks, edf.steps_over_budget) == (150, 80)
    assert (edf.preempted, edf.tokens_lost) == (768, 1011)


def outcomes_of(outcomes):
    return [part.outcome for part in judge_listing(outcomes)]


def test_the_claim_is_judged_by_every_printed_digit():
    (judged,) = judge_textbook()
    assert judged.claim.number == 35
    *_, slo = judged.parts["here"]
    assert {part.outcome for part in judged.parts["here"]} == {Outcome.HOLDS}
    assert "65 of 80 on time, 100% of the short ones, 948 steps" in slo.ours
    outcomes = played()
    one_step_off = outcomes | {"slo": replace(outcomes["slo"], steps=949)}
    assert outcomes_of(one_step_off) == [*[Outcome.HOLDS] * 3, Outcome.OFF]
    swapped = {"fcfs": outcomes["slo"], "slo": outcomes["fcfs"]}
    off = [Outcome.OFF] * 2
    assert outcomes_of(swapped) == [Outcome.HOLDS, Outcome.REVERSED, *off]


def running(number, prompt, made, answer):
    request = Request(number, "a", number, 0, (Segment("p", prompt),), prompt, answer)
    return Running(request, made, prompt + made, 0)


@pytest.mark.parametrize(
    ("free", "expected"), [(48, []), (47, [2]), (0, [2]), (-16, [2, 0]), (-1000, [2, 0])]
)
def test_long_requests_make_room_and_nearly_finished_ones_do_not(free, expected):
    # 150, 100 and 200 tokens remain, and 2, 10 and 3 blocks are held. Three blocks are needed.
    batch = [running(0, 20, 10, 160), running(1, 100, 60, 160), running(2, 40, 0, 200)]
    waiting = Request(9, "a", 9, 0, (Segment("q", 40),), 40, 5)
    assert [one.request_id for one in victims(waiting, batch, free)] == expected
