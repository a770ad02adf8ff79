"""Test the central DLPM by hand, against DLPM on one replica, and its bound and cost."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.queue import arrival_queue
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import build_router
from fairbench.schedulers.views import Room, WorkerLoad
from fairbench.sim.run import Simulation, simulate
from fairbench_rivals.local.central_worker import CentralWorker
from fairbench_rivals.routing.central_dlpm import MESSAGES_S, CentralRouter
from tests.invariants import run_checked
from tests.schedulers.routing.router_helpers import answer, request
from tests.sim.sim_helpers import US, Home, small_spec
from tests.strategies import examples

GPU = "a100-80gb/llama-3.1-8b/tp1/sglang"  # a profile without a front end
PARAMS = CentralRouter.Params()
QUANTUM = PARAMS.quantum


class Rooms:
    """A fleet that reports each worker's room. Every request starts at once."""

    def __init__(self, workers, slots=1):
        self.rooms = {worker: Room(slots, 100_000, 8_192) for worker in range(workers)}

    def workers(self):
        return sorted(self.rooms)

    def load(self, worker):
        return WorkerLoad(1, 0, 0, 1, False, self.rooms[worker])


class Desk:
    """A queue before a central router, with everything that it has sent."""

    def __init__(self, workers=2):
        self.fleet = Rooms(workers)
        self.router = CentralRouter(PARAMS, workers)
        self.router.prepare(Setup(fleet=self.fleet))
        self.queue = arrival_queue(self.router)
        self.sent = []

    def enter(self, *requests):
        for one in requests:
            assert self.queue.enter(one, 0.0)

    def release(self):
        """Release requests, each of which takes a slot. Return the new (request, worker) pairs."""
        before = len(self.sent)

        def send(one, worker):
            self.sent.append((one.request_id, worker))
            room = self.fleet.rooms[worker]
            self.fleet.rooms[worker] = room._replace(slots=room.slots - 1)

        self.queue.release(0.0, send)
        return self.sent[before:]

    def credit(self):
        return dict(self.router.order.credit)


A, B, C = ("a", 100), ("b", 100), ("c", 100)


def warm():
    """Return a desk whose workers 0 and 1 hold the prefixes A and B, and owe nothing."""
    desk = Desk()
    desk.router._tree.insert(request(90, "z", A).prompt, 0)
    desk.router._tree.insert(request(91, "z", B).prompt, 1)
    return desk


def test_the_longest_pair_of_a_request_and_a_replica_goes_first():
    """Requests 1 and 2 match, so request 0 waits, although it came first and its client has credit.

    Both clients get a quantum. Request 1 computes 110 - 100 tokens, and request 2 computes 20.
    """
    desk = warm()
    desk.enter(request(0, "x", C), request(1, "x", B, ("p", 10)), request(2, "y", A, ("q", 20)))
    assert desk.release() == [(1, 1), (2, 0)]
    assert desk.credit() == {"x": QUANTUM - 10, "y": QUANTUM - 20}
    desk.fleet.rooms[1] = Room(1, 100_000, 8_192)
    assert desk.release() == [(0, 1)]
    assert desk.credit()["x"] == QUANTUM - 10 - 100


def test_one_deficit_counts_on_all_replicas():
    """Client x spends its quantum on one worker. Then its match on another worker waits for y.

    Requests 0 and 1 compute 12,000 and 10 tokens, and leave x in debt and y in credit.
    """
    desk = warm()
    desk.enter(request(0, "x", ("long", 12_000)), request(1, "y", ("short", 10)))
    assert {number for number, _ in desk.release()} == {0, 1}
    assert desk.credit() == {"x": QUANTUM - 12_000, "y": QUANTUM - 10}
    desk.fleet.rooms[1] = Room(1, 100_000, 8_192)
    desk.enter(request(2, "x", B, ("p", 10)), request(3, "y", C))
    assert desk.release() == [(3, 1)]
    desk.fleet.rooms[0] = Room(1, 100_000, 8_192)
    assert desk.release() == [(2, 0)]  # only x waits, and gets a quantum
    assert desk.credit()["x"] == 2 * QUANTUM - 12_000 - 110


