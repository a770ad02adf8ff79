import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import ServiceBound
from fairbench.metrics import gap as search
from fairbench.metrics.gap import Gap, Inside, max_service_gap
from fairbench.metrics.records import REFUSED, UNFINISHED, Client, Requests, Service, Window
from fairbench.metrics.waiting import Backlog, merged, unqueued_share, waits
from tests.metrics.gap_pairwise import gaps, intersection
from tests.metrics.metrics_helpers import NAN, facts, log, requests
from tests.strategies import examples


def lists(intervals):
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def waiting(client, start, end, worker=0):
    return {"client": client, "worker": worker, "arrival_s": start, "admitted_s": end}


def test_a_request_waits_until_admitted_and_again_after_its_retraction():
    table = waits(
        requests(
            waiting(0, 1, 4) | {"retracted_s": 6, "readmitted_s": 9},
            waiting(1, 2, NAN) | {"status": UNFINISHED},
            waiting(2, 3, 5) | {"retracted_s": 7, "status": UNFINISHED},
            waiting(3, 3, 3),  # admitted immediately
            waiting(4, 3, NAN) | {"status": REFUSED},
            waiting(5, 3, NAN, worker=-1) | {"status": UNFINISHED},  # never dispatched
        ),
        horizon_s=20,
    )
    rows = zip(*(column.tolist() for column in table), strict=True)
    assert sorted(rows) == [(0, 0, 1, 4), (0, 0, 6, 9), (0, 1, 2, 20), (0, 2, 3, 5), (0, 2, 7, 20)]


def test_a_client_is_backlogged_up_to_the_end_of_its_interval():
    backlog = Backlog(np.array([0, 1]), np.array([0.0, 2.0]), np.array([2.0, 5.0]))
    times = np.array([-1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 5.5])
    assert backlog.depth(times).tolist() == [0, 1, 1, 2, 1, 1, 0]


def test_waits_are_joined_only_if_they_overlap():
    start, end = np.array([5.0, 1, 2, 9, 3]), np.array([8.0, 3, 5, 12, 4])
    # (1,3) and (2,5) overlap and include (3,4); at 5 the queue drains within a pass
    assert lists(merged(start, end)) == [(1, 5), (5, 8), (9, 12)]


@given(*[st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=6)] * 2)
def test_an_intersection_holds_the_instants_in_both(a, b):
    def table(pairs):
        start = np.array([p[0] for p in pairs], dtype=float)
        return merged(start, start + np.array([p[1] for p in pairs], dtype=float))

    def covers(intervals, at):
        return any(start < at < end for start, end in lists(intervals))

    one, two = table(a), table(b)
    both = intersection(one, two)
    for at in np.arange(0.25, 17, 0.5):
        assert covers(both, at) == (covers(one, at) and covers(two, at))
    assert all(start < end for start, end in lists(both))


@pytest.mark.parametrize(
    ("window", "expected"),
    # A client waits in [1, 8) and [10, 12).
    [((1, 8), 0), ((2, 4), 0), ((0, 4), 1 / 4), ((1, 9), 1 / 8), ((7, 12), 2 / 5), ((8, 10), 1)],
)
def test_the_unqueued_share_is_the_time_without_waiting_requests(window, expected):
    table = requests(waiting(0, 1, 5), waiting(1, 5, 8), waiting(0, 3, 4), waiting(1, 10, 12))
    assert unqueued_share(table, 20, Window(*window)) == pytest.approx(expected)
    assert np.isnan(unqueued_share(table, 20, Window(3, 3)))


def gap_of(table, served, known):
    backlog = Backlog.of_requests(table, known)
    return max_service_gap(backlog, served, known) if backlog.shared else None


BACKLOGGED = (waiting(0, 0, 10), waiting(1, 2, 8))  # both clients in [2, 8)


