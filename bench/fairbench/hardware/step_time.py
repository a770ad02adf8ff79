"""The duration of an iteration: the formula of ``timing.TimingProfile`` by its coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

PS_PER_MS = 10**9
# (cached tokens before, tokens computed now) of one sequence of a prefill iteration
Chunk = tuple[int, int]


class StepTime:
    """The coefficients of step times in ms.

    ``context_ps`` is the time per context token in whole ps. ``linear_ms`` is what the linear
    layers and the host take for so many tokens.
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
        return round(total * PS_PER_MS) + self._context_ps * context_tokens
