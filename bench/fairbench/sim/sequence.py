"""A request on its way through a simulated worker: all of its facts that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.kv_node import KVNode

Sums: TypeAlias = tuple[float, float, float]
"""A ``DecodeTime`` at some step: ``each``, ``read`` and ``numbered``."""

NO_TIME: Sums = (0.0, 0.0, 0.0)


class DecodeTime:
    """Sums over the steps of a batch, in picoseconds.

    ``each`` is every request's part of the fixed cost, ``read`` the time per token of context, and
    ``numbered`` that time multiplied by the number of the step. A request whose context is ``base +
    n`` in step n has cost ``each + base * read + numbered``, counting only additions since it
    joined.
    """

    __slots__ = ("each", "numbered", "read")

    def __init__(self) -> None:
        self.each = self.read = self.numbered = 0.0

    def add(
        self, took_ps: int, fixed_ps: int, requests: int, context: int, first: int, steps: int
    ) -> None:
        """Add ``steps`` steps, from step number ``first`` on.

        ``context`` is the context of all requests in the first step. ``fixed_ps`` is the part of
        the time that is not spent on reading context.
        """
        grown = steps * (steps - 1) // 2
        token_ps = (took_ps - fixed_ps) / (context * steps + requests * grown)
        self.each += fixed_ps / requests
        self.read += token_ps * steps
        self.numbered += token_ps * (first * steps + grown)

    def sums(self) -> Sums:
        return self.each, self.read, self.numbered

    def of(self, base: int, joined: Sums) -> float:
        """Return the cost (ps) of a request that joined when the sums were ``joined``."""
        each, read, numbered = joined
        return self.each - each + ((self.read - read) * base + self.numbered - numbered)


FINISHED, REFUSED, UNFINISHED = 0, 1, 2
NEVER = -1


class Sequence:
    """The state of one request. Times are in picoseconds, NEVER if the event has not happened.

    ``prompt`` and ``total`` are the tokens of a prefill: the request's prompt and, after a
    retraction, also the outputs so far. ``output`` is the segment that the request produces,
    ``output.length`` its true length.
    """

    __slots__ = (
        "admitted_ps",
        "arrival_ps",
        "cached_tokens",
        "computed_ps",
        "decode_worker",
        "due",
        "extend_tokens",
        "filled",
        "finish_ps",
        "first_token_ps",
        "gpu_ps",
        "host_tokens",
        "joined_step",
        "joined_time",
        "node",
        "on_done",
        "output",
        "place",
        "private",
        "produced",
        "prompt",
        "readmitted_ps",
        "received_ps",
        "recompute_tokens",
        "request",
        "reserved_ps",
        "retracted_ps",
        "retractions",
        "routed_ps",
        "sent_ps",
        "status",
        "swapped_tokens",
        "total",
        "worker",
    )

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
        # Times of disaggregated requests.
        self.reserved_ps = self.computed_ps = self.sent_ps = self.received_ps = NEVER
        self.status = UNFINISHED
        self.node: KVNode | None = None  # end of the locked prefix while running
        self.place: Place = (0, 0)  # position in the prompt at which that prefix ends
        self.filled = 0  # tokens with KV: cached at admission, then computed
        self.private = 0  # tokens of a prefill in progress that are not in the tree yet
        self.gpu_ps = 0.0  # its part of the iterations that have ended
        self.joined_time = NO_TIME  # the time sums of the worker's batch when it joined
        self.due = NEVER  # the step of its batch after which it ends
        self.joined_step = 0  # the worker's decode step count when it joined the batch
        self.cached_tokens = self.extend_tokens = self.recompute_tokens = 0
        self.retractions = 0
        self.host_tokens = 0  # tokens at its beginning with a copy in the host's memory
        self.swapped_tokens = 0  # tokens copied to and from the host so far

    def refuse(self) -> None:
        """End the sequence as refused, without an answer."""
        self.status = REFUSED
        self.on_done(self)

    def retract(self, now_ps: int) -> None:
        """Return to waiting, keeping the outputs produced so far."""
        self.retractions += 1
        self.retracted_ps, self.readmitted_ps = now_ps, NEVER
        self.prompt = (*self.request.prompt, Segment(self.output.key, self.produced))
        self.total = self.request.input_tokens + self.produced
        self.node, self.filled, self.private = None, 0, 0

    def not_admitted(self, cached_tokens: int) -> None:
        """Undo the records of its last admission, because the run ended before its end."""
        if self.retractions:
            self.readmitted_ps = NEVER
            self.recompute_tokens -= self.total - cached_tokens
        else:
            self.admitted_ps = NEVER
            self.cached_tokens = self.extend_tokens = 0
