"""Test SGLang's overlap schedule under the plugin: decisions, steps and charges of its classes.

With overlap schedule, SGLang plans a batch while the previous one runs.
"""

from collections import Counter

import pytest

from fairbench.core import Segment
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.release import SUPPORTED
from fairbench_load.plugin_config import plugin_config
from tests.sim.sglang_seam import VERSION, OverlapEngine, SteppedEngine, why_absent
from tests.sim.sglang_streams import Arrival, Stream, ask_sglang, random_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

CASES = {
    "fcfs": {},
    "lpm": {},
    "vtc": {},
    "vtc-fair": {"vtc.preempt": "fair"},
    "dlpm": {"dlpm.quantum": 30},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
    "preble-groups": {},
    "lcf": {},
    "edf": {},
}


def hooks_of(case):
    settings = CASES[case]
    return Hooks(plugin_config(next(iter(settings), case).split(".")[0], settings), VERSION)


def full_batch(requests, tokens):
    """Return a stream of requests that run together and produce ``tokens`` tokens in all.

    The pool has room for every request, and every output ends at its limit.
    """
    stream = Stream(100_000, 8192, 16_384, requests, 1.0, 10_000, full=False)
    for number in range(requests):
        output = tokens // requests + (number < tokens % requests)
        prompt = (Segment(f"own-{number}", 40),)
        stream.arrivals.append(Arrival(0, prompt, output, output, "xxxy"[number % 4]))
    return stream


def steps_of(stream, hooks, kind):
    """Return the number of steps on the GPU, and the decoded tokens."""
    done = ask_sglang("fcfs", stream, hooks, kind=kind).values()
    ran = [one for one in done if one.prefills or one.decoding]
    return len(ran), sum(one.decoding for one in ran)


@pytest.mark.parametrize("kind", [SteppedEngine, OverlapEngine])
@pytest.mark.parametrize("case", CASES)
def test_a_full_batch_takes_as_many_steps_as_without_the_plugin(case, kind):
    """48 requests run, and 16,000 tokens take one step of prompts and 333 steps of decoding.

    With overlap schedule, releases before 0.5.23 decode once more after the last token.
    """
    stock = steps_of(full_batch(48, 16_000), None, kind)
    assert steps_of(full_batch(48, 16_000), hooks_of(case), kind) == stock
    late = kind is OverlapEngine and VERSION in SUPPORTED[:-1]
    assert stock == ((335, 16_000) if late else (334, 16_000 - 48))


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_the_plugin_decides_as_sglang_does_while_a_batch_runs(policy):
    seen = Counter()
    for seed in range(12):
        stream = random_stream(seed)
        stream.limit = 10_000
        hooks = hooks_of(policy)
        stock = ask_sglang(policy, stream, kind=OverlapEngine)
        assert ask_sglang("fcfs", stream, hooks, kind=OverlapEngine) == stock, seed
        assert hooks.home.idle
        seen["retracted"] += sum(len(one.retracted) for one in stock.values())
    assert seen["retracted"] > 2


@pytest.mark.parametrize("case", CASES)
def test_each_token_is_charged_once_while_the_next_batch_is_planned(case):
    """This includes the tokens of requests that lose their memory while their batch runs."""
    for seed in range(6):
        stream = random_stream(seed)
        hooks = hooks_of(case)
        done = ask_sglang("fcfs", stream, hooks, kind=OverlapEngine)
        finished = sorted(number for one in done.values() for number in one.finished)
        assert finished == list(range(len(stream.arrivals)))
        outputs = Counter()
        for arrival in stream.arrivals:
            outputs[arrival.client] += arrival.output
        charged = {client: of["output_tokens"] for client, of in hooks.home.ledger.items()}
        assert charged == outputs
        assert hooks.home.idle


@pytest.mark.parametrize(("kind", "late"), [(SteppedEngine, 0), (OverlapEngine, 1)])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_an_output_token_is_charged_one_step_late(kind, late, tokens):
    """``seen`` has the tokens that are charged before each plan."""
    hooks, seen = hooks_of("vtc"), []

    def listen(scheduler):
        plan = scheduler.get_next_batch_to_run

        def planned(*arguments, **named):
            seen.append(hooks.home.ledger.total("output_tokens"))
            return plan(*arguments, **named)

        scheduler.get_next_batch_to_run = planned

    stream = Stream(1000, 512, 512, 4, 1.0, 10_000, full=False)
    stream.arrivals.append(Arrival(0, (Segment("own", 20),), tokens, tokens))
    ask_sglang("fcfs", stream, hooks, listen, kind=kind)
    assert seen[: tokens + 1] == [max(0, step - late) for step in range(tokens + 1)]
    assert hooks.home.ledger.total("output_tokens") == tokens
