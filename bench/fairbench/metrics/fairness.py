"""Jain's index, the lowest share, and the window in which all clients are active."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairbench.metrics.reasons import NAN
from fairbench.metrics.records import FINISHED, UNFINISHED, Facts, Floats, Programs, Window


def jain(allocations: ArrayLike) -> float:
    """Return Jain's index (sum x)^2 / (n * sum x^2), from 1/n to 1 ([DLPM] §6.1).

    The index is NaN without clients, and if all allocations are 0.
    """
    x = np.asarray(allocations, dtype=np.float64)
    assert np.all(x >= 0)
    if x.size == 0 or x.max() == 0:
        return float("nan")
    x = x / x.max()  # With a maximum of 1, squares neither overflow nor underflow.
    return float(x.sum() ** 2 / (x.size * (x**2).sum()))


def least(shares: Floats) -> float:
    """Return the lowest share that is not NaN, or NaN if every share is NaN."""
    known = shares[~np.isnan(shares)]
    return float(known.min()) if len(known) else NAN


def all_active_window(programs: Programs, facts: Facts) -> Window | None:
    """Return the paper's window "during which all clients are active" ([DLPM] §6.1).

    The window runs from the latest first arrival of a client to the earliest last completion of a
    client. A client with unfinished work is active until the horizon. The result is None if a
    client has no program, or if the window would be empty.
    """
    clients, own = len(facts.clients), programs.client
    done, pending = programs.status == FINISHED, programs.status == UNFINISHED
    start, end = np.full(clients, np.inf), np.full(clients, -np.inf)
    np.minimum.at(start, own, programs.arrival_s)
    with np.errstate(invalid="ignore"):
        np.maximum.at(end, own[done], programs.finish_s[done])
    end[own[pending]] = facts.horizon_s
    if not clients or np.isneginf(end).any() or start.max() >= end.min():
        return None
    return Window(float(start.max()), float(end.min()))
