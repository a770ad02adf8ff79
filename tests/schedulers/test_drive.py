"""Test the shared loop of an admission pass: candidates, their order, and its end."""

import pytest

from fairbench.core import Request
from fairbench.schedulers.drive import Preempt, Tried, drive


def request(number):
    return Request(number, "a", 0, 0, (), 1, 1)


REQUESTS = [request(number) for number in range(4)]


def selection(heard, candidates=REQUESTS):
    """Yield the candidates in turn. Record the answers and the closing."""
    try:
        for candidate in candidates:
            heard.append((yield candidate))
        heard.append("out of candidates")
    finally:
        heard.append("closed")


@pytest.mark.parametrize(
    ("verdicts", "heard"),
    [
        ("ANAN", [True, False, True, False, "out of candidates", "closed"]),
        ("AL", [True, "closed"]),  # admitted, but the scheduler is not asked for another request
        ("NO", [False, "closed"]),
        ("O", ["closed"]),
    ],
)
def test_a_scheduler_receives_events_in_order(verdicts, heard):
    meaning = {"A": Tried.ADMITTED, "N": Tried.NO_ROOM, "L": Tried.LAST, "O": Tried.OVER}
    told, tried = [], []

    def try_admit(candidate):
        tried.append(candidate)
        return meaning[verdicts[len(tried) - 1]]

    drive(selection(told), try_admit)
    assert told == heard
    assert tried == REQUESTS[: len(verdicts)]


@pytest.mark.parametrize("done", [True, False])
def test_a_preemption_is_answered_and_is_not_an_admission(done):
    told, preempted = [], []

    def preempt(victim):
        preempted.append(victim)
        return done

    drive(selection(told, [Preempt(REQUESTS[0]), REQUESTS[1]]), lambda _: Tried.ADMITTED, preempt)
    assert told == [done, True, "out of candidates", "closed"]
    assert preempted == [Preempt(REQUESTS[0])]


def test_a_host_without_preemption_refuses_to_preempt():
    told = []
    drive(selection(told, [Preempt(REQUESTS[0])]), lambda _: Tried.ADMITTED)
    assert told == [False, "out of candidates", "closed"]


def test_the_scheduler_is_closed_when_its_host_fails():
    told = []

    def fail(_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        drive(selection(told), fail)
    assert told == ["closed"]
