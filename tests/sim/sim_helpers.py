"""A simulated worker to which tests send requests, and small experiments."""

from fairbench.config.resolve import resolve
from fairbench.core import PS_PER_S, Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.engine.sglang_variants import replica_class
from fairbench.hardware.engine_params import EngineLimits
from fairbench.hardware.timing import KVPool, TimingProfile
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.lpm import LPM
from tests.worker_invariants import watch

US = PS_PER_S // 10**6

# An iteration takes 1,000 us, and 10 us per token in the linear layers. Nothing else costs time.
PLAIN = TimingProfile(
    "plain",
    {"c0": 1, "c_w": 0, "c_T": 0.01, "p": 1, "c_A": 0, "c_K": 0, "c_nd": 0, "c_npf": 0},
    0.0,
    "made up",
    KVPool(1, 0, 1, 0.5, 100),
)


def prompt(*parts):
    """Return segments of alternating keys and lengths, as in ``prompt("a", 10, "b", 5)``."""
    return tuple(Segment(key, length) for key, length in zip(parts[::2], parts[1::2], strict=True))


class Spy(FCFS):
    """FCFS that records the engine's calls."""

    def __init__(self):
        super().__init__(FCFS.Params())
        self.passes = 0
        self.admissions = []
        self.tokens = 0
        self.retracted = []

    def select(self, view, now_s):
        self.passes += 1
        return super().select(view, now_s)

    def on_admitted(self, request, extend_tokens, recompute):
        self.admissions.append((request.request_id, extend_tokens, recompute))

    def on_tokens(self, client, tokens):
        self.tokens += tokens

    def on_retract(self, request, view, now_s):
        self.retracted.append(request.request_id)


class SpyLPM(LPM):
    """LPM that records its admissions."""

    def __init__(self):
        super().__init__(LPM.Params())
        self.admissions = []

    def on_admitted(self, request, extend_tokens, recompute):
        self.admissions.append((request.request_id, extend_tokens, recompute))


class Home:
    """A worker on its own clock, checked after every event."""

    def __init__(
        self,
        scheduler=None,
        *,
        pool=1000,
        profile=PLAIN,
        clients=("x", "y"),
        cache_of=None,
        **limits,
    ):
        limits = {
            "chunked_prefill_size": 8192,
            "max_prefill_tokens": 16384,
            "max_running_requests": 2048,
        } | limits
        self.clock = Clock()
        self.log = ServiceLog(list(clients))
        self.scheduler = scheduler or Spy()
        self.evicted = []
        self.sent = []
        if cache_of is None:
            cache = KVCache(pool, lambda prefix, tokens: self.evicted.append((prefix, tokens)))
        else:
            cache = cache_of(self.clock)
        limits = EngineLimits(pool, **limits)
        parts = WorkerParts(0, self.clock, self.scheduler, profile, self.log)
        self.worker = replica_class(limits)(parts, limits, cache)
        watch(self.clock, [self.worker])

    def send(self, parts, output, *, max_new=None, at_ps=0, client="x", on_done=None):
        """Send a request that arrives at ``at_ps``. ``parts`` is a length, or a prompt."""
        number = len(self.sent)
        text = prompt(f"own-{number}", parts) if isinstance(parts, int) else parts
        request = Request(number, client, 0, 0, text, prompt_tokens(text), max_new or output)
        made = Segment(f"out-{number}", output)
        sequence = Sequence(request, made, at_ps, on_done or (lambda _: None))
        self.sent.append(sequence)
        self.clock.at(at_ps, ARRIVE, 0, lambda: self.worker.submit(sequence))
        return sequence

    def run(self, until_ps=None):
        """Run all events, or those before ``until_ps``."""
        while (next_ps := self.clock.next_ps()) is not None:
            if until_ps is not None and next_ps > until_ps:
                break
            self.clock.step()
        return self

    def rows(self):
        """Return the service log as dicts."""
        columns = {name: self.log.column(name).tolist() for name in self.log.names}
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def prefills(self):
        """Return (start, sequences, tokens computed) of every prefill iteration, in us."""
        return [
            (
                row["start_ps"] // US,
                row["batch_size"],
                row["extend_tokens"] + row["recompute_tokens"],
            )
            for row in self.rows()
            if not row["context_tokens"]
        ]

    def decodes(self):
        """Return (start, steps, sequences) of every decode stretch, in us."""
        return [
            (row["start_ps"] // US, row["steps"], row["batch_size"])
            for row in self.rows()
            if row["context_tokens"]
        ]


def small_spec(scheduler, workload, *, dp=1, pool=0, seed=0, flags=None, **settings):
    """Return a spec that runs in a fraction of a second. ``settings`` have ``__`` for a dot."""
    given = {"scheduler": scheduler, "workload": workload, "dp": dp, "seed": seed}
    given |= {"num_programs": 2, "request_rate": 2.0 * dp} | (flags or {})
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve(given, {"engine.max_total_tokens": pool} | chosen)
