"""Test every local scheduler in SGLang 0.5.23's own scheduler, through the plugin.

The same scheduler and random streams run in the simulated engine, and every iteration must agree.
"""

import random
from collections import Counter
from math import inf
from unittest import mock
from zlib import crc32

import pytest

import fairbench_engines.sglang.hooks as hooks_module
from fairbench.schedulers.base import Preempt, Setup
from fairbench.schedulers.local.edf import EDF
from fairbench.schedulers.local.fcfs import FCFS
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.views import KeptView
from fairbench_load.plugin_config import plugin_config
from tests.sim.sglang_seam import VERSION, why_absent
from tests.sim.sglang_streams import (
    ask_ours,
    ask_ours_under,
    ask_sglang,
    assert_alike,
    random_stream,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

SCHEDULERS = {
    "fcfs": {},
    "lpm": {},
    "lpm-limited": {"lpm.queue_limit": 3},
    "vtc": {},
    "vtc-predict": {"vtc-predict.predictor": "average"},
    "lcf": {},
    "preble-groups": {},
    "preble-groups-skip": {"preble-groups.no_room": "skip"},
    "dlpm": {"dlpm.quantum": 30},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
    "dlpm-recompute": {"dlpm.quantum": 30, "dlpm.charge_recompute": True},
}
CAPPED = ["vtc", "dlpm-skip"]  # these also run under a load cap


@pytest.mark.parametrize(
    ("case", "cap"), [*((case, inf) for case in SCHEDULERS), *((case, 300) for case in CAPPED)]
)
def test_a_scheduler_admits_the_same_requests_in_both_hosts(case, cap):
    settings = SCHEDULERS[case]
    name = next(iter(settings), case).split(".")[0]
    seen = Counter()
    for seed in range(12):
        stream = random_stream(seed)
        hooks = Hooks(plugin_config(name, settings), VERSION)
        hooks.home.cap.most_tokens = cap
        theirs = ask_sglang("fcfs", stream, hooks)
        assert_alike(theirs, ask_ours(name, settings, stream, cap), stream)
        assert hooks.home.idle
        for done in theirs.values():
            seen["retracted"] += len(done.retracted)
            seen["passes"] += bool(done.prefills)
        seen["recomputed"] += hooks.home.ledger.total("recomputed_tokens")
    assert min(seen["retracted"], seen["recomputed"]) > 0
    assert seen["passes"] > 200


@pytest.mark.parametrize("tree", ["radix", "rust", "python"])
@pytest.mark.parametrize("case", ["lpm", "lpm-limited", "dlpm-skip"])
def test_kept_matches_decide_like_new_matches_in_every_pass(case, tree):
    """The test covers each of SGLang's trees. Evictions are compared in the first."""
    settings = SCHEDULERS[case]
    name = next(iter(settings), case).split(".")[0]
    for seed in range(12):
        stream = random_stream(seed)
        kept = Hooks(plugin_config(name, settings), VERSION)
        done = ask_sglang("fcfs", stream, kept, tree=tree)
        assert isinstance(kept.home.view, KeptView)
        with mock.patch.object(hooks_module, "kept_tree", return_value=None):
            asked = Hooks(plugin_config(name, settings), VERSION)
            assert ask_sglang("fcfs", stream, asked, tree=tree) == done
        assert not isinstance(asked.home.view, KeptView)


class Displacing(FCFS):
    """A scheduler that preempts running requests at random for one that does not fit.

    A request loses its memory at most three times. ``said`` records each answer, and whether it was
    true.
    """

    preempts = True

    def __init__(self, params):
        super().__init__(params)
        self.lost, self.said = Counter(), []

    def select(self, view, now_s):
        for request in view.queue_order():
            if (yield request):
                continue
            running = [one.request for one in view.running]
            gone = {one for one in running if self.lost[one] < 3 and toss(one, request, len(view))}
            told = view.running.would_fit(request, gone)
            if not told or not gone:
                return
            for one in running:
                if one in gone:
                    assert (yield Preempt(one))
                    self.lost[one] += 1
            found = yield request
            self.said.append((told, found, len(gone)))
            if not found:
                return

    def retraction_order(self, running, now_s):
        requests = [one.request for one in running]
        return sorted(requests, key=lambda one: crc32(b"%d" % one.request_id))


def toss(one, request, waiting):
    return crc32(b"%d %d %d" % (one.request_id, request.request_id, waiting)) % 3 == 0


def hooked(scheduler):
    """Return hooks around a scheduler that is in no registry and knows no costs."""
    hooks = Hooks(plugin_config("fcfs", {}), VERSION)
    hooks.home.scheduler = scheduler
    scheduler.prepare(Setup())
    return hooks


@pytest.mark.parametrize("cap", [inf, 300])
def test_preemptions_and_retractions_are_the_same_in_both_hosts(cap):
    """The freed tokens agree, too: ``would_fit`` is asked in both, and always true in SGLang."""
    seen = Counter()
    for seed in range(30):
        stream = random_stream(seed)
        hooks = hooked(Displacing(FCFS.Params()))
        hooks.home.cap.most_tokens = cap
        theirs = ask_sglang("fcfs", stream, hooks)
        assert_alike(theirs, ask_ours_under(Displacing, FCFS.Params(), stream, cap), stream)
        assert hooks.home.idle
        assert sum(len(one.finished) for one in theirs.values()) == len(stream.arrivals)
        said = hooks.home.scheduler.said
        assert all(found for _, found, _ in said)
        seen["preempted"] += sum(number for *_, number in said)
        seen["at once"] += sum(number > 1 for *_, number in said)
        seen["retracted"] += sum(len(one.retracted) for one in theirs.values())
        seen["recomputed"] += hooks.home.ledger.total("recomputed_tokens")
    assert min(seen["preempted"], seen["at once"]) > 15
    assert seen["retracted"] > seen["preempted"]
    assert seen["recomputed"] > 0


def with_deadlines(seed):
    """Return the stream. A third is urgent, the rest has late deadlines or none."""
    stream, draw = random_stream(seed), random.Random(f"due {seed}")
    for arrival in stream.arrivals:
        if (kind := draw.choice(["first", "end", "none"])) == "first":
            arrival.first_ms = draw.choice([5, 30, 100])
        elif kind == "end":
            arrival.end_ms = draw.choice([100, 1000, 5000])
    return stream


@pytest.mark.parametrize("progress", [0, 16])
def test_edf_preempts_the_same_requests_in_both_hosts(progress):
    seen, params = Counter(), EDF.Params(progress=progress)
    for seed in range(30):
        stream = with_deadlines(seed)
        hooks = hooked(EDF(params))
        theirs = ask_sglang("fcfs", stream, hooks)
        assert_alike(theirs, ask_ours_under(EDF, params, stream), stream)
        assert hooks.home.idle
        assert sum(len(one.finished) for one in theirs.values()) == len(stream.arrivals)
        for done in theirs.values():
            seen["lost while others came"] += bool(done.retracted and done.prefills)
        seen["recomputed"] += hooks.home.ledger.total("recomputed_tokens")
    assert min(seen.values()) > 10