def test_the_gap_is_the_range_of_the_difference_inside_the_joint_backlog():
    served = log(
        {"client": 0, "start_s": 1, "end_s": 2, "extend_charged_tokens": 500, "output_tokens": 50},
        {"client": 0, "start_s": 2, "end_s": 3, "extend_charged_tokens": 10, "output_tokens": 1},
        {"client": 1, "start_s": 3, "end_s": 4, "extend_charged_tokens": 40, "output_tokens": 2},
        {"client": 0, "start_s": 7, "end_s": 8, "extend_charged_tokens": 3, "output_tokens": 4},
        {"client": 0, "start_s": 8, "end_s": 9, "extend_charged_tokens": 900},
    )
    # Steps that end at 2 or start at 8 are outside. W_0 - W_1 starts at 0 and becomes +10 at 2, +12
    # at 3, -28 at 3, -32 at 4, -29 at 7, -21 at 8. The range is 12 - (-32) = 44.
    gap = gap_of(requests(*BACKLOGGED), served, facts(horizon_s=20.0))
    assert gap == Gap(44, 0, 1, 2, 8)


def test_the_gap_of_a_client_view_bound_counts_full_inputs():
    served = log({"start_s": 3, "end_s": 4, "extend_charged_tokens": 5, "input_tokens": 70})
    bound = ServiceBound("client", 0, "")
    gap = gap_of(requests(*BACKLOGGED), served, facts(bound=bound))
    assert gap is not None
    assert gap.tokens == 70


def test_with_weights_the_gap_is_that_of_normalised_service():
    served = log(
        {"client": 0, "start_s": 3, "end_s": 4, "extend_charged_tokens": 60},
        {"client": 1, "start_s": 5, "end_s": 6, "extend_charged_tokens": 10},
    )
    known = facts(horizon_s=20.0)
    known = replace(known, clients=(Client("a", False, 3.0), Client("b", False, 0.5)))
    # 60 / 3 = 20 ahead, then 10 / 0.5 = 20 back
    assert gap_of(requests(*BACKLOGGED), served, known).tokens == 20


def test_recomputation_is_not_service():
    served = log({"start_s": 3, "end_s": 4, "recompute_tokens": 5})
    gap = gap_of(requests(*BACKLOGGED), served, facts())
    assert gap is not None
    assert gap.tokens == 0


def test_a_backlog_may_cut_a_stretch_of_steps():
    # Among ten steps of 1 s from 0 to 10, with 3 tokens each, those that end in (2, 8] count:
    # 6 * 3 * 2.
    served = log({"end_s": 10, "steps": 10, "output_tokens": 30})
    gap = gap_of(requests(*BACKLOGGED), served, facts())
    assert gap is not None
    assert gap.tokens == 36


def test_steps_of_two_workers_interleave():
    # Worker 0 gives client 0 five tokens at 2, 4, 6 and 8. Worker 1 gives client 1 five tokens at
    # 1, 3, 5 and 7. The difference is 0 at 0 and at 8, and varies by 10 (weighted) in between.
    served = log(
        {"client": 0, "worker": 0, "end_s": 8, "steps": 4, "output_tokens": 20},
        {"client": 1, "worker": 1, "start_s": -1, "end_s": 7, "steps": 4, "output_tokens": 20},
    )
    table = requests(*(waiting(c, 0, 9, worker=w) for c in (0, 1) for w in (0, 1)))
    gap = gap_of(table, served, facts(workers=2))
    assert gap is not None
    assert gap.tokens == 10


def test_without_a_joint_backlog_on_every_worker_there_is_no_gap():
    served = log({"start_s": 3, "end_s": 4, "extend_charged_tokens": 5})
    assert gap_of(requests(), served, facts()) is None
    assert gap_of(requests(*BACKLOGGED), served, facts(workers=2)) is None
    apart = requests(waiting(0, 0, 2), waiting(1, 2, 8))
    assert gap_of(apart, served, facts()) is None


def test_a_wait_at_only_some_workers_does_not_count():
    # Both clients wait at worker 0 from 0 to 10, and at worker 1 from 2 to 5. In (2, 5], client 0
    # gets 7 tokens (2 x 3 + 1) and client 1 gets 4. The 5,000 tokens at 6 s do not count, because
    # no client waits at worker 1; otherwise, the difference would reach 5,007 tokens.
    table = requests(*(waiting(c, *span, worker=w) for c in (0, 1) for w, span in SOMEWHERE))
    served = log(
        {"client": 0, "start_s": 2, "end_s": 3, "extend_charged_tokens": 1, "output_tokens": 3},
        {"client": 1, "start_s": 4, "end_s": 5, "extend_charged_tokens": 4},
        {"client": 0, "start_s": 6, "end_s": 7, "extend_charged_tokens": 5_000},
    )
    assert gap_of(table, served, facts(workers=2)) == Gap(7, 0, 1, 2, 5)


