"""Random request streams, run on vLLM's own scheduler and on the simulated engine."""

import random
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.engine.vllm import AsyncVLLMReplica, VLLMReplica
from fairbench.hardware.engine_params import VLLMLimits
from fairbench.hardware.timing import Frontend
from fairbench.schedulers.local.fcfs import FCFS
from tests.sim.sglang_streams import STEP_PS, Arrival, Tokens, random_prompt
from tests.sim.vllm_invariants import watch_vllm
from tests.sim.vllm_seam import VERSION, RealEngine

CLIENTS = ("ann", "bob", "eve")


def client_of(number):
    """Return the client of a request. The last client sends half of all."""
    return CLIENTS[min(number % 4, 2)]


@dataclass
class Stream:
    """A random request stream, and the engine that will serve it."""

    limits: VLLMLimits
    policy: str = "fcfs"
    arrivals: list = field(default_factory=list)
    spare: list = field(default_factory=list)  # tokens that requests may still produce at their end
    facts: dict = field(default_factory=dict)  # for each number, what else vLLM's request has
    # for each number, what separates its tokens in the cache
    apart: dict = field(default_factory=dict)

    def prompt(self, number):
        """Return the prompt of a request, with what separates its tokens from equal ones."""
        first, *others = self.arrivals[number].prompt
        mark = self.apart.get(number)
        return (Segment(f"{mark}|{first.key}", first.length), *others) if mark else (first, *others)


@dataclass
class Step:
    """The result of one engine step. Requests are numbers."""

    scheduled: dict
    hits: dict  # cached tokens of the admitted requests
    preempted: list
    finished: list
    free_blocks: int


class Priority(FCFS):
    """vLLM's policy "priority": the lowest number first, then the earliest arrival.

    Memory is taken back from the last in that order.
    """

    def select(self, view, now_s):
        while len(view):
            if not (yield min(view.queue_order(), key=_rank)):
                return

    def retraction_order(self, running, now_s):
        return sorted((one.request for one in running), key=_rank, reverse=True)


def _rank(request):
    return request.priority, request.request_id


def random_stream(seed, asynchronous=None):
    """Draw shared prefixes, follow-up turns and bursts, most often in a pool that is too small.

    By default, streams with an odd seed are for asynchronous scheduling.
    """
    draw = random.Random(seed)
    block = draw.choice([1, 4, 16, 16])
    kind = draw.choice(["small", "small", "preempting", "preempting", "preempting", "wide"])
    tokens = {"small": draw.choice([160, 320]), "preempting": 200, "wide": 4_000}[kind]
    slots = draw.choice([1, 2, 4, 8, 32])
    budget = max(slots, draw.choice([4, 8, 20, 64, 512]))
    stream = Stream(
        VLLMLimits(
            pool_tokens=tokens + block,
            max_num_batched_tokens=budget,
            max_num_seqs=slots,
            block_size=block,
            enable_prefix_caching=draw.random() < 0.9,
            scheduler_reserve_full_isl=draw.random() < 0.7,
            watermark=draw.choice([0.0, 0.0, 0.0, 0.05, 0.2]),
            step_by_step=draw.random() < 0.3,
            goes_on_after_self=VERSION.startswith("0.33."),
            async_scheduling=seed % 2 == 1 if asynchronous is None else asynchronous,
        ),
        policy=draw.choice(["fcfs", "fcfs", "priority"]),
    )
    step = 0
    for number in range(draw.randrange(8, 40)):
        step += draw.choice([0, 0, 0, 0, 1, 2, 5, 15, draw.choice([3, 60, 200])])
        longest = tokens // 3
        prompt = random_prompt(draw, stream.arrivals, number, longest)
        output = draw.choice([1, 2, 10, 60] if kind == "small" else [1, 30, 60, 90])
        output = min(output, tokens - tokens % block - prompt_tokens(prompt))
        stream.arrivals.append(Arrival(step, prompt, output, draw.choice([0, 0, 1, 2])))
    for arrival in stream.arrivals:
        room = tokens - tokens % block - prompt_tokens(arrival.prompt) - arrival.output
        stream.spare.append(min(room, draw.choice([0, 0, 1, 20])))
    return stream


def ask_vllm(stream, configured=(), prepare=lambda engine: None):
    """Return vLLM's actions by step."""
    engine = RealEngine(stream.limits, stream.policy, configured=configured)
    prepare(engine)
    return drive(engine, stream, Tokens())


