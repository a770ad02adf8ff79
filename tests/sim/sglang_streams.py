"""Random request streams, run on SGLang's own scheduler and on the simulated engine."""

import random
from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace
from unittest import mock

import fairbench.engine.loop as loop_module
import fairbench.engine.waiting_queue
from fairbench.core import PS_PER_S, Segment, prompt_tokens
from fairbench.hardware.engine_params import NEWEST, RULES
from fairbench.hardware.timing import Frontend, ProfileCosts
from fairbench.schedulers.base import Setup
from fairbench.schedulers.load_cap import LoadCap
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import local_class
from fairbench.targets import Due
from fairbench_engines.sglang import hooks as plugin
from fairbench_load.headers import tagged
from tests.sim.sglang_seam import VERSION, Iteration, SteppedEngine, reserves_all
from tests.sim.sim_helpers import PLAIN, Home

STEP_PS = PS_PER_S // 1000  # every iteration takes this long, so that time counts iterations
STEP_S = STEP_PS / PS_PER_S
SPACE = 1 << 20  # token ids per segment key


@dataclass
class Arrival:
    """A request that arrives before iteration ``step``."""

    step: int
    prompt: tuple
    output: int
    max_new: int
    client: str = "x"
    first_ms: int | None = None  # time left until its first token is due
    end_ms: int | None = None  # time left until its last token is due
    facts: dict = field(default_factory=dict)  # its adapter and priority, by SGLang's names

    @property
    def named(self):
        """Return the prompt with its adapter, which keeps equal tokens apart in the cache."""
        adapter, (first, *others) = self.facts.get("lora_id"), self.prompt
        named = first if adapter is None else Segment(f"{adapter}|{first.key}", first.length)
        return (named, *others)

    @property
    def due(self):
        """Return the deadline, on a clock whose iterations take a millisecond."""
        at_s = self.step * STEP_S
        left = (None if ms is None else at_s + ms / 1000 for ms in (self.first_ms, self.end_ms))
        return Due(*left, None)


@dataclass
class Stream:
    """A random request stream, and the engine that will serve it.

    ``limit`` is how many waiting requests LPM still sorts. With ``full``, every output is reserved.
    """

    pool: int
    chunk: int
    max_prefill: int
    slots: int
    conservativeness: float
    limit: int
    full: bool
    arrivals: list = field(default_factory=list)


class Tokens:
    """Token ids of segments, from ``first`` on. Each key has its own range."""

    first = 0

    def __init__(self):
        self._base = {}

    def of(self, prompt):
        ids = []
        for key, length in prompt:
            key = key.rpartition("|")[2]
            base = self._base.setdefault(key, self.first + (len(self._base) + 1) * SPACE)
            ids.extend(range(base, base + length))
        return tuple(ids)


