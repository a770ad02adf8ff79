"""Routing decisions per CPU second: python tests/benchmarks/routers.py [--workers 64]

Each decision is a route and, at once, its finish. Prompts: trees of thought of 512 to 1,400 tokens
as segments; and 512-, 2,700- and 21,000-token prompts given as token ids, hashed into pages. One in
four prompts is new; the others extend an earlier one, as follow-up requests do.
"""

import argparse
import random
import time
from array import array

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.schedulers.registry import ROUTERS, build_router
from fairbench.schedulers.token_pages import segments_of


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
            prompts.append(rng.choice(prompts[-50:])[:tokens] + array("I", [number] * 40))
    return prompts


def measure(label, name, workers, prompts, convert):
    router = build_router(name, {}, workers)
    start = time.process_time()
    for number, raw in enumerate(prompts):
        prompt = convert(raw)
        client = f"client-{number % 8}"
        request = Request(number, client, number, 0, prompt, prompt_tokens(prompt), 256)
        worker = router.route(request, number / 100)
        router.on_finish(request, worker, Segment(f"o{number}", 256), number / 100 + 0.005)
    seconds = time.process_time() - start
    print(f"{label:28}{name:20}{len(prompts) / seconds:10,.0f} decisions/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    workers = parser.parse_args().workers
    rng = random.Random(0)
    cases = [("trees of thought", trees(rng, 10_000), lambda prompt: prompt)]
    for tokens, count in ((512, 4_000), (2_700, 2_000), (21_000, 400)):
        cases.append((f"{tokens:,} token ids", ids(rng, count, tokens), segments_of))
    for label, prompts, convert in cases:
        for name in ROUTERS:
            measure(label, name, workers, prompts, convert)


if __name__ == "__main__":
    main()
