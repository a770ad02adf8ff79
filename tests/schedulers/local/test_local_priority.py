"""Test vLLM's and SGLang's priorities on hand-computed examples."""

import pytest

from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.priority import Priority
from fairbench.schedulers.local.sglang_priority import SGLangPriority
from fairbench_rivals.local.fairserve import FairServe
from tests.schedulers.local.local_server import Server, call


def numbers(requests):
    return [request.request_id for request in requests]


def test_vllm_serves_the_lowest_number_and_then_by_arrival():
    home = Server(Priority(Priority.Params()), slots=9)
    home.arrive(
        call(0, "a", priority=2, at_s=0.0),
        call(1, "a", priority=-1, at_s=2.0),
        call(2, "b", priority=-1, at_s=1.0),
        call(3, "b", at_s=3.0),
    )
    home.run_pass()
    assert numbers(home.admitted) == [2, 1, 3, 0]


def test_vllm_takes_memory_from_the_highest_number_and_the_latest():
    scheduler = Priority(Priority.Params(of={"b": 5}))
    home = Server(scheduler, slots=9)
    home.arrive(*(call(n, "ab"[n % 2], at_s=float(n), new=9) for n in range(4)))
    home.run_pass()
    assert numbers(scheduler.retraction_order(home, 0.0)) == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("scheduler", "param"),
    [
        (Priority, {"of": {"client-9": 1}}),
        (SGLangPriority, {"of": {"client-9": 1}}),
        (FairServe, {"applications": {"client-9": "chat"}}),
    ],
)
def test_settings_for_unknown_clients_are_refused(scheduler, param):
    built = scheduler(scheduler.Params(**param))
    where = rf"{built.name}\.{next(iter(param))}"
    with pytest.raises(UsageError, match=f"unknown client in {where} 'client-9'"):
        built.prepare(Setup(clients=("client-0", "client-1")))


def test_sglang_serves_the_highest_number_and_then_by_queue_position():
    for low_first, expected in ((False, [0, 2, 3, 1]), (True, [1, 3, 2, 0])):
        home = Server(SGLangPriority(SGLangPriority.Params(low_first=low_first)), slots=9)
        home.arrive(*(call(n, "a", priority=p) for n, p in enumerate([7, -1, 3, 0])))
        home.run_pass()
        assert numbers(home.admitted) == expected


def occupied(**params):
    """Return a full server on which the requests 0, 5 and 1 run, in order of arrival."""
    home = Server(SGLangPriority(SGLangPriority.Params(**params)), slots=3, tokens=300)
    for number, priority in enumerate([0, 5, 1]):
        home.arrive(call(number, "a", 50, new=50, priority=priority, at_s=float(number)))
    home.run_pass()
    assert len(home) == 3
    return home


@pytest.mark.parametrize(
    ("priority", "need", "expected"),
    [
        (10, 90, []),  # 10 - 0 is not above the threshold
        (11, 90, [0]),
        (12, 90, [0]),  # 1 could be preempted as well, but 0 is enough
        (12, 180, [0, 2]),
        (15, 290, []),  # 0 and 2 are not enough, and 10 - 5 is not above the threshold
        (16, 290, [0, 2, 1]),
    ],
)
def test_sglang_preempts_no_more_than_needed(priority, need, expected):
    home = occupied()
    home.arrive(call(9, "b", need - 10, new=10, priority=priority))
    home.run_pass()
    assert numbers(home.preempted) == expected
    assert (9 in numbers(home.admitted)) == bool(expected)


def test_sglang_preempts_no_request_if_disabled():
    home = occupied(preempt=False)
    home.arrive(call(9, "b", 10, priority=100))
    home.run_pass()
    assert (home.preempted, 9 in numbers(home.admitted)) == ([], False)