def test_a_request_without_room_stays_in_the_queue():
    desk = Desk(1)
    desk.enter(request(0, "x", A), request(1, "y", B))
    assert desk.release() == [(0, 0)]
    assert desk.release() == []
    assert len(desk.queue) == 1


@pytest.mark.parametrize(
    ("room", "goes"),
    [
        (Room(1, 357, 1), True),
        (Room(1, 356, 1), False),  # 100 tokens and 256 reserved ones need more than 356
        (Room(0, 9_999, 9_999), False),
        (Room(1, 9_999, 0), False),
    ],
)
def test_a_request_goes_only_where_the_next_pass_can_start_it(room, goes):
    desk = Desk(1)
    desk.router._fleet.dispatch(request(90, "z", C), 0)  # an idle worker gets any request
    desk.fleet.rooms[0] = room
    desk.enter(request(0, "x", A))
    assert desk.release() == ([(0, 0)] if goes else [])


def test_replicas_report_outputs_and_the_tokens_that_they_compute():
    """The router expects 100 uncached tokens. The replica finds 60 cached, and produces 7."""
    desk = Desk(1)
    worker = CentralWorker(CentralWorker.Params())
    worker.prepare(Setup(order=desk.router.order))
    one = request(0, "x", A)
    desk.enter(one)
    assert desk.release() == [(0, 0)]
    worker.on_admitted(one, 40, recompute=False)
    worker.on_tokens("x", 7)
    assert desk.credit() == {"x": QUANTUM - 40 - 2 * 7}
    desk.queue.finish(one, 7, 1.0)  # the outputs are not charged again
    assert worker._order.blocked_s() == pytest.approx(MESSAGES_S)


def test_a_server_without_reports_is_charged_at_the_end():
    desk = Desk(1)
    one, two = request(0, "x", A), request(1, "x", B)
    desk.enter(one, two)
    desk.release()
    desk.queue.finish(one, 7, 1.0)
    assert desk.credit() == {"x": QUANTUM - 100 - 2 * 7}
    desk.queue.withdraw(two)
    assert not desk.router.order._requests


# the parameters, which are those of DLPM


def test_the_quantum_of_dlpm_applies_to_the_whole_cluster():
    """A client with a debt of 300 tokens gets three quanta of 150 tokens, from the experiment."""
    spec = resolve({"scheduler": "central-dlpm"}, {"dlpm.quantum": 150})
    assert spec.settings["dlpm.quantum"] == 150
    router = build_router(spec.router, spec.settings, 1)
    router.prepare(Setup(fleet=Rooms(1, slots=9)))
    queue = arrival_queue(router)
    queue.enter(request(0, "x", A, ("long", 350)), 0.0)
    queue.release(0.0, lambda one, worker: None)
    assert dict(router.order.credit) == {"x": 150 - 450}
    queue.enter(request(1, "x", B), 0.0)
    queue.release(0.0, lambda one, worker: None)
    assert dict(router.order.credit) == {"x": 3 * 150 - 300 - 100}
    workload = resolve({"scheduler": "central-dlpm", "workload": "chat"})
    assert workload.settings["dlpm.quantum"] == 2_000


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dlpm.charge": "gpu-time"}, "dlpm.charge = 'gpu-time': must be None"),
        ({"dlpm.tenants": "tree"}, "dlpm.tenants = 'tree': must be None"),
    ],
)
def test_a_parameter_that_the_central_queue_lacks_is_refused(settings, said):
    spec = resolve({"scheduler": "central-dlpm"}, settings)
    with pytest.raises(UsageError, match=f"^{said}, which cannot be changed; leave it out"):
        simulate(spec)


def test_a_setting_under_the_routers_own_name_names_the_parameters_to_set():
    with pytest.raises(UsageError, match="set the parameters of dlpm or of central-worker instead"):
        resolve({"scheduler": "central-dlpm"}, {"central-dlpm.quantum": 150})


# the cost


