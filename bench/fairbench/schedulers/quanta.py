"""Quanta: how many a client in debt is granted until it is in credit."""

from __future__ import annotations


def rounds_to_credit(credit: float, quantum: float) -> float:
    """Return the fewest quanta that lift a credit of at most 0 above 0."""
    rounds = -credit // quantum + 1
    # A weighted quantum may be no whole number, and quotients of such are rounded.
    return rounds if rounds * quantum > -credit else rounds + 1