def drive(engine, stream, tokens, clock=None):
    """Return the engine's actions by step. ``clock.step`` is the current step."""
    clock = clock or SimpleNamespace(step=0)
    done, waiting = {}, list(enumerate(stream.arrivals))
    preempted = []  # in an empty step, which takes no time
    while True:
        while waiting and waiting[0][1].step <= clock.step:
            number, arrival = waiting.pop(0)
            output = tokens.of((Segment(f"out-{number}", arrival.output),))
            prompt = tokens.of(arrival.prompt)
            named = stream.facts.get(number, {})
            request = engine.request(
                *(number, prompt, output, arrival.max_new, client_of(number), stream.spare[number]),
                **named,
            )
            engine.scheduler.add_request(request)
        step = engine.step()
        if step is None:
            if not waiting:
                return done
            clock.step = waiting[0][1].step
            continue
        scheduled, hits, lost, finished = step
        preempted += lost
        if scheduled:
            done[clock.step] = Step(scheduled, hits, preempted, finished, engine.free_blocks)
            clock.step, preempted = clock.step + 1, []


class StepProfile:
    """A timing profile with equal steps."""

    context_ps = 0
    pool = SimpleNamespace(host_token_ps=0)
    shared_read = 1.0
    frontend = Frontend()
    vllm_attention = None

    def vllm_extra_ps(self, sequences, context_tokens, longest=0):
        return 0

    def step_ps(self, chunks, sequences, context_tokens):
        return STEP_PS

    def fixed_ps(self, sequences):
        return STEP_PS

    def decode_ps(self, sequences, context_tokens):
        return STEP_PS

    def prefill_ps(self, chunks):
        return STEP_PS


class Telling(VLLMReplica):
    """A scheduler that records its decisions."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.done = {}

    def _heard(self, back=0):
        number = self._clock.now_ps // STEP_PS - back
        return self.done.setdefault(number, Step({}, {}, [], [], 0))

    def _start(self):
        if (before := self.done.get(self._clock.now_ps // STEP_PS - 1)) is not None:
            before.free_blocks = self.cache.free_blocks
        return super()._start()

    def _fill(self):
        step = super()._fill()
        heard = self._heard()
        for sequence in self.batch.sequences:
            if sequence not in step.stalled:
                heard.scheduled[sequence.request.request_id] = 1
        for chunk in step.chunks:
            heard.scheduled[chunk.sequence.request.request_id] = chunk.tokens
            if chunk.first:
                heard.hits[chunk.sequence.request.request_id] = chunk.cached
        return step

    def retracted(self, request):
        """Record that a request's memory was taken back."""
        self._heard().preempted.append(request.request_id)

    def over(self, sequence):
        """Record that a request finishes with the step that ends now."""
        self._heard(1).finished.append(sequence.request.request_id)


class TellingAhead(Telling, AsyncVLLMReplica):
    """A scheduler that decides while a step runs, so that the decision is on the next step."""

    def _heard(self, back=0):
        return super()._heard(back if back or self._now is None else -1)


def telling(parts, limits, cache=None):
    """Return the simulated worker for these limits."""
    return (TellingAhead if limits.async_scheduling else Telling)(parts, limits, cache)


def ask_ours(stream):
    """Return the simulated engine's actions by step. Steps inside a decode run are implied."""
    clock = Clock()
    scheduler = {"fcfs": FCFS, "priority": Priority}[stream.policy](FCFS.Params())
    worker = telling(
        WorkerParts(0, clock, scheduler, StepProfile(), ServiceLog(["x"])), stream.limits
    )
    scheduler.on_retract = lambda request, view, now_s: worker.retracted(request)
    watch_vllm(clock, [worker])
    for number, arrival in enumerate(stream.arrivals):
        request = Request(
            number,
            "x",
            0,
            0,
            arrival.prompt,
            prompt_tokens(arrival.prompt),
            arrival.output + stream.spare[number],
            priority=arrival.max_new,
        )
        output = Segment(f"out-{number}", arrival.output)
        sequence = Sequence(request, output, arrival.step * STEP_PS, worker.over)
        clock.at(arrival.step * STEP_PS, ARRIVE, 0, partial(worker.submit, sequence))
    while clock.next_ps() is not None:
        clock.step()
    return worker.done


def assert_alike(theirs, ours, stream):
    """Assert that both engines did the same in every step."""
    for number, want in sorted(theirs.items()):
        got = ours.pop(number, None)
        if got is None or not got.scheduled:  # inside a run of decode steps
            assert set(want.scheduled.values()) == {1}, f"step {number} of {stream}"
            assert want.hits == {}, f"step {number} of {stream}"
            assert want.preempted == [], f"step {number} of {stream}"
            assert want.finished == (got.finished if got else []), f"step {number} of {stream}"
            continue
        if not got.free_blocks:  # the first step of a run of decode steps
            got.free_blocks = want.free_blocks
        assert vars(got) == vars(want), f"step {number} of {stream}"
    assert not any(step.scheduled for step in ours.values())
