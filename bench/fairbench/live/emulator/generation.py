"""A generation: one request as its HTTP handler sees it, and how much output there is by now."""

from __future__ import annotations

from asyncio import Event

from fairbench.core import PS_PER_S
from fairbench.live.emulator.calls import EmulatedCall
from fairbench.live.emulator.text import Text
from fairbench.live.emulator.token_streams import Ids
from fairbench.sim.sequence import REFUSED, Sequence


class Generation:
    """``produced`` of its tokens are there; ``done`` once there will be no more.

    ``aborted`` is set by whoever wants no more.
    """

    def __init__(self, call: EmulatedCall, sequence: Sequence, ids: Ids, text: Text) -> None:
        self.call = call
        self.sequence = sequence
        self.produced = 0
        self.done = False
        self.aborted = False
        self._ids: list[int] = ids.tolist()
        self._text = text
        self._news = Event()

    def deliver(self, produced: int, *, done: bool = False) -> None:
        """Said by the engine, which has come so far."""
        self.produced, self.done = produced, done
        self._news.set()

    async def begun(self) -> None:
        """Wait for the first of the output, or that there will be none; leaves it as news."""
        await self._news.wait()

    async def news(self) -> None:
        """Wait until there is more than last time, or nothing more to come."""
        await self._news.wait()
        self._news.clear()

    @property
    def refused(self) -> bool:
        """Whether the scheduler has not taken it in."""
        return self.sequence.status == REFUSED

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were cached when it was admitted."""
        return self.sequence.cached_tokens

    @property
    def queue_s(self) -> float:
        """How long it waited to be admitted, on the engine's clock. Precondition: it has been."""
        return (self.sequence.admitted_ps - self.sequence.arrival_ps) / PS_PER_S

    def ids(self, end: int) -> list[int]:
        """The first ``end`` output tokens."""
        return self._ids[:end]

    def text(self, start: int, end: int) -> str:
        """Output tokens ``start`` to ``end`` as text."""
        return self._text.decode(self._ids[start:end])
