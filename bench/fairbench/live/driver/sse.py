"""Server-sent events out of the bytes of a stream, however they are cut up."""

from __future__ import annotations

DONE = b"[DONE]"
MAX_EVENT_BYTES = 16 * 2**20


class EventSplitter:
    """Feed it bytes; it returns the payloads of the events that have become complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of ``data:`` lines, in order. Other fields and comments are skipped.

        Raises ValueError for an event of more than ``MAX_EVENT_BYTES``.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
