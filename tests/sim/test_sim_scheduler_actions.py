"""Test what a scheduler can see and do beyond ordering a queue, in the simulated engine."""

from random import Random

import pytest

from fairbench.core import PS_PER_S, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.sequence import FINISHED
from fairbench.hardware.engines import ClusterParams
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.base import Preempt
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.front import eviction_reports
from tests.sim.sim_helpers import PLAIN, US, Home


class Policy(FCFS):
    """FCFS, for tests that change one method."""

    def __init__(self):
        super().__init__(FCFS.Params())
        self.heard = []

    def on_retract(self, request, view, now_s):
        self.heard.append(("retracted", request.request_id, round(now_s * 1e6)))


class Urgent(Policy):
    """A scheduler that gives priority requests the memory of a request without priority."""

    preempts = True

    def select(self, view, now_s):
        for request in sorted(view.queue_order(), key=lambda request: -request.priority):
            if not request.priority and any(one.request.priority for one in view.running):
                return
            if (yield request):
                continue
            victims = [one.request for one in view.running if one.request.priority == 0]
            if not request.priority or not victims:
                return
            self.heard.append(("preempts", victims[0].request_id, (yield Preempt(victims[0]))))
            yield request


def with_priority(home, parts, output, at_ps):
    """Return a request of priority 1."""
    sequence = home.send(parts, output, at_ps=at_ps, client="y")
    object.__setattr__(sequence.request, "priority", 1)
    return sequence


def test_a_preempted_request_waits_again_and_keeps_its_outputs():
    """In a pool of 100, 40 + 40 runs when a request of 50 + 10 with priority arrives at 20 ms."""
    policy = Urgent()
    home = Home(policy, pool=100, full_reservation=True)
    first = home.send(40, 40)
    urgent = with_priority(home, 50, 10, at_ps=20_000 * US)
    home.run()
    assert [kind for kind, *_ in policy.heard] == ["preempts", "retracted"]
    assert policy.heard[0] == ("preempts", 0, True)
    assert (first.status, urgent.status) == (FINISHED, FINISHED)
    assert urgent.finish_ps < first.finish_ps
    assert (first.retractions, urgent.retractions) == (1, 0)
    assert (first.produced, urgent.produced) == (40, 10)
    # Its prompt and the tokens that it had produced are computed again, and no others.
    kept = first.recompute_tokens + first.filled - first.total
    assert 0 < first.recompute_tokens <= 40 + 40
    assert kept >= 0


@pytest.mark.parametrize("limit", [{"pool": 110}, {"pool": 1000, "max_running_requests": 1}])
def test_an_arrival_may_preempt_at_the_next_step_although_the_batch_is_full(limit):
    """A waiting request that does not fit has closed the batch. Decode steps take 1.01 ms."""
    policy = Urgent()
    home = Home(policy, full_reservation=True, **limit)
    first = home.send(40, 60)
    second = home.send(40, 60, at_ps=5_000 * US)
    urgent = with_priority(home, 50, 10, at_ps=20_000 * US)
    home.run()
    assert second.admitted_ps >= urgent.finish_ps
    assert 20_000 * US < urgent.admitted_ps <= 22_100 * US
    assert [kind for kind, *_ in policy.heard] == ["preempts", "retracted"]
    assert all(one.status == FINISHED for one in home.sent)
    assert first.retractions == 1


def test_preemption_needs_a_running_request():
    class Eager(Policy):
        preempts = True

        def select(self, view, now_s):
            for request in view.queue_order():
                self.heard.append((yield Preempt(request)))
                yield request

    policy = Eager()
    home = Home(policy)
    home.send(10, 3)
    home.run()
    assert policy.heard == [False]


def test_preempting_all_and_admitting_none_is_not_a_deadlock():
    class Fickle(Policy):
        """A scheduler that preempts every request once, and admits none in that pass."""

        preempts = True

        def select(self, view, now_s):
            if len(view.running) and not self.heard:
                for one in list(view.running):
                    yield Preempt(one.request)
                return
            yield from super().select(view, now_s)

    home = Home(Fickle())
    sent = [home.send(10, 50), home.send(10, 50, at_ps=3_000 * US)]
    home.run()
    assert [one.status for one in sent] == [FINISHED, FINISHED]
    assert sent[0].retractions == 1


def test_the_running_batch_is_visible():
    class Looking(Policy):
        def select(self, view, now_s):
            seen = [(one.request.request_id, one.output_tokens) for one in view.running]
            self.heard.append((seen, view.running.load("x"), view.running.free_tokens))
            yield from super().select(view, now_s)

    policy = Looking()
    home = Home(policy, pool=1000)
    home.send(100, 30)
    home.send(50, 30, client="y", at_ps=20_000 * US)
    home.run()
    (nothing, none, free), (seen, load, later) = policy.heard
    assert (nothing, none.requests, free) == ([], 0, 1000)
    [(number, produced)] = seen
    assert number == 0
    # 2 ms of prefill, then steps of 1.01 ms: 1 + the number of steps in 18 ms, including the
    # current step
    assert produced == home.sent[0].produced - 30 + produced == load.decode_steps
    assert (load.requests, load.held_tokens) == (1, 100 + produced)
    assert load.reserved_tokens == 30 - produced
    assert later == 1000 - (100 + produced - 1)  # the last token has no KV yet


