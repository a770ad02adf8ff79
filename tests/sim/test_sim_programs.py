"""Test programs in virtual time: gather, sleep, refusal, and their records."""

import numpy as np
import pytest

from fairbench.core import PS_PER_S, Demand, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import FINISHED, REFUSED, UNFINISHED
from fairbench.engine.sglang import SGLangReplica
from fairbench.errors import ProgramFailed, UsageError
from fairbench.hardware.engine_params import EngineLimits
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.routing.round_robin import RoundRobin
from fairbench.sim.cluster import Cluster
from fairbench.sim.program_runner import SimLLM, run
from fairbench.sim.records import Logs, tables_of
from fairbench.sim.run import simulate
from tests.invariants import Records, check_records, run_checked
from tests.sim.sim_helpers import PLAIN, US, prompt, small_spec

IN = prompt("in", 10)


class Fake:
    """An ``LLM`` whose calls take ``output_tokens`` seconds. Calls named "no" are refused."""

    def __init__(self):
        self.clock = Clock()
        self.llm = SimLLM(self.clock, self.submit)
        self.names = []
        self.outcome = None

    def submit(self, prompt, name, output, max_new, depth, done):
        self.names.append(name)
        if name == "no":
            done(None, ProgramFailed("no"))
            return
        at_ps = self.clock.now_ps + output * PS_PER_S
        self.clock.at(at_ps, ARRIVE, 0, lambda: done(Segment(name, output), None))

    def call(self, name, seconds):
        return self.llm.generate(
            IN, name=name, output_tokens=seconds, max_new_tokens=seconds, depth=0
        )

    def run(self, program):
        def ended(result, error):
            assert self.outcome is None
            self.outcome = result, error, self.clock.now_ps / PS_PER_S

        run(program, ended)
        while self.clock.next_ps() is not None:
            self.clock.step()
        return self.outcome


async def value(awaitable):
    return await awaitable


def test_branches_run_in_parallel_and_results_keep_the_given_order():
    fake = Fake()

    async def program():
        return await fake.llm.gather([value(fake.call(n, t)) for n, t in (("a", 5), ("b", 2))])

    assert fake.run(program()) == ([Segment("a", 5), Segment("b", 2)], None, 5.0)
    assert fake.names == ["a", "b"]


def test_consecutive_calls_add_up_and_sleep_takes_its_time():
    fake = Fake()

    async def program():
        first = await fake.call("a", 2)
        await fake.llm.sleep(0.25)
        return first, await fake.call("b", 3)

    assert fake.run(program()) == ((Segment("a", 2), Segment("b", 3)), None, 5.25)


def test_gather_of_no_calls_and_of_finished_calls():
    fake = Fake()

    async def ready():
        return 7

    async def program():
        return await fake.llm.gather([]), await fake.llm.gather([ready(), ready()])

    assert fake.run(program()) == (([], [7, 7]), None, 0.0)


def test_a_refused_branch_fails_the_gather_after_the_last_branch_has_ended():
    fake = Fake()

    async def program():
        await fake.llm.gather([value(fake.call(n, 4)) for n in ("a", "no", "b")])
        raise AssertionError("must not come here")

    result, error, at_s = fake.run(program())
    assert (result, str(error), at_s) == (None, "no", 4.0)
    assert fake.names == ["a", "no", "b"]


def test_a_program_may_catch_a_refusal():
    fake = Fake()

    async def program():
        try:
            await fake.call("no", 1)
        except ProgramFailed:
            return await fake.call("again", 2)

    assert fake.run(program()) == (Segment("again", 2), None, 2.0)


def test_gathers_nest():
    fake = Fake()

    async def branch(name):
        first = await fake.call(name, 1)
        return [first.key, *(s.key for s in await fake.llm.gather(
            [value(fake.call(f"{name}{n}", n)) for n in (3, 1)]))]  # fmt: skip

    async def program():
        return await fake.llm.gather([branch("a"), branch("b")])

    expected = [["a", "a3", "a1"], ["b", "b3", "b1"]]
    assert fake.run(program()) == (expected, None, 4.0)


class Calls:
    """A program that makes these calls, (input, output, max_new) each, in parallel."""

    def __init__(self, number, client, *calls):
        self.program_id, self.client, self.calls = number, client, calls
        inputs, outputs = sum(c[0] for c in calls), sum(c[1] for c in calls)
        self.demand = Demand(len(calls), inputs, outputs)

    async def run(self, llm):
        await llm.gather([
            value(llm.generate(
                prompt(f"{self.program_id}-{n}", inputs), name=f"{n}",
                output_tokens=output, max_new_tokens=max_new, depth=0,
            ))
            for n, (inputs, output, max_new) in enumerate(self.calls)
        ])  # fmt: skip


def cluster_of(streams, pool=100, in_flight=None, reaction=None):
    clock, log = Clock(), ServiceLog(["x", "y"])
    limits = EngineLimits(pool, 8192, 16384, 2048)
    worker = SGLangReplica(
        WorkerParts(0, clock, FCFS(FCFS.Params()), PLAIN, log), limits, KVCache(pool)
    )
    cluster = Cluster(clock, RoundRobin(RoundRobin.Params(), 1), [worker], ["x", "y"])
    for number, programs in enumerate(streams):
        cluster.add_client(number, iter(programs), in_flight, reaction)
    return cluster, log


def finish(cluster, log, until_ps=None, pool=100):
    while (next_ps := cluster.clock.next_ps()) is not None:
        if until_ps is not None and next_ps > until_ps:
            cluster.clock.stop_at(until_ps)
            break
        cluster.clock.step()
    cluster.settle()
    tables = tables_of(cluster.clients, Logs(cluster.request_log, cluster.program_log, log))
    columns = [t.to_columns() for t in (tables.requests, tables.programs, tables.service)]
    check_records(Records(*columns, PLAIN, pool))
    return tables