SOMEWHERE = ((0, (0, 10)), (1, (2, 5)))


# --- against an oracle that tries every pair of instants, one booking at a time


def bookings(row):
    """Return (time, order at that instant, tokens). Ends come before starts."""
    yield row["start_s"], 1, row["extend_charged_tokens"]
    steps, growth = row["steps"], row["step_growth_s"]
    length = (row["end_s"] - row["start_s"]) / steps - growth * (steps - 1) / 2
    now = row["start_s"]
    for step in range(steps):
        now = row["end_s"] if step == steps - 1 else now + length
        length += growth
        yield now, 0, 2 * row["output_tokens"] / steps


def oracle(queue, entries, clients, workers):
    events = sorted(
        (at, order, row["client"], tokens) for row in entries for at, order, tokens in bookings(row)
    )
    instants = sorted({e[0] for e in events} | {t for w in queue for t in waited(w)})

    def backlogged(client, start, end):
        inner = [t for t in instants if start < t < end]
        points = inner + [(a + b) / 2 for a, b in itertools.pairwise([start, *inner, end])]
        return all(
            any(
                w["client"] == client and w["worker"] == worker and waited(w)[0] < t < waited(w)[1]
                for w in queue
            )
            for worker in range(workers)
            for t in points
        )

    best = None
    for start, end in itertools.combinations(instants, 2):
        held = [c for c in range(clients) if backlogged(c, start, end)]
        inside = [e for e in events if (start, 1) <= e[:2] <= (end, 0)]
        for f, g in itertools.combinations(held, 2):
            difference, seen = 0.0, [0.0]
            for _, group in itertools.groupby(inside, key=lambda e: e[:2]):
                for _, _, client, tokens in group:
                    difference += tokens * ((client == f) - (client == g))
                seen.append(difference)
            best = max(best or 0.0, max(seen) - min(seen))
    return best


def waited(wait):
    return wait["arrival_s"], wait["admitted_s"]


@st.composite
def runs(draw):
    workers = draw(st.integers(1, 2))
    small = st.integers(1, 5)
    entries = []
    for worker in range(workers):
        now = draw(st.integers(0, 2))
        for _ in range(draw(st.integers(1, 3))):
            steps, growth = draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.5]))
            first = draw(st.integers(1, 2))
            end = now + steps * first + growth * steps * (steps - 1) / 2
            stretch = {
                "worker": worker,
                "start_s": float(now),
                "end_s": end,
                "steps": steps,
                "step_growth_s": growth,
            }
            entries += [
                stretch
                | {
                    "client": client,
                    "extend_charged_tokens": draw(small),
                    "output_tokens": steps * draw(small),
                }
                for client in sorted(draw(st.sets(st.integers(0, 2), min_size=1)))
            ]
            now = end
    queue = [
        waiting(client, start, start + draw(st.integers(2, 12)), worker)
        for worker in range(workers)
        for client in range(3)
        for start in draw(st.lists(st.integers(0, 6), min_size=1, max_size=2))
    ]
    return workers, queue, entries


@examples(150)
@given(runs(), st.sampled_from([0, 16]))
def test_the_gap_equals_that_of_an_oracle(run, few):
    workers, queue, entries = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "FEW", few)
        gap = gap_of(requests(*queue), log(*entries), facts(clients=3, workers=workers))
    expected = oracle(queue, entries, clients=3, workers=workers)
    assert (gap is None) == (expected is None)
    if gap is not None:
        assert gap.tokens == pytest.approx(expected)


def big_run(clients, per_client, stretches, steps, workers):
    """Return a run in which every client is backlogged most of the time."""
    rng = np.random.default_rng(0)
    arrival = rng.uniform(0, stretches, clients * per_client)
    count = len(arrival)
    wait = {
        "request_id": np.arange(count),
        "client": np.repeat(np.arange(clients), per_client),
        "arrival_s": arrival,
        "admitted_s": arrival + rng.exponential(20, count),
        "worker": np.arange(count) % workers,
    }
    zero = np.zeros(count)
    fields = Requests.__dataclass_fields__
    table = Requests.from_columns(dict.fromkeys(fields, zero) | {"retracted_s": zero * NAN} | wait)
    rows = clients * stretches
    start = np.repeat(np.arange(stretches), clients)
    entry = {
        "client": np.tile(np.arange(clients), stretches),
        "worker": start % workers,
        "start_s": start,
        "end_s": start + 1,
        "steps": np.full(rows, steps),
        "output_tokens": steps * rng.integers(0, 5, rows),
    }
    zero = np.zeros(rows)
    made = Service.from_columns(dict.fromkeys(Service.__dataclass_fields__, zero) | entry)
    return table, made


