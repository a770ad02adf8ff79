"""Every local scheduler in SGLang 0.5.23's own scheduler, by way of the plugin, and in our engine.

The same object, the same random streams: both have to do the same in every iteration.
"""

from collections import Counter

import pytest
from sglang_seam import VERSION, why_absent
from sglang_streams import ask_ours, ask_sglang, assert_alike, random_stream

from fairbench.live.plugins.config import plugin_config
from fairbench.live.plugins.sglang.hooks import Hooks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

SCHEDULERS = {
    "fcfs": {},
    "lpm": {},
    "lpm-limited": {"lpm.queue_limit": 3},
    "vtc": {},
    "vtc-artifact": {"vtc.form": "artifact"},
    "vtc-predict": {"vtc-predict.predictor": "average"},
    "lcf": {},
    "preble-groups": {},
    "preble-groups-skip": {"preble-groups.no_room": "skip"},
    "dlpm": {"dlpm.quantum": 30},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
    "dlpm-recompute": {"dlpm.quantum": 30, "dlpm.charge_recompute": True},
}


@pytest.mark.parametrize("case", SCHEDULERS)
def test_a_scheduler_admits_alike_in_both_homes(case):
    settings = SCHEDULERS[case]
    name = next(iter(settings), case).split(".")[0]
    seen = Counter()
    for seed in range(30):
        stream = random_stream(seed)
        hooks = Hooks(plugin_config(name, settings), VERSION)
        theirs = ask_sglang("fcfs", stream, hooks)
        assert_alike(theirs, ask_ours(name, settings, stream), stream)
        assert hooks.home.idle
        for done in theirs.values():
            seen["retracted"] += len(done.retracted)
            seen["passes"] += bool(done.prefills)
        seen["recomputed"] += hooks.home.ledger.total("recomputed_tokens")
    assert min(seen["retracted"], seen["recomputed"]) > 0
    assert seen["passes"] > 500
