"""The duration of a step, and the division of its GPU time among requests.

A request is charged for the time that it adds to a step: the computation of its new tokens,
attention, and reads of its context. The step's fixed cost (kernel launches, host time and reads of
the weights) is divided equally among the requests of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fairbench.core import PS_PER_S, CostModel

PS_PER_MS = 10**9
# the number of cached tokens before a chunk of a prompt, and the number of tokens in the chunk
Chunk = tuple[int, int]


class StepTime:
    """A formula for the duration of a step, with coefficients in ms.

    ``context_ps`` is the time per token of context in whole picoseconds. The function ``linear_ms``
    returns the time (ms) of the linear layers and of the host for a number of tokens.
    """

    def __init__(
        self,
        coefficients_ms: Mapping[str, float],
        context_ps: int,
        linear_ms: Callable[[int], float],
    ) -> None:
        c = coefficients_ms
        self._per_prompt, self._per_decode = float(c["c_npf"]), float(c["c_nd"])
        self._attention, self._read = float(c["c_A"]), float(c["c_K"])
        self._launch = float(c.get("c_pf", 0.0))
        self._least_ps = round(float(c.get("c_l", 0.0)) * PS_PER_MS)
        self._least_prompt_ps = round(float(c.get("c_lp", 0.0)) * PS_PER_MS)
        self._context_ps = context_ps
        self._linear_ms = linear_ms

    def duration_ps(
        self, chunks: list[Chunk], sequences: int, context_tokens: int, rows: int
    ) -> int:
        """Return the duration of an iteration of prefill chunks and decoding sequences.

        Args:
            chunks: Numbers of cached and of computed tokens of each prefill chunk.
            sequences: Number of decoding sequences.
            context_tokens: Total context of the decoding sequences, in tokens.
            rows: Least number of tokens that the linear layers compute; smaller batches are padded.

        Returns:
            Duration of the iteration, in picoseconds.
        """
        tokens = sequences
        for _, new in chunks:
            tokens += new
        total: float = self._linear_ms(tokens if tokens > rows else rows)
        total += self._per_prompt * len(chunks)
        if chunks:
            total += self._launch
        attention, read = self._attention, self._read
        for prefix, new in chunks:
            computed, loaded = attention * new * (prefix + (new + 1) / 2), read * prefix
            total += computed if computed > loaded else loaded
        total += self._per_decode * sequences
        took_ps = round(total * PS_PER_MS) + self._context_ps * context_tokens
        if chunks:
            return max(took_ps, self._least_ps + self._least_prompt_ps * len(chunks))
        return took_ps


class Decoding(NamedTuple):
    """The number of requests and the total context tokens of a client in a decode batch."""

    requests: int
    context_tokens: int


class StepParts(NamedTuple):
    """A step's GPU time in picoseconds, split among prefill chunks and decoding clients.

    ``decode_ps`` is the sum of the values in ``clients``. ``decode_fixed_ps`` is the part of
    ``decode_ps`` that does not depend on context.
    """

    chunks: list[int]
    clients: dict[str, int]
    decode_ps: int
    decode_fixed_ps: int


def split_in_proportion(total: int, weights: Iterable[int]) -> list[int]:
    """Split ``total`` into whole numbers in proportion to the weights."""
    parts = list(weights)
    whole = sum(parts)
    if not whole:
        return [0] * len(parts)
    upto = before = 0
    for index, weight in enumerate(parts):
        upto += weight
        after = total * upto // whole
        parts[index], before = after - before, after
    return parts


def decode_parts(
    took_ps: int, fixed_ps: int, clients: Mapping[str, Decoding], steps: int = 1
) -> dict[str, int]:
    """Split the time (ps) of decode steps among the clients of a batch that does not change.

    All steps together took ``took_ps``, of which ``took_ps - fixed_ps`` was spent on reads of
    context. ``clients`` maps each client to its number of requests and their total context (tokens)
    in the first step.
    """
    grown = steps * (steps - 1) // 2
    requests = sum([one[0] for one in clients.values()])
    context = sum([one[1] for one in clients.values()]) * steps + requests * grown
    read_ps = took_ps - fixed_ps
    parts: dict[str, int] = {}
    mine = read = before = 0
    # The code of ``split_in_proportion`` is repeated here for speed.
    for client, (number, tokens) in clients.items():
        mine += number
        read += tokens * steps + number * grown
        after = fixed_ps * mine // requests + read_ps * read // context
        parts[client], before = after - before, after
    return parts


def prompt_parts(costs: CostModel, took_ps: int, chunks: Sequence[Chunk]) -> list[int]:
    """Split the time of a step without decoding among its prefill chunks.

    Args:
        costs: Model of the time of the engine's steps.
        took_ps: Measured duration of the step, in picoseconds.
        chunks: Numbers of cached and of computed tokens of each chunk.

    Returns:
        GPU time of each chunk, in picoseconds, in the order of ``chunks``.
    """
    return [took_ps] if len(chunks) == 1 else step_parts(costs, took_ps, chunks, {}).chunks


def step_parts(
    costs: CostModel,
    took_ps: int,
    chunks: Sequence[Chunk],
    clients: Mapping[str, Decoding],
    saved_ps: int = 0,
) -> StepParts:
    """Split a step's GPU time between its prefill chunks and its decoding clients.

    ``saved_ps`` is the time that the step saved by reading shared contexts only once.
    """
    least_s = costs.prefill_s(0, 1)
    # Compute the time of equal chunks only once; branches of a program often have equal chunks.
    own_ps = {chunk: _picoseconds(costs.prefill_s(*chunk) - least_s) for chunk in set(chunks)}
    own = [own_ps[chunk] for chunk in chunks]
    decoding, read_ps = 0, 0
    if clients:
        decoding = sum(one.requests for one in clients.values())
        context = sum(one.context_tokens for one in clients.values())
        read_ps = (
            _picoseconds(costs.decode_step_s(1, context) - costs.decode_step_s(1, 0)) - saved_ps
        )
        read_ps = max(0, read_ps)
    whole = sum(own) + read_ps
    # If the sum of the requests' times exceeds the step's duration, the times are scaled down.
    if whole > took_ps:
        *own, read_ps = split_in_proportion(took_ps, (*own, read_ps))
        whole = took_ps
    *fixed, shared = split_in_proportion(took_ps - whole, [*[1] * len(own), decoding])
    parts = [one + more for one, more in zip(own, fixed, strict=True)]
    if not clients:
        return StepParts(parts, {}, 0, 0)
    decode_ps = read_ps + shared
    return StepParts(parts, decode_parts(decode_ps, shared, clients), decode_ps, shared)


def _picoseconds(seconds: float) -> int:
    return round(seconds * PS_PER_S) if seconds > 0 else 0
