"""Check the SGLang that is first on the path; ``release.sh`` calls this with a seed count."""

import sys

from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.release import check_target
from fairbench_load.plugin_config import plugin_config
from tests.release_record import checked, record, seen_in
from tests.sim.sglang_seam import VERSION, sglang
from tests.sim.sglang_streams import ask_ours, ask_sglang, assert_alike, random_stream

CASES = {
    "fcfs": {},
    "lpm": {},
    "vtc": {},
    "dlpm": {"dlpm.quantum": 30},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
    "preble-groups": {},
}
SORTED = 128  # waiting requests that LPM still sorts, fixed in SGLang's code before 0.5.22


def play(case, seed):
    """Tell whether a stream was served without loss, and whether the simulator did the same."""
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


def as_stock(policy, seed):
    """Tell whether the plugin under one of SGLang's policies decides like this SGLang alone."""
    stream = random_stream(seed)
    stream.limit = SORTED
    settings = {"lpm.queue_limit": SORTED} if policy == "lpm" else {}
    hooks = Hooks(plugin_config(policy, settings), VERSION)
    return ask_sglang("fcfs", stream, hooks) == ask_sglang(policy, stream)


def main(seeds):
    """Check all hooked functions, then the streams. Print and record the results."""
    sglang()
    targets = Hooks(plugin_config("fcfs", {}), VERSION).by_target()
    for target, hook in targets.items():
        check_target(target, hook.expected)
    row = {"release": VERSION, "targets": len(targets), **seen_in(CASES, range(seeds), play)}
    stock = [as_stock(policy, seed) for policy in ("fcfs", "lpm") for seed in range(seeds)]
    row |= {"stock_streams": len(stock), "as_stock": sum(stock), **checked("sglang")}
    print(row)
    record("SGLang", row)
    sys.exit(row["served"] != row["streams"] or not all(stock))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
