"""Test vLLM's asynchronous scheduling by hand: arrivals, slots, wasted tokens, charges."""

from dataclasses import replace
from functools import partial

import pytest

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.engine.vllm import AsyncVLLMReplica, VLLMReplica, empty_block_cache
from fairbench.schedulers.local.fcfs import FCFS
from tests.sim.sim_helpers import prompt
from tests.sim.test_sim_vllm import VLLMHome
from tests.sim.vllm_invariants import watch_vllm
from tests.sim.vllm_streams import STEP_PS, StepProfile, ask_ours, random_stream


class Told(FCFS):
    """A scheduler that records the steps after which outputs are charged.

    It also records the steps after which admissions and ends are reported.
    """

    def __init__(self):
        super().__init__(FCFS.Params())
        self.clock, self.events = None, []

    def tell(self, what, name):
        self.events.append((self.clock.now_ps // STEP_PS, what, name))

    def on_tokens(self, client, tokens):
        self.tell("tokens", tokens)

    def on_steps(self, steps, running):
        self.tell("tokens", steps * sum(running.values()))

    def on_admitted(self, request, extend_tokens, recompute):
        self.tell("admitted", request.request_id)

    def on_finish(self, request):
        self.tell("ended", request.request_id)


class Ahead(VLLMHome):
    """An asynchronous worker whose steps all take STEP_PS."""

    def __init__(self, *, asynchronous=True, **limits):
        self.told = Told()
        super().__init__(self.told, profile=StepProfile(), **limits)
        self.limits = replace(self.limits, async_scheduling=asynchronous)
        self.log = ServiceLog(["x", "y"])
        kind = AsyncVLLMReplica if asynchronous else VLLMReplica
        parts = WorkerParts(0, self.clock, self.told, StepProfile(), self.log)
        self.worker, self.told.clock = (
            kind(parts, self.limits, empty_block_cache(self.limits)),
            self.clock,
        )
        watch_vllm(self.clock, [self.worker])

    def ask(self, tokens, output, step=0, spare=0, client="x"):
        number, at_ps = len(self.sent), step * STEP_PS
        text = prompt(f"own-{number}", tokens)
        most = output + spare
        request = Request(number, client, 0, 0, text, prompt_tokens(text), most)
        one = Sequence(request, Segment(f"out-{number}", output), at_ps, lambda _: None)
        self.sent.append(one)
        self.clock.at(at_ps, ARRIVE, 0, partial(self.worker.submit, one))
        return one

    def ends(self):
        return [one.finish_ps // STEP_PS for one in self.run().sent]


def home_of(asynchronous, **limits):
    return Ahead(asynchronous=asynchronous, **limits)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_idle_worker_starts_at_once_and_decodes_as_fast(asynchronous):
    home = home_of(asynchronous)
    home.ask(10, 5)
    assert home.ends() == [5]


@pytest.mark.parametrize(("asynchronous", "start"), [(False, 2), (True, 3)])
def test_an_arrival_joins_the_step_after_the_next_one(asynchronous, start):
    """The step from 2 to 3 is decided at 1, and the request arrives at 1.5."""
    home = home_of(asynchronous)
    home.ask(10, 9)
    late = home.ask(10, 1, step=1.5)
    home.run()
    assert late.finish_ps // STEP_PS == start + 1


@pytest.mark.parametrize(("asynchronous", "end"), [(False, 4), (True, 5)])
@pytest.mark.parametrize("spare", [0, 7])
def test_a_request_keeps_its_slot_while_its_last_step_runs(asynchronous, end, spare):
    """The second request ends at 3, after the step from 3 to 4 was decided."""
    home = home_of(asynchronous, max_num_seqs=2)
    for output, more in ((9, 0), (3, spare), (1, 0)):
        home.ask(10, output, spare=more)
    assert home.ends() == [9, 3, end]


@pytest.mark.parametrize(("spare", "batches"), [(0, [2, 2, 2, 1]), (7, [2, 2, 2, 2])])
def test_a_request_that_stops_early_is_computed_once_in_vain(spare, batches):
    home = home_of(True)
    home.ask(10, 4)
    home.ask(10, 3, spare=spare)
    assert home.ends() == [4, 3]
    home.worker.settle()
    columns = ("start_ps", "batch_size", "steps")
    rows = set(zip(*(home.log.column(name).tolist() for name in columns), strict=True))
    assert [size for _, size, steps in sorted(rows) for _ in range(steps)] == batches
    assert home.log.column("output_tokens").sum() == 7


@pytest.mark.parametrize("asynchronous", [False, True])
def test_outputs_are_charged_when_they_are_known(asynchronous):
    """The decision at 2 knows two tokens, if the step begins at 2 or asynchronously at 3."""
    home = home_of(asynchronous)
    home.ask(10, 9)
    late = home.ask(10, 1, step=1.5)
    home.run()
    events = home.told.events
    at = events.index((2, "admitted", late.request.request_id))
    assert sum(count for _, what, count in events[:at] if what == "tokens") == 2
    assert [when for when, what, _ in events if what == "ended"][-1] == 9


def test_what_was_decided_ahead_does_not_count_at_the_end_of_a_run():
    home = home_of(True)
    home.ask(10, 9)
    home.ask(10, 1, step=2.5)
    home.run(until_ps=round(3.5 * STEP_PS))
    home.clock.stop_at(round(3.5 * STEP_PS))
    home.worker.settle()
    first, second = home.sent
    assert home.worker.batch.produced(first) == 3
    assert home.log.column("output_tokens").sum() == 3
    assert second.admitted_ps == -1


@pytest.mark.parametrize("seed", range(1, 20, 2))
def test_random_streams_end_with_all_their_tokens(seed):
    """Pools are small, so that requests lose their memory while their last step runs."""
    stream = random_stream(seed)
    assert stream.limits.async_scheduling
    steps = ask_ours(stream)
    ended = [number for step in steps.values() for number in step.finished]
    assert sorted(ended) == list(range(len(stream.arrivals)))
