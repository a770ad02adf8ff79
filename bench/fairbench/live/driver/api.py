"""What the driver must know of a server's API: how to ask, and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fairbench.core import Prompt, Segment
from fairbench.live.driver.answer import Answer

# Siblings of a tree send the identical prompt. Were they answered alike, they would share a cached
# prefix that the workload does not have.
TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """One call in the words of no API.

    ``outputs`` are the answers that the prompt contains, by key of their segment, as the same API
    rendered them. ``min_tokens`` is None where the server takes no such thing.
    """

    prompt: Prompt
    outputs: Mapping[str, bytes]
    client: str
    max_tokens: int
    min_tokens: int | None


class ServerApi(Protocol):
    """One of the three ways to ask."""

    path: str

    def body(self, question: Question) -> bytes:
        """The JSON to send."""
        ...

    def answer(self) -> Answer:
        """A fresh answer, to be filled by the events that come back."""
        ...


def rendered(
    segments: Iterable[Segment], outputs: Mapping[str, bytes], fresh: Callable[[Segment], bytes]
) -> list[bytes]:
    """Each segment as the server produced it or, if it is none of its outputs, made ``fresh``."""
    parts = []
    for segment in segments:
        output = outputs.get(segment.key)
        parts.append(fresh(segment) if output is None else output)
    return parts
