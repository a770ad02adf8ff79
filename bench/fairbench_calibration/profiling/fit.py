"""Fits of a timing profile's formula to iterations with known times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.hardware.timing import DIMENSIONLESS

Column = NDArray[np.float64]

MOST_CONTEXT = 400_000  # maximum total context of a random decode batch, in tokens


class Iterations(NamedTuple):
    """Engine iterations. In an iteration, all prefills are equally long, and so are all decodes.

    Attributes:
        prefills: Number of sequences in prefill.
        new: New tokens of each sequence in prefill.
        prefix: Cached tokens of each sequence in prefill.
        decodes: Number of sequences that decode.
        context: Number of context tokens of each sequence that decodes.
    """

    prefills: Column
    new: Column
    prefix: Column
    decodes: Column
    context: Column

    @property
    def tokens(self) -> Column:
        """The number of tokens for which the linear layers are computed."""
        return self.prefills * self.new + self.decodes

    @property
    def attended(self) -> Column:
        """The number of (new token, attended token) pairs in each prefill sequence."""
        return self.new * (self.prefix + (self.new + 1) / 2)

    def selected(self, chosen: slice) -> Iterations:
        """Return the iterations at the indices in ``chosen``."""
        return Iterations(*(column[chosen] for column in self))


def drawn(count: int, rng: np.random.Generator, most_context: int = MOST_CONTEXT) -> Iterations:
    """Draw random iterations: a third only prefills, a third only decodes, and a third does both.

    Lengths and numbers of sequences are uniform on a logarithmic scale.

    Args:
        count: Number of iterations to draw.
        rng: Random generator.
        most_context: Largest sum of context lengths over the decoding sequences of an iteration, in
            tokens.

    Returns:
        Iterations, with columns of shape (count,).
    """

    def log_uniform(low: int, high: int) -> NDArray[np.int64]:
        return np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(np.int64)

    kind = rng.integers(0, 3, count)
    prefills = np.where(kind == 1, 0, log_uniform(1, 9))
    new = np.maximum(1, log_uniform(16, 8193) // np.maximum(1, prefills))
    prefix = np.where(rng.random(count) < 0.5, 0, log_uniform(16, 32_769))
    decodes = np.where(kind == 0, 0, log_uniform(1, 401))
    most = np.maximum(1, most_context // np.maximum(1, decodes))
    context = np.minimum(log_uniform(64, 16_385), most)
    columns = (
        prefills, new * (prefills > 0), prefix * (prefills > 0),
        decodes, context * (decodes > 0),
    )  # fmt: skip
    return Iterations(*(column.astype(np.float64) for column in columns))


START = {
    "c0": 2.0, "c_w": 5.0, "c_T": 0.05, "p": 2.0, "c_A": 1e-6, "c_K": 5e-5, "c_npf": 0.02,
    "c_nd": 0.002, "c_e": 5.0,
}  # fmt: skip
TURNS = (
    {"c0": 0.05, "c_w": 2.0, "p": 2.0, "c_T": 0.3},
    {"c0": 2.0, "c_w": 0.3, "p": 0.6, "c_T": 0.3, "c_e": 3.0},
    {"c0": 0.5, "c_w": 0.3, "p": 1.5, "c_T": 2.0, "c_e": 2.0},
)
"""Factors by which ``START`` is multiplied for three more fits, which may find a better minimum."""

LEAST_P, MOST_P = 1.0, 8.0  # limits on the coefficient p of a timing profile
NEGLIGIBLE = 1e-4  # a coefficient below this fraction of its starting value becomes 0
# A minimisation makes at most ``_STEPS`` steps, and no step is longer than ``_LONGEST``.
# Derivatives are finite differences with step ``_TRIAL``.
_STEPS, _TRIAL, _LONGEST = 200, 1e-5, 1.0
_SOFT = 0.05  # relative error above which the loss grows linearly, not quadratically
_ENOUGH = 1e-9  # a minimisation ends when a step reduces the loss by less than this fraction


def predicted_ms(c: Mapping[str, float], it: Iterations) -> Column:
    """Return the GPU time (ms) that the coefficients ``c`` predict for each iteration."""
    weights = c["c_w"] + c.get("c_e", 0.0) * (1 - c.get("q_e", 1.0) ** it.tokens)
    linear = c["c_T"] * it.tokens
    logs = (c["p"] * np.log(np.maximum(1e-12, part)) for part in (weights, linear))
    joined = np.exp(np.logaddexp(*logs) / c["p"])
    attention = np.maximum(c["c_A"] * it.attended, c["c_K"] * it.prefix)
    prefills = it.prefills * (attention + c["c_npf"])
    decodes = it.decodes * (c["c_K"] * it.context + c["c_nd"])
    return np.asarray(c["c0"] + joined + prefills + decodes)


def fitted(
    it: Iterations,
    times_ms: Column,
    *,
    experts_left: float = 0.0,
    waits: Column | None = None,
    start: Mapping[str, float] = START,
    prior: float = 0.0,
) -> dict[str, float]:
    """Return the non-negative coefficients of a timing profile that best fit measured times.

    The coefficients minimise the soft-L1 loss of log(predicted time / measured time).

    Args:
        it: The measured iterations.
        times_ms: Times of the iterations in ms, shape (n_iterations,).
        experts_left: Fraction of the experts that a token does not use; 0 for a dense model.
        waits: 1 for each measured time that includes a constant delay, otherwise 0; None means all
            0. The fitted delay is the coefficient ``delay_ms``.
        start: The coefficients with which the search begins.
        prior: Weight of the penalty on logarithms of coefficients that differ from ``start``.
    """
    names = [name for name in START if experts_left or name != "c_e"]
    names += ["delay_ms"] if waits is not None else []
    fixed = {"q_e": experts_left} if experts_left else {}
    origin = np.log([max(start.get(name, START.get(name, 1.0)), 1e-12) for name in names])
    least, most = np.full(len(names), -30.0), np.full(len(names), 10.0)
    least[names.index("p")], most[names.index("p")] = np.log(LEAST_P), np.log(MOST_P)

    def coefficients(logs: Column) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True)) | fixed

    def residuals(logs: Column) -> Column:
        c = coefficients(logs)
        delays = 0.0 if waits is None else c["delay_ms"] * waits
        off = np.log((predicted_ms(c, it) + delays) / times_ms)
        return np.append(softened(off), prior * (logs - origin))

    begun = [origin]
    if not prior:
        begun += [origin + np.log([turn.get(name, 1.0) for name in names]) for turn in TURNS]
    ended = [minimised(residuals, np.clip(one, least, most), least, most) for one in begun]
    found = coefficients(min(ended, key=lambda logs: float(np.sum(residuals(logs) ** 2))))
    return {
        name: value if name in DIMENSIONLESS or value > NEGLIGIBLE * START.get(name, 1.0) else 0.0
        for name, value in found.items()
    }


def errors_pct(c: Mapping[str, float], it: Iterations, times_ms: Column) -> dict[str, float]:
    """Return the mean, percentiles, maximum and bias of the relative prediction errors (%)."""
    off = 100 * (predicted_ms(c, it) / times_ms - 1)
    size = np.abs(off)
    named = {"MAPE": size.mean(), "P50": np.median(size), "P95": np.percentile(size, 95)}
    named |= {"max": size.max(), "bias": off.mean()}
    return {name: round(float(value), 2) for name, value in named.items()}


def softened(off: Column) -> Column:
    """Return residuals whose sum of squares is the soft-L1 loss."""
    loss = 2 * (np.sqrt(1 + (off / _SOFT) ** 2) - 1)
    return np.asarray(np.sign(off) * np.sqrt(loss))


def minimised(
    residuals: Callable[[Column], Column], logs: Column, least: Column, most: Column
) -> Column:
    """Minimise the sum of squared ``residuals`` by the Levenberg-Marquardt method."""
    damping, left = 1e-2, residuals(logs)
    for _ in range(_STEPS):
        units = _TRIAL * np.eye(len(logs))
        slope = np.array([(residuals(logs + unit) - left) / _TRIAL for unit in units]).T
        normal, downhill = slope.T @ slope, -slope.T @ left
        scale = np.diag(np.maximum(normal.diagonal(), 1e-9))
        while damping < 1e8:
            step = np.linalg.solve(normal + damping * scale, downhill)
            tried = np.clip(logs + np.clip(step, -_LONGEST, _LONGEST), least, most)
            after = residuals(tried)
            if after @ after < left @ left:
                break
            damping *= 4
        else:
            return logs
        gained = 1 - (after @ after) / (left @ left)
        logs, left, damping = tried, after, damping / 4
        if gained < _ENOUGH:
            break
    return logs
