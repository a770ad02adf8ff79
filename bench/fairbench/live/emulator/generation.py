"""A generation: one request as its HTTP handler sees it, with the output so far and its end.

All tokens of an output are known in advance, and so is where it ends.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from fairbench.core import PS_PER_S
from fairbench.live.emulator.calls import EmulatedCall, Stops
from fairbench.live.emulator.text import Text
from fairbench.sim.sequence import REFUSED, Sequence

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an output after ``tokens`` tokens, for this ``reason``.

    ``matched`` is what stopped it, or None for an end of its own. Only the first ``visible``
    characters are shown, all if that is None.
    """

    tokens: int
    reason: str
    matched: str | int | None = None
    visible: int | None = None


def ending_of(ids: list[int], most: int, stops: Stops, text: Text) -> Ending:
    """Return how an output with these tokens ends, if the request allows ``most`` tokens.

    As in SGLang, after each token the length is checked first, then stop tokens, then stop texts in
    order.
    """
    is_full = len(ids) >= most
    found = [Ending(most, LENGTH)] if is_full else []
    token = next((place for place, one in enumerate(ids) if one in stops.tokens), None)
    lengths = _lengths(ids, text) if stops.texts or token is not None else []
    if token is not None:
        found.append(Ending(token + 1, STOP, ids[token], lengths[token]))
    said = text.decode(ids) if stops.texts else ""
    for one in stops.texts:
        at = said.find(one)
        if one and at >= 0:
            tokens = next(n for n, end in enumerate(lengths) if end >= at + len(one))
            found.append(Ending(tokens, STOP, one, at))
    if not is_full:
        found.append(Ending(len(ids), STOP))
    first = min(found, key=lambda ending: ending.tokens)
    return replace(first, visible=None) if stops.keep else first


def _lengths(ids: list[int], text: Text) -> list[int]:
    """Return the lengths in characters of the first 0, 1, 2 ... tokens."""
    return [0, *accumulate(len(text.decode([one])) for one in ids)]


class Generation:
    """The output of a request: ``produced`` tokens so far, ``done`` when no more will come.

    ``aborted`` is set by whoever wants no more. ``ids`` are its output, of which ``ending`` is the
    end.
    """

    def __init__(
        self, call: EmulatedCall, sequence: Sequence, ids: list[int], ending: Ending, text: Text
    ) -> None:
        self.call = call
        self.ending = ending
        self.sequence = sequence
        self.produced = 0
        self.done = False
        self.aborted = False
        self._sent = 0  # tokens of a stream that have gone
        self._ids = ids
        self._text = text
        self._news = Event()

    def deliver(self, produced: int, *, done: bool = False) -> None:
        """Receive the engine's progress."""
        self.produced, self.done = produced, done
        self._news.set()

    async def begun(self) -> None:
        """Wait for the first output or for the end without output, without consuming the news."""
        await self._news.wait()

    async def changed(self) -> None:
        """Wait until there is more output than last time, or no more to come."""
        await self._news.wait()
        self._news.clear()

    @property
    def refused(self) -> bool:
        """Return whether the scheduler refused the request."""
        return self.sequence.status == REFUSED

    @property
    def cached_tokens(self) -> int:
        """The prompt tokens that were cached when the request was admitted."""
        return self.sequence.cached_tokens

    @property
    def queue_s(self) -> float:
        """The queueing delay on the engine's clock. Precondition: the request was admitted."""
        return (self.sequence.admitted_ps - self.sequence.arrival_ps) / PS_PER_S

    def ids(self, end: int) -> list[int]:
        """Return the first ``end`` output tokens."""
        return self._ids[:end]

    def text(self, start: int, end: int) -> str:
        """Return output tokens ``start`` to ``end`` as text, up to the visible end."""
        said = self._text.decode(self._ids[start:end])
        if self.ending.visible is None:
            return said
        before = len(self._text.decode(self._ids[:start]))
        return said[: max(0, self.ending.visible - before)]

    def steps(self) -> Iterator[tuple[int, int, bool]]:
        """Yield (start, end, last) of the next events of a stream, in output tokens.

        With an interval, each event covers exactly that many tokens, even if the engine is further
        ahead.
        """
        every = self.call.stream_interval
        while every is not None and self._sent + (step := every if self._sent else 1) < (
            self.produced + (not self.done)
        ):
            yield self._sent, self._sent + step, False
            self._sent += step
        if self.done or every is None:
            yield self._sent, self.produced, self.done
            self._sent = self.produced
