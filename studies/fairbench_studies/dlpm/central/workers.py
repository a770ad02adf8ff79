"""Worker processes that cache the prompts of a central scheduler."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from fairbench.core import Prompt, prompt_tokens
from fairbench.engine.kv_cache import KVCache
from fairbench_studies.dlpm.central.central_dlpm import TreeDelta

JOIN_TIMEOUT_S = 5.0


class CentralWorkers:
    """Worker processes, each with a simulated KV cache of ``pool_tokens`` tokens.

    ``send`` gives a worker prompts to cache, ``wait`` waits until all workers have cached their
    prompts, and ``collect`` returns the changes of the caches. The worker processes end when the
    ``with`` block or the parent process ends.
    """

    def __init__(self, workers: int, pool_tokens: int) -> None:
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, pool_tokens), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
            # The answer to an empty message shows that the worker is ready.
            self.send(len(self._pipes) - 1, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(JOIN_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def send(self, worker: int, prompts: Iterable[Prompt]) -> None:
        """Send a worker the prompts to cache next."""
        self._pipes[worker].send(tuple(prompts))

    def wait(self) -> None:
        """Wait until all workers have cached their prompts."""
        for pipe in self._pipes:
            pipe.recv()

    def collect(self) -> list[TreeDelta]:
        """Return the cache changes of all workers, in the order of the workers."""
        for pipe in self._pipes:
            pipe.send(None)
        return [pipe.recv() for pipe in self._pipes]


def _serve(pipe: Connection, pool_tokens: int) -> None:
    """Run a worker process: cache prompts, and report cache changes on request."""
    # The worker ignores Ctrl-C, because it ends when the parent closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    evicted: list[tuple[Prompt, int]] = []
    cache = KVCache(pool_tokens, lambda prefix, tokens: evicted.append((prefix, tokens)))
    try:
        while True:
            prompts = pipe.recv()
            for prompt in prompts:
                _compute(cache, prompt)
            delta = TreeDelta(prompts, tuple(evicted))
            evicted.clear()
            pipe.send(None)
            pipe.recv()
            pipe.send(delta)
    except (EOFError, OSError):
        return  # the parent has closed the pipe


def _compute(cache: KVCache, prompt: Prompt) -> None:
    """Cache a prompt, as a worker does when it finishes a request."""
    tokens = prompt_tokens(prompt)
    node, place = cache.match(prompt, tokens)
    cache.lock(node)
    cache.allocate(tokens - node.depth)
    cache.insert(node, prompt, place, tokens)
    cache.unlock(node)
