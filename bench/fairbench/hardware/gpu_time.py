"""The duration of a step by its coefficients, and its GPU time by request, in picoseconds.

A request's own part is what it adds to a step of one token: the compute of its new tokens, its
attention, and reads of its context, cached or not. The rest (launches, the host, weights that
are read once for all requests) is the step's fixed cost. Every request of the batch bears an
equal part of the fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fairbench.core import PS_PER_S, CostModel

PS_PER_MS = 10**9
# (cached tokens before, tokens computed now) of one sequence of a prefill iteration
Chunk = tuple[int, int]


class StepTime:
    """The coefficients of step times in ms.

    ``context_ps`` is the time per context token in whole picoseconds. ``linear_ms`` is the time of
    the linear layers and the host for that number of tokens.
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

    def of(self, chunks: list[Chunk], sequences: int, context_tokens: int, rows: int) -> int:
        """Return the duration of an iteration, as ``TimingProfile.step_ps`` does.

        Args:
            chunks: Cached tokens before and tokens computed now, for each prefill chunk.
            sequences: Number of decoding sequences.
            context_tokens: Sum of the context tokens of the decoding sequences.
            rows: Least number of tokens in the linear layers, because of padding.

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
    """A client's part of a decode batch: its requests, and the total of their contexts."""

    requests: int
    context_tokens: int


class StepParts(NamedTuple):
    """The parts of a step's time: per prefill chunk, per decoding client, and all decoding.

    ``decode_fixed_ps`` is the decoding clients' part of the fixed cost, included in ``decode_ps``.
    """

    chunks: list[int]
    clients: dict[str, int]
    decode_ps: int
    decode_fixed_ps: int


def split(total: int, weights: Iterable[int]) -> list[int]:
    """Split ``total`` in proportion to the weights into whole parts; 0 for weights of 0."""
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
    """Return each client's part of decode steps of an unchanged batch.

    ``fixed_ps`` of ``took_ps`` would be spent without any context; the rest is spent on reading
    context. ``clients`` holds the contexts at the first step.
    """
    grown = steps * (steps - 1) // 2
    requests = sum([one[0] for one in clients.values()])
    context = sum([one[1] for one in clients.values()]) * steps + requests * grown
    read_ps = took_ps - fixed_ps
    parts: dict[str, int] = {}
    mine = read = before = 0
    for client, (number, tokens) in clients.items():  # ``split`` for both parts together
        mine += number
        read += tokens * steps + number * grown
        after = fixed_ps * mine // requests + read_ps * read // context
        parts[client], before = after - before, after
    return parts


def prompt_parts(costs: CostModel, took_ps: int, chunks: Sequence[Chunk]) -> list[int]:
    """Return each chunk's part of a step that only prefills.

    Args:
        costs: Costs of the engine's steps.
        took_ps: Duration of the step, in picoseconds.
        chunks: Cached tokens before and tokens computed now, for each chunk.

    Returns:
        Part of each chunk, in picoseconds, in the order of ``chunks``.
    """
    return [took_ps] if len(chunks) == 1 else step_parts(costs, took_ps, chunks, {}).chunks


def step_parts(
    costs: CostModel,
    took_ps: int,
    chunks: Sequence[Chunk],
    clients: Mapping[str, Decoding],
    saved_ps: int = 0,
) -> StepParts:
    """Split a step's GPU time between the prompts it prefills and the clients it decodes.

    ``saved_ps`` is the time that the step saved by reading shared contexts once.
    """
    least_s = costs.prefill_s(0, 1)
    # Each kind of chunk is computed once, because branches of a program have equal chunks.
    own_ps = {chunk: _ps(costs.prefill_s(*chunk) - least_s) for chunk in set(chunks)}
    own = [own_ps[chunk] for chunk in chunks]
    decoding, read_ps = 0, 0
    if clients:
        decoding = sum(one.requests for one in clients.values())
        context = sum(one.context_tokens for one in clients.values())
        read_ps = _ps(costs.decode_step_s(1, context) - costs.decode_step_s(1, 0)) - saved_ps
        read_ps = max(0, read_ps)
    whole = sum(own) + read_ps
    # if the model's times exceed the measured time, the latter is split in their proportions
    if whole > took_ps:
        *own, read_ps = split(took_ps, (*own, read_ps))
        whole = took_ps
    *fixed, shared = split(took_ps - whole, [*[1] * len(own), decoding])
    parts = [one + more for one, more in zip(own, fixed, strict=True)]
    if not clients:
        return StepParts(parts, {}, 0, 0)
    decode_ps = read_ps + shared
    return StepParts(parts, decode_parts(decode_ps, shared, clients), decode_ps, shared)


def _ps(seconds: float) -> int:
    return round(seconds * PS_PER_S) if seconds > 0 else 0