def test_a_program_with_a_refused_call_is_refused_and_its_other_calls_continue():
    streams = [
        [(0.0, Calls(0, "x", (10, 3, 3), (90, 5, 30)))],
        [(0.001, Calls(1, "y", (10, 2, 2)))],
    ]
    tables = finish(*cluster_of(streams))
    assert tables.programs.status.tolist() == [REFUSED, FINISHED]
    assert tables.requests.status.tolist() == [FINISHED, REFUSED, FINISHED]
    assert np.isnan(tables.programs.finish_s).tolist() == [True, False]
    assert tables.requests.output_tokens.tolist() == [3, 0, 2]
    # Client y was next at 1,100 us: a prefill, then both decode.
    assert tables.requests.finish_s.tolist()[2] == pytest.approx(0.00322)


def test_each_call_states_how_many_calls_its_program_has_yet_to_make():
    class Noting(RoundRobin):
        def route(self, request, now_s):
            left.append((request.client, request.calls_left))
            return super().route(request, now_s)

    left = []
    call = (10, 3, 3)
    streams = [[(0.0, Calls(0, "x", call, call, call))], [(0.001, Calls(1, "y", call))]]
    cluster, log = cluster_of(streams)
    cluster.router = Noting(RoundRobin.Params(), 1)
    finish(cluster, log)
    assert left == [("x", 2), ("x", 1), ("x", 0), ("y", 0)]


def test_a_cut_off_run_counts_finished_and_unfinished_work():
    streams = [[(0.0, Calls(0, "x", (10, 40, 40)))], [(0.0005, Calls(1, "y", (20, 3, 70)))]]
    tables = finish(*cluster_of(streams), until_ps=(1100 + 4 * 1010 + 500) * US)
    assert tables.requests.status.tolist() == [UNFINISHED, UNFINISHED]
    assert tables.programs.status.tolist() == [UNFINISHED, UNFINISHED]
    assert tables.requests.output_tokens.tolist() == [5, 0]
    assert tables.service.output_tokens.sum() == 5


def test_outputs_are_cut_at_the_limit_of_the_client():
    tables = finish(*cluster_of([[(0.0, Calls(0, "x", (10, 40, 7)))]]))
    assert tables.requests.output_tokens.tolist() == [7]


def test_documents_that_do_not_fit_are_refused_and_the_others_are_served():
    result = run_checked(small_spec("fcfs", "long-qa", pool=20_000, seed=1))
    states = set(np.asarray(result.requests["status"].indices).tolist())
    assert states == {FINISHED, REFUSED}


def test_a_workload_of_which_no_request_fits_is_a_usage_error():
    with pytest.raises(
        UsageError,
        match=(
            "every request is larger than the KV pool of 100 tokens; give a larger pool or "
            "shorter prompts"
        ),
    ):
        simulate(small_spec("fcfs", "tot", pool=100))


def test_a_client_in_a_closed_loop_starts_the_next_program_when_one_ends():
    streams = [[(0.0, Calls(n, "x", (10, 5, 5))) for n in range(3)]]
    together = finish(*cluster_of(streams)).programs
    assert together.arrival_s.tolist() == [0, 0, 0]
    one_by_one = finish(*cluster_of(streams, in_flight=1)).programs
    assert one_by_one.arrival_s.tolist() == [0, *one_by_one.finish_s.tolist()[:2]]
    assert one_by_one.status.tolist() == [FINISHED] * 3
    two = finish(*cluster_of(streams, in_flight=2)).programs
    assert two.arrival_s.tolist() == [0, 0, two.finish_s[0]]


def test_a_reacting_client_holds_all_but_one_program():
    seen = []

    def at_the_second(ended):
        seen.append(ended)
        return len(seen) == 2

    streams = [[(0.0, Calls(n, "x", (10, 5, 5))) for n in range(5)]]
    found = finish(*cluster_of(streams, reaction=at_the_second))
    begun_s, ended_s = found.programs.arrival_s.tolist(), found.programs.finish_s.tolist()
    # A single program runs at a time. The third starts when the second ends, and all others begin
    # then, too.
    assert begun_s == [0, ended_s[0], *[ended_s[1]] * 3]
    assert found.programs.status.tolist() == [FINISHED] * 5
    first = found.requests
    assert [one.ttft_s for one in seen] == pytest.approx(
        (first.first_token_s - first.arrival_s).tolist()
    )
    assert {one.input_tokens for one in seen} == {10}


def test_a_reacting_client_continues_after_its_only_program_is_refused():
    streams = [[(0.0, Calls(0, "x", (90, 5, 30))), (0.001, Calls(1, "x", (10, 2, 2)))]]
    found = finish(*cluster_of(streams, reaction=lambda ended: False))
    assert found.programs.status.tolist() == [REFUSED, FINISHED]


def test_a_reacting_client_sees_its_wait_for_memory():
    seen = []
    streams = [[(0.0, Calls(n, "x", (10, 5, 5))) for n in range(3)]]

    def always(ended):
        seen.append(ended.ttft_s)
        return True

    # After the first end, two programs start, and memory has room for one prefill at a time.
    requests = finish(*cluster_of(streams, pool=30, reaction=always), pool=30).requests
    assert requests.admitted_s[2] > requests.arrival_s[2]
    assert seen == pytest.approx((requests.first_token_s - requests.arrival_s).tolist())
