"""Test the prefill share: virtual clocks by hand, the share of a run, and hosts that refuse it."""

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.core import PS_PER_S, Request
from fairbench.errors import UsageError
from fairbench.schedulers.params import NoParams
from fairbench.sim.run import simulate
from fairbench_load.plugin_config import LOCAL, config_from
from fairbench_rivals.local.prefill_share import PrefillTimeShare, PrefillTimeShareAuto
from fairbench_studies.stalls.table import WORKLOAD
from tests.invariants import assert_same_records

PROMPT = Request(0, "a", 0, 0, (), 1000, 10, 0.0)


class Worker:
    """A worker in which prompts and decoding always compete. Times are in seconds."""

    def __init__(self, kind=PrefillTimeShare):
        self.scheduler = kind(NoParams())
        self.now_s = 0.0

    def run(self, prefill_s, decode_s, *, left=1000):
        """Run the chosen iteration. Return whether it computed prompts."""
        prefill = not self.scheduler.decodes_first(PROMPT, left, self.now_s)
        self.iterate(prefill, prefill_s if prefill else decode_s)
        return prefill

    def iterate(self, prefill, lasts_s):
        start_s, self.now_s = self.now_s, self.now_s + lasts_s
        times = round(start_s * PS_PER_S), round(self.now_s * PS_PER_S)
        self.scheduler.on_iteration(1000 if prefill else 0, *times)


def test_decoding_goes_first_and_prefill_follows_when_its_clock_is_behind():
    worker = Worker()
    # Decoding advances its clock by 0.3 / 0.6 = 0.5, and prefill by 0.4 / 0.4 = 1.
    chosen = [worker.run(0.4, 0.3) for _ in range(7)]
    assert chosen == [False, True, False, False, True, False, False]


def test_a_long_prompt_is_followed_by_decode_steps_that_make_up_for_it():
    worker = Worker()
    worker.run(4.0, 0.18)  # the clocks of prefill and decoding: 0 and 0.3
    assert worker.run(4.0, 0.18)  # 10 and 0.3
    steps = 0
    while not worker.run(4.0, 0.18):
        steps += 1
    assert steps == 33


@pytest.mark.parametrize(("prefill_s", "decode_s"), [(1.0, 0.02), (0.05, 0.05), (0.01, 0.03)])
def test_prompts_get_two_fifths_of_the_time(prefill_s, decode_s):
    worker, spent = Worker(), {True: 0.0, False: 0.0}
    for _ in range(5000):
        start_s = worker.now_s
        spent[worker.run(prefill_s, decode_s)] += worker.now_s - start_s
    assert spent[True] / sum(spent.values()) == pytest.approx(0.4, abs=0.02)


def test_steps_without_competition_are_free():
    worker = Worker()
    worker.run(1.0, 0.6)  # decoding is ahead
    worker.iterate(prefill=False, lasts_s=9.0)  # nothing to compute, so both clocks are reset
    assert not worker.run(1.0, 0.6)


def test_the_share_follows_the_pressure():
    worker = Worker(PrefillTimeShareAuto)
    worker.iterate(prefill=True, lasts_s=1.0)
    worker.iterate(prefill=False, lasts_s=0.02)
    for _ in range(8000):  # the prompt gets older, and its pressure grows
        worker.run(1.0, 0.02)
    assert worker.scheduler.share == pytest.approx(0.8, abs=0.02)
    stalled = Worker(PrefillTimeShareAuto)
    stalled.iterate(prefill=False, lasts_s=0.01)
    stalled.iterate(prefill=True, lasts_s=5.0)
    stalled.scheduler.decodes_first(PROMPT, 10_000, stalled.now_s)
    part = 1 - 2 ** (-stalled.now_s / 2)  # this part of the way from 0.4 to 0.2
    assert stalled.scheduler.share == pytest.approx(0.4 - 0.2 * part)


def spec(local, **settings):
    flags = {"workload": str(WORKLOAD), "scenario": "s1", "engine": "sglang", "seed": 1, "dp": 1}
    flags |= {"scheduler": f"round-robin+{local}", "num_programs": 30}
    return resolve(flags, {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize("local", ["prefill-share", "prefill-share-auto"])
def test_gaps_are_shorter_than_without_a_share(local):
    usual, shared = (simulate(spec(one)).summary for one in ("fcfs", local))
    gaps = [max(one["max_gap_s"] for one in each["clients"]) for each in (usual, shared)]
    assert gaps[1] < gaps[0] / 2
    assert shared["completed"] == shared["num_requests"]


def test_step_by_step_gives_the_same_records():
    fast = simulate(spec("prefill-share-auto"))
    assert_same_records(fast, simulate(spec("prefill-share-auto", engine__step_by_step=True)))
    assert np.isfinite(fast.requests["finish_s"]).all()


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        ({"engine": "vllm"}, {}, "only the simulated sglang"),
        ({"backend": {"kind": "sglang"}, "model": "models/tiny"}, {}, "only the simulated sglang"),
        ({}, {"engine.enable_mixed_chunk": True}, "leave engine.enable_mixed_chunk out"),
    ],
)
def test_other_engines_and_mixed_chunks_are_refused(flags, settings, message):
    flags = {"workload": "chat", "scheduler": "round-robin+prefill-share", **flags}
    with pytest.raises(UsageError, match=message):
        resolve(flags, settings)


def test_servers_and_gateways_refuse_the_share():
    with pytest.raises(UsageError, match="only the simulated SGLang"):
        config_from({LOCAL: "prefill-share"})
    with pytest.raises(UsageError, match="use --local prefill-share"):
        simulate(resolve({"workload": "chat", "gateway": "prefill-share"}, {}))
