"""A running SGLang server, whose radix tree is the Rust one, against our engine.

A large request blocks the pool until all others wait. From then on what SGLang admits depends on
its queue and cache only, not on time: batch by batch it has to be what our engine admits.
"""

import random
import urllib.request
from collections import defaultdict

import pytest
from sglang_cpu_client import Sent, run_bursts
from sglang_cpu_server import sglang_server, why_absent
from sglang_streams import STEP_PS, StepProfile
from sim_helpers import Home

from fairbench.core import Segment
from fairbench.live.plugins.sglang.config import plugin_environment
from fairbench.schedulers.registry import build_local

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

POOL, CHUNK, SLOTS, CONSERVATIVENESS = 4000, 512, 6, 1.4
BLOCKER, BLOCKER_OUTPUT = 3000, 900
REQUESTS, OUTPUT = 90, 40
EARLIER_PASSES = 2  # of the server: its own warm-up request, and the one that asks for its health
FLAGS = (
    f"--max-total-tokens={POOL}",
    f"--chunked-prefill-size={CHUNK}",
    f"--max-running-requests={SLOTS}",
    f"--schedule-conservativeness={CONSERVATIVENESS}",
    "--disable-overlap-schedule",
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
    """A blocker, then requests over eight documents; some share more than the document."""
    draw = random.Random(2)
    made = [("x", (Segment("blocker", BLOCKER),))]
    for number in range(REQUESTS):
        document = draw.choice("ABCDEFGH")
        head = (Segment(document, draw.choice([250, 300])),)
        if draw.random() < 0.5:
            head = (Segment(document, 300), Segment(document + draw.choice("pq"), 60))
        client = draw.choice("xxxy")
        made.append((client, (*head, Segment(f"own-{number}", draw.randint(160, 260)))))
    return made


def batches(entered):
    """Requests admitted together, in order: ``entered`` is request -> when."""
    by_time = defaultdict(set)
    for number, when in entered.items():
        by_time[when].add(number)
    return [by_time[when] for when in sorted(by_time)]


def ask_server(url, made):
    """Which requests SGLang admitted together, their cached tokens, and how they arrived."""
    words = Words()
    lengths = [BLOCKER_OUTPUT] + [OUTPUT] * REQUESTS
    sent = [
        Sent(client, words.of(prompt), output)
        for (client, prompt), output in zip(made, lengths, strict=True)
    ]
    run_bursts(url, *((0.3 + 0.01 * n if n else 0.0, [one]) for n, one in enumerate(sent)))
    blocker, *others = sent
    received = {n: one.meta["request_received_ts"] for n, one in enumerate(sent)}
    entered = {n: one.meta["forward_entry_time"] for n, one in enumerate(sent)}
    assert max(received.values()) < blocker.meta["request_finished_ts"], "the blocker was too short"
    assert min(list(entered.values())[1:]) > max(received.values())
    assert all(one.meta["num_retractions"] == 0 for one in others)
    return batches(entered), {n: one.cached for n, one in enumerate(sent)}, received


class FirstPrefills:
    """In the place of an Iteration: when each prefill began, and with how many cached tokens."""

    def __init__(self, clock):
        self._clock = clock
        self.prefills = self
        self.began, self.cached = {}, {}

    def append(self, prefill):
        number, cached, _ = prefill
        self.began.setdefault(number, self._clock.now_ps)
        self.cached.setdefault(number, cached)


def ask_simulator(local, settings, made, arrival):
    """What our engine admits together, and the cached tokens."""
    profile = StepProfile()
    home = Home(
        build_local(local, settings),
        pool=POOL,
        profile=profile,
        chunked_prefill_size=CHUNK,
        max_running_requests=SLOTS,
        schedule_conservativeness=CONSERVATIVENESS,
    )
    home.worker.waiting._unmatched_passes = EARLIER_PASSES  # every 32nd touches the queue's head
    first = FirstPrefills(home.clock)
    profile.worker, profile.heard = home.worker, lambda: first
    order = sorted(arrival, key=arrival.get)
    for place, number in enumerate(order):
        client, prompt = made[number]
        output = BLOCKER_OUTPUT if number == 0 else OUTPUT
        at_ps = 0 if number == 0 else (100 + place) * STEP_PS
        home.send(prompt, output, client=client, at_ps=at_ps)
    home.run()
    began = {order[place]: when for place, when in first.began.items()}
    return batches(began), {order[place]: cached for place, cached in first.cached.items()}


@pytest.mark.parametrize(
    ("local", "settings", "flags", "environment"),
    [
        ("fcfs", {}, ("--schedule-policy=fcfs",), {}),
        ("lpm", {}, ("--schedule-policy=lpm",), {}),
        ("dlpm", {"dlpm.quantum": 500}, (), plugin_environment("dlpm", {"dlpm.quantum": 500})),
    ],
    ids=["stock-fcfs", "stock-lpm", "our-dlpm"],
)
def test_the_same_batches_and_the_same_hits(local, settings, flags, environment, tmp_path):
    made = prompts()
    with sglang_server(tmp_path, *FLAGS, *flags, environment=environment) as server:
        urllib.request.urlopen(f"{server.url}/flush_cache", data=b"").close()
        theirs, hits, arrival = ask_server(server.url, made)
    ours, our_hits = ask_simulator(local, settings, made, arrival)
    assert ours == theirs
    assert our_hits == hits
    assert sum(hits.values()) > 5000
    assert local == "fcfs" or [n for batch in theirs for n in sorted(batch)] != sorted(hits)
