"""The state of a request at a simulated worker, and CPU memory for KV caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fairbench.core import Prompt, Request, Segment
from fairbench.engine.kv_cache import KVNode
from fairbench.schedulers.prefix_tree import Place

Sums: TypeAlias = tuple[float, float, float]
"""The values ``each``, ``read`` and ``numbered`` of a ``DecodeTime`` (ps), in this order."""

NO_TIME: Sums = (0.0, 0.0, 0.0)


class DecodeTime:
    """Sums over a batch's decode steps from which a request's GPU time (ps) is computed.

    A step takes a fixed time, which its requests share equally, and a time per token of context.
    ``each`` sums a request's shares of the fixed times, and ``read`` sums the times per token of
    context. ``numbered`` is the sum over all steps n of n times the time per token. If a request
    has ``base + n`` tokens of context in step n, its GPU time is the sum ``each + base * read +
    numbered``.
    """

    __slots__ = ("each", "numbered", "read")

    def __init__(self) -> None:
        self.each = self.read = self.numbered = 0.0

    def add(
        self, took_ps: int, fixed_ps: int, requests: int, context: int, first: int, steps: int
    ) -> None:
        """Add the durations of ``steps`` consecutive decode steps to the sums of durations.

        Args:
            took_ps: Total time of the added decode steps, in picoseconds.
            fixed_ps: The part of ``took_ps`` that is not spent on reading context.
            requests: Number of requests in the batch.
            context: Total context of the requests in the first added decode step, in tokens.
            first: Number of the first added decode step (n in ``DecodeTime``).
            steps: Number of added decode steps.
        """
        grown = steps * (steps - 1) // 2
        token_ps = (took_ps - fixed_ps) / (context * steps + requests * grown)
        self.each += fixed_ps / requests
        self.read += token_ps * steps
        self.numbered += token_ps * (first * steps + grown)

    def sums(self) -> Sums:
        return self.each, self.read, self.numbered

    def request_ps(self, base: int, joined: Sums) -> float:
        """Return a request's share of GPU time (ps) since ``sums()`` returned ``joined``."""
        each, read, numbered = joined
        return self.each - each + ((self.read - read) * base + self.numbered - numbered)


FINISHED, REFUSED, UNFINISHED = 0, 1, 2
NEVER = -1


class Sequence:
    """The state of one request at a worker.

    Times are in picoseconds; NEVER means that the event has not occurred.

    ``prompt`` has the ``total`` tokens to prefill: the request's prompt and, after a retraction,
    its outputs so far. ``output`` is the ``Segment`` of all tokens that the request will really
    produce.
    """

    __slots__ = (
        "admitted_ps", "arrival_ps", "cached_tokens", "compulsory_tokens", "computed_ps",
        "decode_worker", "due", "extend_tokens", "filled", "finish_ps", "first_token_ps", "gpu_ps",
        "host_tokens", "joined_step", "joined_time", "node", "on_done", "output", "place",
        "private", "produced", "prompt", "readmitted_ps", "received_ps", "recompute_tokens",
        "request", "reserved_ps", "retracted_ps", "retractions", "routed_ps", "sent_ps", "status",
        "swapped_tokens", "total", "worker",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        output: Segment,
        arrival_ps: int,
        on_done: Callable[[Sequence], None],
    ) -> None:
        self.request = request
        self.output = output
        self.on_done = on_done
        self.arrival_ps = arrival_ps
        self.admitted_ps = self.first_token_ps = self.finish_ps = NEVER
        self.retracted_ps = self.readmitted_ps = self.routed_ps = NEVER
        self.prompt: Prompt = request.prompt
        self.total = request.input_tokens
        self.produced = 0
        self.worker = self.decode_worker = -1
        # times that are set only in disaggregated clusters
        self.reserved_ps = self.computed_ps = self.sent_ps = self.received_ps = NEVER
        self.status = UNFINISHED
        # ``node`` is the tree node at which a running request's locked prefix ends.
        self.node: KVNode | None = None
        self.place: Place = (0, 0)
        # ``filled`` is the number of prompt tokens whose KV cache is in memory.
        self.filled = 0
        # ``private`` is the number of a prefilling request's tokens that are not in the prefix tree
        # yet.
        self.private = 0
        # ``gpu_ps`` is the request's part of the GPU time of all iterations so far.
        self.gpu_ps = 0.0
        # ``joined_time`` is the value of ``DecodeTime.sums()`` when the request joined the batch.
        self.joined_time = NO_TIME
        self.due = NEVER
        # ``joined_step`` is the value of ``RunningBatch.steps`` when the request joined the batch.
        self.joined_step = 0
        self.cached_tokens = self.extend_tokens = self.recompute_tokens = 0
        # ``compulsory_tokens`` is the number of prompt tokens that would miss even in an unlimited
        # cache.
        self.compulsory_tokens = 0
        self.retractions = 0
        # ``host_tokens`` is the length of the request's prefix that has a copy in CPU memory.
        self.host_tokens = 0
        # ``swapped_tokens`` counts the request's tokens that were copied to CPU memory and back.
        self.swapped_tokens = 0

    def refuse(self) -> None:
        """End the request as refused, without an output."""
        self.status = REFUSED
        self.on_done(self)

    def retract(self, now_ps: int) -> None:
        """Turn a running request into a waiting request that keeps its outputs so far."""
        self.retractions += 1
        self.retracted_ps, self.readmitted_ps = now_ps, NEVER
        self.prompt = (*self.request.prompt, Segment(self.output.key, self.produced))
        self.total = self.request.input_tokens + self.produced
        self.node, self.filled, self.private = None, 0, 0

    def not_admitted(self, cached_tokens: int) -> None:
        """Undo the records of an admission whose iteration had not ended at the end of the run."""
        if self.retractions:
            self.readmitted_ps = NEVER
            self.recompute_tokens -= self.total - cached_tokens
        else:
            self.admitted_ps = NEVER
            self.cached_tokens = self.extend_tokens = 0


@dataclass(slots=True)
class HostMemory:
    """CPU memory that can hold the KV cache of ``capacity`` tokens.

    Copying a token to CPU memory or back takes ``token_ps`` picoseconds.
    """

    capacity: int
    token_ps: int
    used: int = 0
    # ``copied`` counts the tokens copied between GPU and CPU memory since the last call of
    # ``delay_ps``.
    copied: int = 0

    def fits_copy(self, tokens: int) -> bool:
        return self.token_ps > 0 and self.used + tokens <= self.capacity

    def store(self, sequence: Sequence, tokens: int) -> None:
        """Copy the first ``tokens`` tokens of a request to CPU memory. Precondition: they fit."""
        sequence.host_tokens = tokens
        sequence.swapped_tokens += tokens
        self.used += tokens
        self.copied += tokens

    def behind(self, sequence: Sequence, cached: int) -> int:
        """Return how many of a request's tokens after the first ``cached`` are in CPU memory."""
        behind = sequence.host_tokens - cached
        return behind if behind > 0 else 0

    def load(self, sequence: Sequence, cached: int) -> None:
        """Move a request's tokens after the first ``cached`` from CPU memory back to the GPU."""
        tokens = self.behind(sequence, cached)
        sequence.swapped_tokens += tokens
        self.copied += tokens
        self.free_copy(sequence)

    def free_copy(self, sequence: Sequence) -> None:
        self.used -= sequence.host_tokens
        sequence.host_tokens = 0

    def delay_ps(self) -> int:
        """Return the time (ps) of copies between CPU and GPU memory since the last call."""
        delay_ps, self.copied = self.copied * self.token_ps, 0
        return delay_ps
