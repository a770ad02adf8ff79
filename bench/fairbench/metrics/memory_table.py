"""The memory table: every change in the KV memory that clients hold."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.metrics.records import Floats, Ints, Table

NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Memory(Table):
    """A row per change: ``client`` holds ``change`` more tokens, shared with others.

    ``holders`` is the number of clients that hold each of the tokens. A token counts 1 /
    ``holders`` for the client. ``by`` is the client for whose requests the tokens were evicted,
    -1 for none.
    """

    at_s: Floats
    worker: Ints
    client: Ints
    holders: Ints
    change: Ints
    by: Ints