@st.composite
def schedules(draw):
    """Draw clients that join and leave, on workers whose batches change at any time."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    clients, workers = draw(st.integers(2, 12)), draw(st.integers(1, 3))
    stretches, waits = draw(st.integers(1, 80)), draw(st.integers(1, 150))
    busy = draw(st.sampled_from([0.2, 1.0]))  # fraction of the clients that take part in a stretch
    length = draw(st.sampled_from([3.0, 30.0, 200.0]))
    entries = []
    for worker in range(workers):
        end = rng.integers(0, 4)
        for _ in range(stretches):
            start = end + rng.integers(0, 2) * rng.integers(0, 4)
            end = start + rng.integers(1, 5)
            steps, charged = rng.integers(1, 6), rng.random() < 0.5
            row = {"worker": worker, "start_s": float(start), "end_s": float(end), "steps": steps}
            entries += [
                row
                | {
                    "client": client,
                    "extend_charged_tokens": rng.integers(0, 300) if charged else 0,
                    "input_tokens": rng.integers(0, 300),
                    "output_tokens": steps * rng.integers(0, 5),
                }
                for client in np.flatnonzero(rng.random(clients) < busy)
            ]
    queue = []
    for _ in range(waits):
        start = float(rng.integers(0, 3 * stretches + 1))
        until = start + float(np.ceil(rng.exponential(length)))
        queue.append(waiting(rng.integers(clients), start, until, rng.integers(workers)))
    weights = rng.choice(draw(st.sampled_from([[1.0], [1.0, 3.0, 0.7]])), clients)
    known = facts(clients=clients, workers=workers, horizon_s=500.0)
    bound = draw(st.sampled_from([None, ServiceBound("client", 0, "")]))
    own = (Client(f"c{i}", False, float(weight)) for i, weight in enumerate(weights))
    return requests(*queue), log(*entries), replace(known, clients=tuple(own), bound=bound)


@examples(150)
@given(schedules(), st.sampled_from([1, 20, 2**20]), st.sampled_from([1, 20, 2**20]), st.booleans())
def test_the_gap_is_the_largest_of_all_pairs(schedule, at_once, few, every_pair):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "FEW", 16 if every_pair else 0)
        patch.setattr(search, "BOOKINGS_AT_ONCE", at_once)
        patch.setattr(search, "CELLS_AT_ONCE", few)
        patch.setattr(search, "EXAMINED_AT_ONCE", few)
        patch.setattr(search, "MOST_LISTED", few)
        gap = gap_of(*schedule)
    every = gaps(*schedule)
    assert (gap is None) == (not every)
    if gap is not None:  # sums differ in the last bits, because weights are not whole numbers
        assert gap.tokens == pytest.approx(max(one.tokens for one in every), rel=1e-12)
        (of_pair,) = [one for one in every if one[1:3] == gap[1:3]]
        assert of_pair.tokens == pytest.approx(gap.tokens, rel=1e-12)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_few_pairs_decide_a_fair_run_of_many_clients(workers, monkeypatch):
    table, made = big_run(clients=60, per_client=100, stretches=400, steps=4, workers=workers)
    looks = []
    ranges = Inside.ranges

    def counted(inside, joint, above):
        looks.extend(zip(joint.first.tolist(), joint.second.tolist(), strict=True))
        return ranges(inside, joint, above)

    monkeypatch.setattr(Inside, "ranges", counted)
    known = facts(clients=60, horizon_s=500.0, workers=workers)
    gap = gap_of(table, made, known)
    every = gaps(table, made, known)
    assert gap in every
    assert gap.tokens == max(one.tokens for one in every)
    assert len(every) > 1700
    assert len(looks) < 60
