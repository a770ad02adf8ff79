"""llm-d's inference scheduler: the worker with the highest weighted sum of scores is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import Request, prompt_tokens
from fairbench.schedulers.params import NotNegative, NotNegativeInt, PositiveInt
from fairbench.schedulers.prefix_tree import truncate
from fairbench.schedulers.routing.bases import any_of, lowest
from fairbench_rivals.routing.history_tree import HistoryRouter

SWEEP_AT = 1.05  # an index above this multiple of its limit is cut back to the limit


class LlmD(HistoryRouter):
    """A router that chooses the worker with the highest weighted sum of scores from 0 to 1.

    The configuration is llm-d/llm-d-inference-scheduler @520af47,
    deploy/config/epp-estimate-prefix-cache-config.yaml, which has two scorers. The prefix score is
    the fraction of the prompt's blocks that match. An LRU list for each worker, as large as the
    worker's KV pool, holds the blocks sent to the worker. The load score is 0.5 if no request waits
    at the worker, and falls to 0 at ``queue_threshold`` waiting requests.

    A second published configuration, for known cache contents, is prefix_weight=2, load_weight=0,
    queue_weight=1, kv_weight=1. The queue score of a worker with n waiting requests is (most - n) /
    (most - least), where most and least are the extremes over all workers. The KV score is 1 - KV
    usage. The router does not distinguish clients, but llm-d's queue in front of the router does.

    fairbench keeps a known defect: only the first 256 blocks of a prompt (``max_prefix_blocks``; 0
    means all) are compared, so prompts that share 4,096 tokens look the same.
    """

    name = "llm-d"

    @dataclass(frozen=True)
    class Params:
        """Parameters: the weights of the scores, and the size of the index.

        If ``lru_blocks`` is 0, the index of a worker is as large as the worker's KV pool. A pool of
        unknown size counts as 31,250 blocks, llm-d's default.
        """

        constants: ClassVar[tuple[str, ...]] = ("block_tokens", "queue_threshold")

        prefix_weight: NotNegative = 1.0
        load_weight: NotNegative = 1.0
        queue_weight: NotNegative = 0.0
        kv_weight: NotNegative = 0.0
        queue_threshold: PositiveInt = 128
        block_tokens: PositiveInt = 16
        max_prefix_blocks: NotNegativeInt = 256
        lru_blocks: NotNegativeInt = 0

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params

    def route(self, request: Request, now_s: float) -> int:
        block, most = self.params.block_tokens, self.params.max_prefix_blocks
        blocks = prompt_tokens(request.prompt) // block
        blocks = min(blocks, most) if most else blocks
        prompt = truncate(request.prompt, blocks * block)
        found = self._tree.find(prompt)
        cached = self._tree.cached_tokens(found.node)
        part = {
            w: cached.get(w, 0) // block / blocks if blocks else 0
            for w in self.in_flight_by_worker()
        }
        scores = self._load_scores()
        costs = {w: -(self.params.prefix_weight * part[w] + scores[w]) for w in part}
        worker = any_of(lowest(costs), request)
        self._tree.add(found, prompt, worker)
        limit = (self.params.lru_blocks or self.setup.pool_tokens // block or 31_250) * block
        if self._tree.tokens[worker] > SWEEP_AT * limit:
            self._tree.shrink(worker, limit)
        self._fleet.dispatch(request, worker)
        return worker

    def _load_scores(self) -> dict[int, float]:
        params = self.params
        waiting = {worker: self.queued_at(worker) for worker in self._fleet.workers}
        most, least = max(waiting.values()), min(waiting.values())
        scores = {}
        for worker, queued in waiting.items():
            load = 0.5 * (1 - min(queued, params.queue_threshold) / params.queue_threshold)
            queue = (most - queued) / (most - least) if most > least else 1.0
            free = 1 - (self.usage(worker) or 0)
            scores[worker] = (
                params.load_weight * load + params.queue_weight * queue + params.kv_weight * free
            )
        return scores
