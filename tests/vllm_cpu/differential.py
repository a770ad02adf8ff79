"""Compare the simulated vLLM engine with vLLM's scheduler on many random streams.

Run in the environment of install.sh: ``python -m tests.vllm_cpu.differential [--async] [--plugin]
[FIRST] [STREAMS]``. With --async, both schedule asynchronously. With --plugin, the streams have
three clients, and vLLM's scheduler contains fairbench's. With --evictions, it also evicts by
fairbench's policies, and every overwritten block is compared.
"""

import sys
from collections import Counter

from tests.sim.vllm_eviction_streams import POLICIES, compare
from tests.sim.vllm_plugin_streams import SCHEDULERS, compare_plugin
from tests.sim.vllm_seam import VERSION, why_absent
from tests.sim.vllm_streams import ask_ours, ask_vllm, assert_alike, random_stream


def main(first: int, streams: int, *, asynchronous: bool) -> None:
    """Run all streams. Stop with an AssertionError at the first difference."""
    seen = Counter()
    for seed in range(first, first + streams):
        stream = random_stream(seed, asynchronous)
        theirs = ask_vllm(stream)
        assert_alike(theirs, ask_ours(stream), stream)
        seen[f"streams under {stream.policy}"] += 1
        seen["requests"] += len(stream.arrivals)
        for done in theirs.values():
            seen["steps"] += 1
            seen["scheduled tokens"] += sum(done.scheduled.values())
            seen["steps with prefill and decode"] += len(set(done.scheduled.values())) > 1
            seen["admissions"] += len(done.hits)
            seen["admissions with cached tokens"] += sum(hit > 0 for hit in done.hits.values())
            seen["preemptions"] += len(done.preempted)
    print(f"vLLM {VERSION}, streams {first} to {first + streams - 1}: no difference")
    for what, count in sorted(seen.items()):
        print(f"  {what:<32} {count:>9,}")


def plugin(first: int, streams: int, *, asynchronous: bool) -> None:
    """Compare each of fairbench's schedulers in the place of vLLM's policy."""
    for local in SCHEDULERS:
        seeds = range(first, first + streams)
        each = (compare_plugin(local, n, asynchronous=asynchronous) for n in seeds)
        seen = sum(each, Counter())
        print(f"{local} in vLLM {VERSION}, streams {first} to {first + streams - 1}: no difference")
        for what, count in sorted(seen.items()):
            print(f"  {what:<32} {count:>9,}", flush=True)


def evictions(first: int, streams: int, *, asynchronous: bool) -> None:
    """Compare each eviction policy under three schedulers."""
    for policy in POLICIES:
        count = 0
        for local in ("fcfs", "lpm", "dlpm"):
            for seed in range(first, first + streams):
                theirs, ours = compare(seed, policy, local, asynchronous)
                assert theirs == ours, (policy, local, seed)
                count += len(theirs)
        print(f"{policy} in vLLM {VERSION}: {count:,} blocks, no difference", flush=True)


if __name__ == "__main__":
    if reason := why_absent():
        sys.exit(reason)
    if "--plugin" in sys.argv:
        sys.argv.remove("--plugin")
        main = plugin
    if "--evictions" in sys.argv:
        sys.argv.remove("--evictions")
        main = evictions
    ahead = "--async" in sys.argv
    if ahead:
        sys.argv.remove("--async")
    given = [int(text) for text in sys.argv[1:3]]
    main(*given, *(0, 500)[len(given) :], asynchronous=ahead)