@pytest.mark.parametrize("backwards", [False, True])
def test_retraction_follows_the_policy_if_it_has_an_order(backwards):
    class Ordered(Policy):
        def retraction_order(self, running, now_s):
            requests = [one.request for one in running]
            return requests[::-1] if backwards else requests

    policy = Ordered()
    home = Home(policy, pool=130, schedule_conservativeness=0.01)
    for _ in range(3):
        home.send(30, 25)
    home.run()
    assert all(one.status == FINISHED for one in home.sent)
    first_victim = policy.heard[0][1]
    assert first_victim == (2 if backwards else 0)


class TestRoomLeftOnPurpose:
    class Reserved(Policy):
        """A scheduler that lets client y run only from 50 ms on."""

        work_conserving = False

        def select(self, view, now_s):
            for request in view.queue_order():
                if request.client == "y" and now_s < 0.05:
                    continue
                if not (yield request):
                    return

        def wake_s(self, view, now_s):
            return 0.05 if now_s < 0.05 else None

    def test_an_idle_worker_asks_again_at_the_given_time(self):
        home = Home(self.Reserved())
        held, other = home.send(10, 3, client="y"), home.send(10, 3, at_ps=5_000 * US)
        home.run()
        assert other.admitted_ps == 5_000 * US
        assert held.admitted_ps == 50_000 * US
        assert held.status == other.status == FINISHED

    def test_a_later_request_may_move_the_time_forward(self):
        due_s = {"x": 0.08, "y": 0.05}

        class Timed(self.Reserved):
            def select(self, view, now_s):
                for request in view.queue_order():
                    if now_s >= due_s[request.client] and not (yield request):
                        return

            def wake_s(self, view, now_s):
                return min(due_s[client] for client in view.clients())

        home = Home(Timed())
        late, early = home.send(10, 3), home.send(10, 3, at_ps=5_000 * US, client="y")
        home.run()
        assert early.admitted_ps == 50_000 * US
        assert late.admitted_ps == 80_000 * US

    def test_a_busy_worker_asks_after_every_step(self):
        home = Home(self.Reserved())
        held = home.send(10, 3, client="y", at_ps=1)
        home.send(10, 100)
        home.run()
        assert 50_000 * US <= held.admitted_ps < 53_000 * US

    def test_without_a_wake_up_time_an_idle_worker_waits_for_an_event(self):
        class Silent(self.Reserved):
            def wake_s(self, view, now_s):
                return None

        home = Home(Silent())
        held = home.send(10, 3, client="y")
        home.run()
        assert held.admitted_ps == -1
        home.send(10, 3, at_ps=60_000 * US)
        home.run()
        assert held.status == FINISHED


def test_costs_are_those_of_the_profile():
    costs = ProfileCosts(PLAIN)
    assert costs.prefill_s(50, 100) == pytest.approx(0.002)  # 1 ms + 10 us per token
    assert costs.decode_step_s(4, 1000) == PLAIN.decode_ps(4, 1000) / PS_PER_S


def test_a_scheduler_that_replaced_another_gets_retractions():
    """An emulated worker gets a new scheduler when its cache is flushed."""
    home, fresh = Home(Policy(), pool=130, schedule_conservativeness=0.01), Policy()
    home.worker.scheduler = fresh
    for _ in range(3):
        home.send(30, 25)
    home.run()
    assert fresh.heard
    assert not home.scheduler.heard


def test_the_batch_may_be_iterated_while_its_requests_are_preempted():
    class Sweep(Policy):
        preempts = True

        def select(self, view, now_s):
            if len(view.running) == 3 and not self.heard:
                for one in view.running:
                    self.heard.append((yield Preempt(one.request)))
            yield from super().select(view, now_s)

    policy = Sweep()
    home = Home(policy)
    for at_ms in (0, 1, 2, 30):
        home.send(10, 60, at_ps=at_ms * 1000 * US)
    home.run()
    assert [heard for heard in policy.heard if heard is True] == [True] * 3
    assert all(one.status == FINISHED for one in home.sent)


def test_an_idle_worker_is_woken_once_however_many_requests_wait():
    class Sleepy(Policy):
        work_conserving = False

        def select(self, view, now_s):
            if now_s >= 0.1:
                yield from super().select(view, now_s)

        def wake_s(self, view, now_s):
            self.heard.append(now_s)
            return now_s + 0.01

    policy = Sleepy()
    home = Home(policy)
    for number in range(20):
        home.send(5, 2, at_ps=number * 100 * US)
    home.run()
    assert all(one.status == FINISHED for one in home.sent)
    assert len(policy.heard) <= 20 + 11


def test_an_eviction_report_is_late():
    """The eviction is at 5 ps and reported at 5 + 7. That instant's events keep their order."""
    clock, heard = Clock(), []

    class Hears:
        def on_evict(self, prefix, tokens, worker, now_s):
            heard.append((prefix, tokens, worker, round(now_s * PS_PER_S)))

    late = ClusterParams(eviction_delay_s=7 / PS_PER_S)
    evicted = eviction_reports(clock, Hears(), 3, late, Random(0))
    clock.at(5, ARRIVE, 0, lambda: [evicted((Segment("a", size),), size) for size in (4, 9)])
    while (due_ps := clock.next_ps()) is not None and due_ps < 12:
        clock.step()
    assert heard == []
    clock.step()
    clock.step()
    assert heard == [((Segment("a", 4),), 4, 3, 12), ((Segment("a", 9),), 9, 3, 12)]
