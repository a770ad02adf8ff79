"""Test classes of priority, each with its own scheduler, on hand-computed queues."""

import pytest

from fairbench.core import Request
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.views import ListView, NothingRunning, Running
from fairbench_load.by_class import MAX_CLASSES, ByClass, ClassBatch, unfit_for_classes


class Queue:
    """A host with a queue, in which each request takes one of ``room`` slots."""

    def __init__(self, local, settings=None, *, low_first=False):
        self.scheduler = ByClass(lambda: build_local(local, settings or {}), low_first=low_first)
        self.scheduler.prepare(self.scheduler.setup)
        self.view = ListView([], lambda request: 0)
        self.number = 0

    def arrive(self, client, priority, tokens=10):
        self.number += 1
        request = Request(self.number, client, 0, 0, (), tokens, 5, priority=priority)
        self.scheduler.on_arrival(request, self.view, 0.0)
        self.view.enter(request)
        return request

    def serve(self, room, fits=lambda request: True):
        """Return the numbers of the requests that a pass admits."""
        admitted = []

        def attempt(request):
            if len(admitted) == room or not fits(request):
                return Tried.NO_ROOM
            admitted.append(request)
            self.view.leave(request)
            self.scheduler.on_admitted(request, request.input_tokens, recompute=False)
            return Tried.ADMITTED

        drive(self.scheduler.select(self.view, 0.0), attempt)
        return [request.request_id for request in admitted]


@pytest.mark.parametrize(("low_first", "order"), [(False, [3, 2, 4, 1]), (True, [1, 2, 4, 3])])
def test_a_class_waits_for_the_classes_before_it(low_first, order):
    queue = Queue("fcfs", low_first=low_first)
    for priority in (-1, 0, 7, 0):
        queue.arrive("a", priority)
    assert queue.serve(9) == order


def test_clients_share_inside_a_class_whatever_they_had_in_another():
    queue = Queue("vtc")
    for _ in range(4):
        queue.arrive("a", 9)
    assert queue.serve(9) == [1, 2, 3, 4]  # the higher class has 40 tokens of a
    for client in "aabb":
        queue.arrive(client, 0)
    assert queue.serve(9) == [5, 7, 6, 8]  # in turn, because the class starts with equal counters


def test_outputs_are_charged_in_the_class_of_their_request():
    queue = Queue("vtc")
    high = queue.arrive("a", 9)
    for client in "ab":
        queue.arrive(client, 0)
    assert queue.serve(1) == [1]
    queue.scheduler.on_tokens("a", 100)
    queue.scheduler.on_request_tokens(high, 100)
    assert queue.serve(9) == [2, 3]
    assert queue.scheduler.balances() == {"a": 10 + 2 * 100 + 10, "b": 10}


def test_a_lower_class_is_not_tried_if_a_higher_one_found_no_room():
    queue = Queue("fcfs")
    queue.arrive("a", 9, tokens=100)
    queue.arrive("b", 0)
    assert queue.serve(9, fits=lambda request: request.input_tokens < 50) == []
    assert queue.serve(9) == [1, 2]


def test_a_request_that_is_aborted_while_it_waits_leaves_its_class():
    queue = Queue("dlpm")
    gone, kept = queue.arrive("a", 3), queue.arrive("a", 3)
    queue.view.leave(gone)
    queue.scheduler.on_finish(gone)
    assert queue.serve(9) == [kept.request_id]


def test_classes_without_requests_are_forgotten_beyond_a_limit():
    queue = Queue("vtc")
    for priority in range(3 * MAX_CLASSES):
        request = queue.arrive("a", priority)
        queue.serve(1)
        queue.scheduler.on_finish(request)
    assert len(queue.scheduler._classes) <= MAX_CLASSES
    assert not queue.scheduler._unfinished


@pytest.mark.parametrize(
    ("low_first", "order"), [(True, [5, 4, 2, 1, 3]), (False, [2, 1, 3, 5, 4])]
)
@pytest.mark.parametrize("local", ["vtc", "dlpm"])
def test_memory_is_taken_from_the_last_class_and_there_from_the_client_ahead(
    local, low_first, order
):
    queue = Queue(local, {f"{local}.preempt": "fair"}, low_first=low_first)
    requests = [queue.arrive(*who) for who in (("a", 0), ("a", 0), ("b", 0), ("c", 5), ("c", 5))]
    queue.serve(9)
    batch = ClassBatch(NothingRunning(), [Running(one, 0, 10, 0) for one in requests])
    lost = queue.scheduler.retraction_order(batch, 0.0)
    assert [request.request_id for request in lost] == order


@pytest.mark.parametrize(
    ("local", "why"),
    [("edf", "preempts"), ("sglang-priority", "preempts"), ("rpm", "refuses requests")],
)
def test_schedulers_with_an_order_of_their_own_do_not_run_by_class(local, why):
    assert why in unfit_for_classes(build_local(local, {}))
    assert all(unfit_for_classes(build_local(fit, {})) is None for fit in ("vtc", "dlpm", "lpm"))
