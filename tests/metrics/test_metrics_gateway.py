"""Test when, and for which workers, clients wait whose requests a gateway queues."""

from fairbench.metrics.contention import waiting_share
from fairbench.metrics.records import REFUSED, UNFINISHED, Requests, Window
from fairbench.metrics.waiting import Backlog, unqueued_share
from tests.metrics.metrics_helpers import NAN, backlog_of, facts, requests


def held(routed_s, *rows):
    """Return rows of a table, with the time at which each request went to its worker."""
    columns = requests(*rows).to_columns() | {"routed_s": routed_s}
    return Requests.from_columns(columns)


def pairs(intervals):
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


SENT = {"worker": 1, "arrival_s": 1.0, "admitted_s": 7.0, "finish_s": 9.0}


def test_a_request_waits_for_every_worker_until_it_is_routed_to_one():
    table = held([4.0, 2.0], SENT, SENT | {"worker": 0, "arrival_s": 2.0, "admitted_s": 5.0})
    # At worker 0 the client waits until 5 s, at worker 1 until 7 s. At both it waits from 1 s on,
    # when only the first request waits.
    assert pairs(backlog_of(Backlog.of_requests(table, facts(workers=2)), 0)) == [(1.0, 5.0)]


def test_without_the_column_a_request_waits_for_its_worker_only():
    assert pairs(backlog_of(Backlog.of_requests(requests(SENT), facts(workers=2)), 0)) == []


def test_requests_queued_at_the_end_wait_until_then():
    row = {"worker": -1, "arrival_s": 3.0, "status": UNFINISHED}
    made = facts(workers=2, horizon_s=8.0)
    assert pairs(backlog_of(Backlog.of_requests(held([NAN], row), made), 0)) == [(3.0, 8.0)]
    assert waiting_share(held([NAN], row), made, Window(0, 8)).tolist() == [1, 0]


def test_requests_refused_at_the_gateway_do_not_wait():
    row = {"worker": -1, "arrival_s": 3.0, "status": REFUSED}
    assert pairs(backlog_of(Backlog.of_requests(held([NAN], row), facts()), 0)) == []


def test_a_wait_counts_once_wherever_the_request_waited():
    # The client has a request from 1 to 9 s, which waits until 7 s.
    assert waiting_share(held([4.0], SENT), facts(), Window(0, 10)).tolist() == [0.75, 0]
    assert unqueued_share(held([4.0], SENT), 10.0, Window(0, 10)) == 0.4
