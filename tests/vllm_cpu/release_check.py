"""Check the vLLM that is first on the path; ``release.sh`` calls this with a seed count."""

import sys

from tests.release_record import checked, record, seen_in
from tests.sim.vllm_eviction_streams import POLICIES, compare
from tests.sim.vllm_plugin_streams import SCHEDULERS, SETTINGS, ask_ours, ask_plugin
from tests.sim.vllm_seam import VERSION
from tests.sim.vllm_streams import ask_vllm, assert_alike, random_stream

OVERRIDDEN = ("schedule", "_preempt_request", "update_from_output", "_free_request")


def play(local, seed):
    """Tell whether a stream was served without loss, and whether the simulator did the same."""
    settings, stream = SETTINGS.get(local, {}), random_stream(seed)
    stream.policy = "fcfs"
    theirs = ask_plugin(stream, local, settings)
    finished = sorted(number for step in theirs.values() for number in step.finished)
    served = finished == list(range(len(stream.arrivals)))
    try:
        assert_alike(theirs, ask_ours(stream, local, settings), stream)
    except AssertionError:
        return served, False
    return served, True


def as_stock(seed):
    """Tell whether the plugin under FCFS decides like this vLLM alone."""
    stream = random_stream(seed)
    stream.policy = "fcfs"
    return ask_plugin(stream, "fcfs", {}) == ask_vllm(stream)


def evicts_as_simulated(seeds):
    """Tell whether every eviction policy overwrites the same blocks as in the simulator."""
    cases = [(seed, policy) for policy in POLICIES for seed in range(seeds)]
    pairs = [compare(seed, policy, "lpm") for seed, policy in cases]
    print(f"{sum(len(theirs) for theirs, _ in pairs)} evictions under {', '.join(POLICIES)}")
    return all(theirs == ours for theirs, ours in pairs)


def main(seeds):
    """Play the streams. Print and record the results."""
    from tests.sim.vllm_seam import vllm

    scheduler = vllm().scheduler.Scheduler
    targets = sum(hasattr(scheduler, name) for name in OVERRIDDEN)
    row = {"release": VERSION, "targets": targets, **seen_in(SCHEDULERS, range(seeds), play)}
    stock = [as_stock(seed) for seed in range(seeds)]
    row |= {"stock_streams": len(stock), "as_stock": sum(stock), **checked("vllm")}
    print(row)
    record("vLLM", row)
    sys.exit(row["served"] != row["streams"] or not all(stock) or not evicts_as_simulated(seeds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
