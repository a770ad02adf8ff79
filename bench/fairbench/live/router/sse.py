"""Server-sent events from chunks of bytes, with time and memory bounded by the input."""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 2**22
# A blank line in any of the three spellings of a line's end. Atomic: CR LF is one end, not two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_END = 4


class EventSplitter:
    """A splitter that returns whole events, each with the blank line that ends it.

    One of more than ``MAX_EVENT_BYTES`` comes in pieces, as it came, so that a worker which never
    ends one fills no memory: ``feed`` tells pieces from events.
    """

    def __init__(self) -> None:
        self._begun = bytearray()
        self._searched = 0  # up to there no blank line begins
        self._oversized = False  # pieces of the event that has begun have gone already

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """Return the completed parts, each with whether it is a whole event."""
        self._begun += chunk
        end = self._last_end()
        whole = bytes(self._begun[:end])
        del self._begun[:end]
        found = self._events_in(whole) if whole else []
        if len(self._begun) > MAX_EVENT_BYTES:
            # All but what may be the beginning of a blank line.
            stop = len(self._begun) - _LONGEST_END
            found.append((bytes(self._begun[:stop]), False))
            del self._begun[:stop]
            self._oversized = True
        self._searched = max(0, len(self._begun) - _LONGEST_END)
        return found

    def _events_in(self, whole: bytes) -> list[tuple[bytes, bool]]:
        if b"data" not in whole:  # comments, of which some servers send many
            self._oversized = False
            return [(whole, False)]
        found: list[tuple[bytes, bool]] = []
        start = 0
        for end in _BLANK_LINE.finditer(whole):
            found.append((whole[start : end.end()], not self._oversized))
            start, self._oversized = end.end(), False
        if start < len(whole):  # an odd end of line more
            found.append((whole[start:], False))
        return found

    def _last_end(self) -> int:
        """Return the end of the last complete event."""
        begun, searched = self._begun, self._searched
        ends = [(begun.rfind(end, searched), len(end)) for end in _BLANK_LINES]
        return max(at + length if at >= 0 else 0 for at, length in ends)

    def rest(self) -> bytes:
        """Return the received part of an event that never ended."""
        return bytes(self._begun)


def data_of(event: bytes) -> bytes:
    """Return an event's ``data``, or b"" if it has none, such as a comment."""
    if b"data:" not in event:
        return b""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines])
