"""Measure routing decisions per CPU second: python tests/benchmarks/routers.py [--workers 64]

Prints a Markdown table with the best of three runs in each cell. A decision is a route followed
immediately by its finish. Prompts are trees of thought of 512 to 1,400 tokens as segments, or 512,
2,700 and 21,000 token ids, which the router first divides into pages. A quarter of the prompts is
new; the others extend an earlier prompt, as follow-up requests do.
"""

import argparse
import random
import time
from array import array

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.schedulers.registry import build_router, routers_by_name
from fairbench_load.token_pages import segments_of

REPEATS = 3


def trees(rng, count):
    prompts = []
    for number in range(count):
        if number % 4 == 0 or not prompts:
            prompts.append((Segment("instruction", 66), Segment(f"q{number}", 480)))
        else:
            parent = rng.choice(prompts[-200:])[:8]
            prompts.append((*parent, Segment(f"o{number}", 256), Segment("turn", 32)))
    return prompts


def ids(rng, count, tokens):
    prompts = []
    for number in range(count):
        if number % 4 == 0 or not prompts:
            prompts.append(array("I", (rng.randrange(100_000) for _ in range(tokens))))
        else:
            head = rng.choice(prompts[-50:])[: tokens - 40]
            prompts.append(head + array("I", [number] * 40))
    return prompts


def as_segments(prompt):
    return prompt, prompt_tokens(prompt)


def as_pages(token_ids):
    return segments_of(token_ids), len(token_ids)


def decisions_per_s(name, workers, prompts, convert):
    router = build_router(name, {}, workers)
    start_s = time.process_time()
    for number, raw in enumerate(prompts):
        prompt, tokens = convert(raw)
        request = Request(number, f"client-{number % 8}", number, 0, prompt, tokens, 256)
        worker = router.route(request, number / 100)
        router.on_finish(request, worker, Segment(f"o{number}", 256), number / 100 + 0.005)
    return len(prompts) / (time.process_time() - start_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    workers = parser.parse_args().workers
    rng = random.Random(0)
    cases = {"trees of thought": (trees(rng, 10_000), as_segments)}
    for tokens, count in ((512, 4_000), (2_700, 2_000), (21_000, 400)):
        cases[f"{tokens:,} token ids"] = ids(rng, count, tokens), as_pages
    print("| router |", " | ".join(cases), "|")
    print("|---|" + "--:|" * len(cases))
    for name in routers_by_name():
        best = (
            max(decisions_per_s(name, workers, *case) for _ in range(REPEATS))
            for case in cases.values()
        )
        print(f"| `{name}` |", " | ".join(f"{rate:,.0f}" for rate in best), "|")


if __name__ == "__main__":
    main()
