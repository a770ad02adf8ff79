"""Rates that change as planned: the phases of a workload file, and their linear pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf, sqrt
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of ``for_s`` seconds at ``multiple`` (to ``to_multiple``) times the client's rate.

    With ``on_s`` above 0, the phase alternates ``on_s`` seconds of traffic with ``off_s`` of
    silence. The last phase continues for ever, at the multiple reached.
    """

    for_s: Annotated[float, Gt(0)]
    multiple: Annotated[float, Ge(0)]
    to_multiple: Annotated[float, Ge(0)] | None = None
    on_s: Annotated[float, Ge(0)] = 0.0
    off_s: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        if bool(self.on_s) != bool(self.off_s):
            raise ValueError(
                f"on_s = {self.on_s:g}: on_s and off_s must both be above 0, or both be left out"
            )
        if self.on_s and self.to_multiple is not None:
            raise ValueError("to_multiple cannot be combined with on_s and off_s")


class Piece(NamedTuple):
    """A rate that changes linearly from ``rate`` to ``to_rate`` programs/s within a time."""

    start_s: float
    end_s: float
    rate: float
    to_rate: float

    @property
    def slope(self) -> float:
        return (
            0.0 if self.end_s == inf else (self.to_rate - self.rate) / (self.end_s - self.start_s)
        )

    def programs(self, until_s: float = inf) -> float:
        """Return the number of programs that arrive before ``until_s``."""
        length_s = max(0.0, min(self.end_s, until_s) - self.start_s)
        if self.rate == self.to_rate:
            return self.rate * length_s if self.rate else 0.0
        return (self.rate + self.slope * length_s / 2) * length_s

    def when(self, programs: float) -> float:
        """Return the time of the given number of programs, which the piece must contain."""
        root = sqrt(max(0.0, self.rate**2 + 2 * self.slope * programs))
        return self.start_s + (2 * programs / (self.rate + root) if programs else 0.0)


def pieces(phases: tuple[Phase, ...], programs_per_s: float, *, repeat: bool) -> Iterator[Piece]:
    """Yield the pieces of a client's rate in order, without gaps except for silence.

    Pieces end only if nothing arrives afterwards. With ``repeat`` the phases start again after the
    last phase, which otherwise continues for ever.
    """
    start_s = 0.0
    for phase in _rounds(phases) if repeat else phases[:-1]:
        yield from _of(phase, programs_per_s, start_s, start_s + phase.for_s)
        start_s += phase.for_s
    last = phases[-1]
    if last.to_multiple is not None:
        end_s = start_s + last.for_s
        yield from _of(last, programs_per_s, start_s, end_s)
        start_s, last = end_s, Phase(inf, last.to_multiple)
    yield from _of(last, programs_per_s, start_s, inf)


def _rounds(phases: tuple[Phase, ...]) -> Iterator[Phase]:
    """Yield the phases repeatedly, or once if all of them are silent."""
    while True:
        yield from phases
        if not any(phase.multiple or phase.to_multiple for phase in phases):
            return


def _of(phase: Phase, programs_per_s: float, start_s: float, end_s: float) -> Iterator[Piece]:
    rate = phase.multiple * programs_per_s
    if not phase.on_s:
        to_rate = rate
        if phase.to_multiple is not None:
            to_rate = phase.to_multiple * programs_per_s
        yield Piece(start_s, end_s, rate, to_rate)
        return
    period_s = phase.on_s + phase.off_s
    for turn in count():
        on_s = start_s + turn * period_s
        if on_s >= end_s or (end_s == inf and not rate):
            return
        yield Piece(on_s, min(on_s + phase.on_s, end_s), rate, rate)