def test_the_cost_is_two_fifths_of_a_decode_step_where_the_paper_has_its_number():
    """With 8 replicas and 200 queued requests: about 40% of 14.6 ms, a step of 25 requests."""
    router = CentralRouter(PARAMS, 8)
    router.order._requests.extend(request(n, "x", A) for n in range(200))
    assert router.order.blocked_s() == pytest.approx(5.67e-3, rel=1e-3)
    assert 0.35 < router.order.blocked_s() / 14.6e-3 < 0.45


class Slow(FCFS):
    """FCFS whose passes take 0.5 ms."""

    steps_per_pass = 3

    def pass_s(self):
        return 0.0005


def test_a_pass_delays_prompts_and_every_third_decode_step():
    """A prompt takes 1,100 us, and a decode step 1,010 us (see ``PLAIN``).

    Without the cost, the prompt runs from 0 to 1,100, and 7 steps from 1,100 to 8,170. With it, the
    prompt runs from 500 to 1,600, steps 1 to 3 from 1,600 (the pass before the prompt counts), 4 to
    6 from 5,130, and step 7 from 8,660.
    """
    usual, slow = Home(), Home(Slow(FCFS.Params()))
    ends = []
    for home in (usual, slow):
        one = home.send(10, 8)
        home.run()
        ends.append(one.finish_ps // US)
    assert usual.prefills() == [(0, 1, 10)]
    assert slow.prefills() == [(500, 1, 10)]
    assert [start for start, *_ in usual.decodes()] == [1_100]
    assert [steps for _, steps, _ in slow.decodes()] == [3, 3, 1]
    assert [start for start, *_ in slow.decodes()] == [1_600, 5_130, 8_660]
    assert ends[1] - ends[0] == 3 * 500


def run_of(spec, *, costs=True):
    """Run a simulation, without the cost if ``costs`` is False."""
    simulation = Simulation(spec, spec.client_plans(), None)
    if not costs:
        for worker in simulation.cluster.workers:
            worker.scheduler.pass_s = None
    simulation.run()
    return simulation.result(True, None)


@pytest.mark.slow
def test_the_cost_is_charged_to_the_iterations_of_a_cluster():
    """The first iteration starts 2 x 0.31 ms later, because no other request waits."""
    spec = small_spec("central-dlpm", "chat", dp=2)
    free, charged = run_of(spec, costs=False), run_of(spec)
    first = [one.service["start_s"].min() for one in (free, charged)]
    assert first[1] - first[0] == pytest.approx(2 * MESSAGES_S, abs=1e-9)
    ends = [one.requests["finish_s"].max() for one in (free, charged)]
    assert ends[1] > ends[0]


# one replica


def sends_in_a_last_iteration(result):
    """Return whether a client sends a request in the iteration that ends its earlier request."""

    def columns(table, *names):
        return zip(*(table[name].tolist() for name in names), strict=True)

    steps = columns(result.service, "start_s", "end_s", "steps")
    step_s = max((end_s - start_s) / count for start_s, end_s, count in steps)
    calls = list(columns(result.requests, "client", "arrival_s", "finish_s"))
    return any(
        client == other and arrival_s < sent_s and 0 < finish_s - sent_s < step_s
        for client, arrival_s, finish_s in calls
        for other, sent_s, _ in calls
    )


@pytest.mark.slow
@given(
    seed=st.integers(0, 50),
    workload=st.sampled_from(["chat", "judge"]),
    quantum=st.sampled_from([500, 3_000, 10_000]),
)
@examples(5)
def test_one_replica_that_runs_one_request_at_a_time_decides_as_dlpm_does(seed, workload, quantum):
    """The decisions must be equal if each is made in the instant in which the replica is idle.

    Credits, queue and cache are then those that DLPM sees. With more requests at a time, the
    central scheduler decides up to one iteration earlier. The pool holds everything, because
    evictions are reported late, and the quantum is the same. Left out are runs in which a client
    sends a request during the last iteration of its earlier request: the replica learns of it only
    afterwards, so the client leaves and loses its credit.
    """
    flags = {"num_programs": 1, "request_rate": 50.0, "gpu": GPU}
    settings = {
        "engine.max_running_requests": 1, "engine.max_total_tokens": 400_000,
        "dlpm.quantum": quantum,
    }  # fmt: skip
    tables = []
    for scheduler in ("round-robin+dlpm", "central-dlpm"):
        spec = small_spec(scheduler, workload, pool=400_000, seed=seed, flags=flags, **settings)
        result = run_of(spec, costs=False)
        assume(not sends_in_a_last_iteration(result))
        tables.append(result.requests)
    for column in ("request_id", "admitted_s", "cached_tokens", "finish_s"):
        assert tables[0][column].tolist() == tables[1][column].tolist()


# the bound

LONGEST, ANSWER = 300, 20  # the longest prompt and answer, in tokens


@given(
    prompts=st.tuples(st.integers(1, LONGEST), st.integers(1, LONGEST)),
    slots=st.integers(1, 3),
    ends=st.randoms(use_true_random=False),
)
@examples(15)
def test_service_differs_by_no_more_than_dlpms_bound_over_the_cluster(prompts, slots, ends):
    """[DLPM] Theorem 4.1 holds for the requests of both replicas together.

    Two clients always wait. A client in credit can overdraw it by at most U: one prompt, and the
    answers of all its running requests. The difference in service in any interval is then at most 2
    (U + Q). In order of arrival, prompts of 300 and 1 tokens would exceed this bound.
    """
    desk, clients = Desk(), ("x", "y")
    running, served, number, gaps = [], dict.fromkeys(clients, 0), 0, [0]
    for _ in range(400):
        waiting = [one.client for one in desk.queue]
        for client, tokens in zip(clients, prompts, strict=True):
            for _ in range(2 - waiting.count(client)):
                desk.enter(request(number, client, (f"own-{number}", tokens)))
                number += 1
        for worker in (0, 1):
            busy = sum(at == worker for _, at in running)
            desk.fleet.rooms[worker] = Room(slots - busy, 100_000, 8_192)
        queued = {one.request_id: one for one in desk.queue}
        for one, worker in desk.release():
            running.append((queued[one], worker))
            served[queued[one].client] += queued[one].input_tokens
        done, worker = running.pop(ends.randrange(len(running)))
        desk.queue.finish(done, ANSWER, 0.0)
        desk.router.on_finish(done, worker, answer(ANSWER), 0.0)
        served[done.client] += 2 * ANSWER
        gaps.append(served["x"] - served["y"])
    overdraft = LONGEST + 2 * ANSWER * 2 * slots
    assert max(gaps) - min(gaps) <= 2 * (overdraft + QUANTUM)


def test_a_small_overloaded_cluster_breaks_no_rule():
    flags = {"num_programs": 3, "request_rate": 60.0, "gpu": GPU}
    spec = small_spec("central-dlpm", "chat", dp=2, pool=2_000, seed=1, flags=flags)
    result = run_checked(spec)
    assert result.summary["unfinished"] == 0
    waited = result.requests["admitted_s"] - result.requests["routed_s"]
    assert waited.max() < 0.1  # one iteration, because every request starts in the next pass


def test_the_queue_holds_requests_before_vllm_too():
    flags = {"num_programs": 2, "request_rate": 60.0, "engine": "vllm"}
    pool = {"vllm.num_gpu_blocks_override": 3_000 // 16, "vllm.max_num_seqs": 256}
    result = simulate(small_spec("central-dlpm", "chat", dp=2, flags=flags, **pool))
    assert result.summary["unfinished"] == 0
    assert (result.requests["routed_s"] > result.requests["arrival_s"]).any()


def test_requests_that_fit_together_start_together():
    """Fourteen requests arrive at once at an idle replica, five of them from a heavy client.

    The replica starts all of them in its first iteration, after one decision.
    """
    flags = {"num_programs": 1, "request_rate": float("inf"), "clients": 10, "gpu": GPU}
    requests = run_of(small_spec("central-dlpm", "chat", pool=100_000, flags=flags)).requests
    assert (requests["arrival_s"] == 0).sum() == 14
    assert (requests["admitted_s"] == 0).sum() == 14
