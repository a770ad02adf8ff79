"""The measured number of routing decisions per second of the router E2 ([Preble] §4.4)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from time import process_time
from typing import Any

from fairbench.core import Prompt, Request, Segment, prompt_tokens
from fairbench.schedulers.registry import build_router
from fairbench.streams import stream
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.spec import load_workload

REQUESTS = 5000
REPEATS = 8
GPUS = 4


def measure() -> dict[str, list[float]]:
    """Route two workloads ``REPEATS`` times. Return how many requests are routed per second.

    The workload tool use has the most complex prefix tree, and video QA has the simplest.
    """
    prompts = {name: _prompts(name)[:REQUESTS] for name in ("tool-use", "video-qa")}
    rounds = [[_speed(of) for of in prompts.values()] for _ in range(REPEATS)]
    return {
        name: [*speeds] for name, speeds in zip(prompts, zip(*rounds, strict=True), strict=True)
    }


def _speed(prompts: list[Prompt]) -> float:
    router = build_router("preble-e2", {}, GPUS)
    requests = [
        Request(number, "a", number, 0, prompt, prompt_tokens(prompt), 64)
        for number, prompt in enumerate(prompts)
    ]
    start = process_time()
    for request in requests:
        router.route(request, 0.0)
    return REQUESTS / (process_time() - start)


def _prompts(workload: str) -> list[Prompt]:
    spec = load_workload(workload)
    params = make_params(spec.program, spec.params, workload)
    kind = program_class(spec.program)
    listed = _Listed()
    for number in range(REQUESTS):
        program = kind.build(params, stream(0, f"{workload}-{number}"), number, "a", None)
        with suppress(StopIteration):
            program.run(listed).send(None)
        if len(listed.prompts) >= REQUESTS:
            break
    return listed.prompts


class _Listed:
    """A stand-in for the model (``core.LLM``) that stores prompts and answers without delay."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        self.prompts.append(prompt)
        return Segment(name, output_tokens)

    async def sleep(self, seconds: float) -> None:
        """Return immediately, because the measurement does not simulate time."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        return [await branch for branch in branches]