def random_stream(seed):
    """Draw shared prefixes, follow-up turns and bursts, in a pool of one of three kinds."""
    draw, clients = random.Random(seed), random.Random(f"clients {seed}")
    kind = draw.choice(["small", "small", "retracting", "retracting", "wide"])
    pool = {"small": draw.choice([120, 300, 500]), "retracting": 200, "wide": 12_000}[kind]
    stream = Stream(
        pool,
        chunk=draw.choice([8, 16, 30, 64, 10_000]),
        max_prefill=draw.choice([20, 50, 100, 10_000]),
        slots=100 if kind == "retracting" else draw.choice([2, 8, 100]),
        conservativeness=0.1 if kind == "retracting" else draw.choice([0.1, 0.3, 1.0, 1.5]),
        limit=draw.choice([3, 6, 10_000]),
        full=draw.random() < 0.1,
    )
    step = 0
    for number in range(draw.randrange(8, 40)):
        step += draw.choice([0, 0, 0, 0, 1, 2, 5, 15, draw.choice([3, 60, 200])])
        prompt = random_prompt(draw, stream.arrivals, number, pool // 3)
        output, max_new = _outputs(draw, kind)
        max_new = min(output if stream.full else max_new, pool - prompt_tokens(prompt) - 2)
        client = clients.choice("xxxy")
        stream.arrivals.append(Arrival(step, prompt, min(output, max_new), max_new, client))
    return stream


def _outputs(draw, kind):
    """Return how many tokens a request will produce, and how many it may produce."""
    if kind == "retracting":  # so small a reservation that outputs exceed the pool
        output = draw.choice([1, 40, 60, 70])
        return output, draw.choice([output, 70])
    if kind == "wide":  # around the 4,096 outputs that are reserved at most
        return draw.choice([1, 10, 50]), draw.choice([4000, 4096, 4100, 6000])
    output = draw.choice([1, 2, 10, 60])
    return output, draw.choice([output, 60])


def random_prompt(draw, earlier, number, longest):
    """Draw a follow-up turn of an earlier request or a shared prefix, then new tokens."""
    head = ()
    if earlier and draw.random() < 0.3:
        at = draw.randrange(len(earlier))
        head = (*earlier[at].prompt, Segment(f"out-{at}", earlier[at].output))
    elif draw.random() < 0.8:
        head = (Segment(draw.choice("ABC"), draw.choice([2, 10, 32, 33, 40])),)
        if draw.random() < 0.5:
            head += (Segment(head[0].key + draw.choice("xy"), draw.choice([1, 5, 20])),)
    own = draw.choice([0, 1, 3, 10, 40]) if head else draw.choice([1, 10, 33, 40])
    prompt = (*head, *([Segment(f"own-{number}", own)] if own else []))
    if prompt_tokens(prompt) > longest:
        return (Segment(f"own-{number}", draw.randint(1, min(longest, 60))),)
    return prompt


def ask_sglang(
    policy, stream, hooks=None, prepare=lambda scheduler: None, *, kind=SteppedEngine, **engine
):
    """Return SGLang's actions by iteration, with the plugin's ``hooks`` if given.

    ``prepare`` gets SGLang's scheduler, an engine of this ``kind``, before the first request.
    """
    tokens, done, clock = Tokens(), {}, 0
    engine = kind(
        policy,
        pool=stream.pool,
        chunk=stream.chunk,
        max_prefill=stream.max_prefill,
        slots=stream.slots,
        conservativeness=stream.conservativeness,
        match_limit=stream.limit,
        ignore_eos=stream.full,
        hooks=hooks,
        **engine,
    )
    waiting = list(enumerate(stream.arrivals))

    def submit_until(step):
        while waiting and waiting[0][1].step <= step:
            number, arrival = waiting.pop(0)
            output = tokens.of((Segment(f"out-{number}", arrival.output),))
            prompt = tokens.of(arrival.prompt)
            client = tagged(arrival.client, arrival.due, arrival.step * STEP_S)
            engine.submit(number, prompt, output, arrival.max_new, client, **arrival.facts)

    now = SimpleNamespace(monotonic=lambda: clock * STEP_S)
    try:
        prepare(engine.scheduler)
        while True:
            with mock.patch.object(plugin, "time", now):
                submit_until(clock)
                iteration = engine.iterate()
            if iteration is not None:
                done[clock] = iteration
                clock += 1
            elif waiting:
                clock = waiting[0][1].step
            else:
                return done
    finally:
        engine.close()


class StepProfile:
    """A timing profile with equal iterations, which records each start."""

    context_ps = 0
    longest_ps = 0
    shared_read = 1.0
    frontend = Frontend()
    pool = SimpleNamespace(host_token_ps=0)

    def __init__(self):
        self.worker = None
        self.heard = None

    def prefill_ps(self, chunks):
        for prefill in self.worker._prefills:
            number = prefill.sequence.request.request_id
            self.heard().prefills.append((number, prefill.cached, prefill.tokens))
        return STEP_PS

    def step_ps(self, chunks, sequences, context_tokens):
        self.heard().decoding = sequences
        return self.prefill_ps(chunks)

    def fixed_ps(self, size):
        self.heard().decoding = size
        return STEP_PS

    def saved_ps(self, shared_tokens):
        return 0


def retelling(base):
    """Wrap the policy to record retractions."""

    class Retelling(base):
        heard = None

        def on_retract(self, request, view, now_s):
            self.heard().retracted.append(request.request_id)
            super().on_retract(request, view, now_s)

    return Retelling


def ask_ours(name, settings, stream, cap=inf, **home):
    """Return the simulated engine's actions by iteration. Later decode steps are implied."""
    cls = local_class(name)
    return ask_ours_under(cls, make_params(name, cls.Params, settings), stream, cap, **home)


def ask_ours_under(cls, params, stream, cap=inf, draws=None, prepare=lambda worker: None, **home):
    """Run the simulated engine under a scheduler of this class, which may use ``draws``.

    ``cap`` limits the running context. ``prepare`` gets the simulated worker before the first
    request.
    """
    done, tokens, profile = {}, Tokens(), StepProfile()
    scheduler = retelling(cls)(params)
    if draws is not None:
        scheduler.prepare(Setup(shuffle=draws.shuffle))
    # The engine's own load cap needs step costs, which this profile lacks.
    with mock.patch.object(loop_module, "load_cap", return_value=LoadCap(cap)):
        home = Home(
            scheduler,
            pool=stream.pool,
            profile=profile,
            chunked_prefill_size=stream.chunk,
            max_prefill_tokens=stream.max_prefill,
            max_running_requests=stream.slots,
            schedule_conservativeness=stream.conservativeness,
            full_reservation=reserves_all(stream.full),
            **{"rules": RULES.get(VERSION, NEWEST)} | home,
        )

    def heard(back=0):
        return done.setdefault(home.clock.now_ps // STEP_PS - back, Iteration([], [], [], []))

    def evicted(prefix, count):
        heard().evicted.append((tokens.of(prefix), count))

    def finished(sequence):
        heard(1).finished.append(sequence.request.request_id)

    profile.worker, profile.heard, scheduler.heard = home.worker, heard, heard
    # times are not divided, because the profile gets steps only
    home.worker._costs = ProfileCosts(PLAIN)
    home.worker.cache.on_evict = evicted
    prepare(home.worker)
    for number, arrival in enumerate(stream.arrivals):
        tokens.of((Segment(f"out-{number}", arrival.output),))  # the same ids as in ask_sglang
        tokens.of(arrival.named)
        sent = home.send(
            arrival.named,
            arrival.output,
            max_new=arrival.max_new,
            client=arrival.client,
            at_ps=arrival.step * STEP_PS,
            on_done=finished,
        )
        sent.request = replace(
            sent.request,
            arrival_s=arrival.step * STEP_S,
            first_token_by_s=arrival.due.first_token_s,
            deadline_s=arrival.due.end_s,
            priority=arrival.facts.get("priority", 0),
        )
    with mock.patch.object(fairbench.engine.waiting_queue, "TOUCH_COUNT", stream.limit):
        home.run()
    return done


def assert_alike(theirs, ours, stream):
    """Assert that both engines did the same in every iteration."""
    for step, want in sorted(theirs.items()):
        got = ours.pop(step, None) or Iteration([], [], [], [])
        if not got.prefills and not got.decoding:  # inside a run of decode steps
            got.decoding = want.decoding
        assert vars(got) == vars(want), f"iteration {step} of {stream}"
    assert not ours
