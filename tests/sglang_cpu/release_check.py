"""Checks the SGLang that is first on the path; ``release.sh`` calls it, with a seed count.

Streams are played only where the seam of the tests fits the release; elsewhere the hooked functions
alone are checked, on the imported classes.
"""

import sys

from sglang_seam import VERSION, sglang, why_absent
from sglang_streams import ask_ours, ask_sglang, assert_alike, random_stream

from fairbench.live.plugins.config import plugin_config
from fairbench.live.plugins.sglang.hooks import Hooks
from fairbench.live.plugins.sglang.release import check_target
from release_record import record, seen_in

CASES = {
    "fcfs": {},
    "lpm": {},
    "vtc": {},
    "dlpm": {"dlpm.quantum": 30},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
    "preble-groups": {},
}


def play(case, seed):
    """Whether a stream was served with nothing lost, and whether the simulator did the same."""
    settings, stream = CASES[case], random_stream(seed)
    name = next(iter(settings), case).split(".")[0]
    hooks = Hooks(plugin_config(name, settings), VERSION)
    theirs = ask_sglang("fcfs", stream, hooks)
    finished = [number for done in theirs.values() for number in done.finished]
    ledger = hooks.home.ledger
    served = (
        sorted(finished) == list(range(len(stream.arrivals)))
        and hooks.home.idle
        and ledger.total("finished") == ledger.total("arrivals") == len(stream.arrivals)
        and ledger.total("output_tokens") == sum(one.output for one in stream.arrivals)
    )
    try:
        assert_alike(theirs, ask_ours(name, settings, stream), stream)
    except AssertionError:
        return served, False
    return served, True


def main(seeds):
    """Check all hooked functions, then the streams; print and record what was seen."""
    sglang()
    targets = Hooks(plugin_config("fcfs", {}), VERSION).by_target()
    for target, hook in targets.items():
        check_target(target, hook.expected)
    row = {"release": VERSION, "targets": len(targets)}
    if not why_absent():
        row |= seen_in(CASES, range(seeds), play)
    print(row)
    record("SGLang", row)
    sys.exit(row.get("served") != row.get("streams"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
