"""Test a running SGLang server, whose radix tree is the Rust one, against the simulated engine.

A large request fills the pool until all others wait. They arrive one by one, so that the only pass
made meanwhile finds the first one alone. After that, SGLang's admissions depend only on its queue
and cache, and not on time. They must equal the simulated ones batch by batch.
"""

import random
from collections import defaultdict

import pytest

from fairbench.core import Segment
from fairbench.schedulers.registry import build_local
from fairbench_load.plugin_config import plugin_config
from tests.sglang_cpu.sglang_cpu_client import Sent, run_behind
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent
from tests.sim.sglang_streams import STEP_PS, StepProfile
from tests.sim.sim_helpers import Home

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

POOL, CHUNK, SLOTS, CONSERVATIVENESS = 4000, 512, 6, 1.4
BLOCKER, BLOCKER_OUTPUT = 1000, 2900
BLOCKER_LEAST = 600  # by then, the reserved fraction of outputs has sunk to its minimum
BLOCKED_STEP = 2  # by then, the simulated engine has computed the blocker's prompt
REQUESTS, OUTPUT = 90, 40
EARLIER_PASSES = 1  # passes of the server itself, for its warm-up request
FLAGS = (
    f"--max-total-tokens={POOL}",
    f"--chunked-prefill-size={CHUNK}",
    f"--max-running-requests={SLOTS}",
    f"--schedule-conservativeness={CONSERVATIVENESS}",
    "--disable-overlap-schedule",
    "--load-snapshot-publish-interval=1",
)


class Words:
    """Random token ids for segments, no two of which begin alike."""

    def __init__(self):
        self._draw = random.Random(1)
        self._ids = {}

    def of(self, prompt):
        ids = []
        for key, length in prompt:
            known = self._ids.setdefault(key, [3 + len(self._ids)])
            known.extend(self._draw.randrange(3, 2048) for _ in range(length - len(known)))
            ids.extend(known[:length])
        return ids


def prompts():
    """Return a blocker, then requests over eight documents. Some share more than the document."""
    draw = random.Random(2)
    made = [("blocker", (Segment("blocker", BLOCKER),))]
    for number in range(REQUESTS):
        document = draw.choice("ABCDEFGH")
        head = (Segment(document, draw.choice([250, 300])),)
        if draw.random() < 0.5:
            head = (Segment(document, 300), Segment(document + draw.choice("pq"), 60))
        client = draw.choice("xxxy")
        made.append((client, (*head, Segment(f"own-{number}", draw.randint(160, 260)))))
    return made


def batches(entered):
    """Return the requests admitted together, in order. ``entered`` is request -> time."""
    by_time = defaultdict(set)
    for number, when in entered.items():
        by_time[when].add(number)
    return [by_time[when] for when in sorted(by_time)]


def ask_server(url, made):
    """Return SGLang's batches, the cached tokens, and the blocker's output."""
    words = Words()
    lengths = [BLOCKER_OUTPUT] + [OUTPUT] * REQUESTS
    sent = [
        Sent(client, words.of(prompt), output)
        for (client, prompt), output in zip(made, lengths, strict=True)
    ]
    blocker, *others = sent
    assert run_behind({url: blocker}, url, [[one] for one in others], BLOCKER_LEAST)
    assert all(one.meta["num_retractions"] == 0 for one in sent)
    assert all(one.meta["completion_tokens"] == OUTPUT for one in others)
    entered = {n: one.meta["forward_entry_time"] for n, one in enumerate(sent)}
    hits = {n: one.cached for n, one in enumerate(sent)}
    return batches(entered), hits, blocker.meta["completion_tokens"]


class FirstPrefills:
    """A recorder of each prefill's start and its cached tokens, in place of an Iteration."""

    def __init__(self, clock):
        self._clock = clock
        self.prefills = self
        self.began, self.cached = {}, {}

    def append(self, prefill):
        number, cached, _ = prefill
        self.began.setdefault(number, self._clock.now_ps)
        self.cached.setdefault(number, cached)


def ask_simulator(local, settings, made, blocker_output):
    """Return the simulated engine's batches and the cached tokens."""
    profile = StepProfile()
    home = Home(
        build_local(local, settings),
        pool=POOL,
        profile=profile,
        chunked_prefill_size=CHUNK,
        max_running_requests=SLOTS,
        schedule_conservativeness=CONSERVATIVENESS,
        clients=("blocker", "x", "y"),
    )
    # every 32nd pass touches the queue's head
    home.worker.waiting._unmatched_passes = EARLIER_PASSES
    first = FirstPrefills(home.clock)
    profile.worker, profile.heard = home.worker, lambda: first
    for number, (client, prompt) in enumerate(made):
        allowed, output = (OUTPUT, OUTPUT) if number else (BLOCKER_OUTPUT, blocker_output)
        at_ps = (BLOCKED_STEP + number) * STEP_PS if number else 0
        home.send(prompt, output, max_new=allowed, client=client, at_ps=at_ps)
    home.run()
    return batches(first.began), first.cached


@pytest.mark.parametrize(
    ("local", "settings", "flags", "environment"),
    [
        ("fcfs", {}, ("--schedule-policy=fcfs",), {}),
        ("lpm", {}, ("--schedule-policy=lpm",), {}),
        (
            "dlpm",
            {"dlpm.quantum": 500},
            (),
            plugin_config("dlpm", {"dlpm.quantum": 500}).environment(),
        ),
    ],
    ids=["stock-fcfs", "stock-lpm", "our-dlpm"],
)
def test_batches_and_cached_tokens_are_the_same(local, settings, flags, environment, tmp_path):
    made = prompts()
    with sglang_server(tmp_path, *FLAGS, *flags, environment=environment) as server:
        server.flush()
        theirs, hits, blocker_output = ask_server(server.url, made)
    ours, our_hits = ask_simulator(local, settings, made, blocker_output)
    assert ours == theirs
    assert our_hits == hits
    assert sum(hits.values()) > 5000
    assert local == "fcfs" or [n for batch in theirs for n in sorted(batch)] != sorted(hits)
