"""The table of a trace's requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAILED = "failed requests"  # By default, a trace leaves out failed requests.


@dataclass(frozen=True, eq=False)
class TraceTable:
    """The requests of a trace as columns; row i of every column is request i.

    Attributes:
        clients: The names of the clients; a client's code is its position in this list.
        arrival_s: The time of arrival, in seconds after the first request.
        client: The code (number) of the client.
        input_tokens: The number of tokens in the prompt.
        output_tokens: The number of tokens in the answer.
        max_tokens: The limit on the output tokens of the request, or 0 if unknown.
        session: The number of the session, or -1 for a request without a session.
        end_s: The end of the answer in seconds after the first request; NaN if unknown.
        think_s: The seconds from the end of the previous step's answer to the request, or NaN.
        block_size: The number of tokens in a block.
        first_block: For each request, the index of its first block in ``blocks``; one more entry
            at the end holds the number of blocks.
        blocks: The ids of the blocks of all prompts.
        branch: The number of a sub-agent of the session, or 0 for the session itself.
        shared: The number of tokens at the prompt's beginning that other sessions may share.
        left_out: The number of requests in the trace file that are not in the table.
        who_left_out: A description of the requests that are not in the table.
        synthetic: Descriptions of the parts of the trace that were not recorded.
    """

    clients: tuple[str, ...]
    arrival_s: Floats
    client: Ints
    input_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    session: Ints
    end_s: Floats
    think_s: Floats
    block_size: Ints
    first_block: Ints
    blocks: Ints
    branch: Ints
    shared: Ints
    left_out: int = 0
    who_left_out: str = FAILED
    synthetic: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """The time from the first request to the last request, in seconds."""
        return float(self.arrival_s[-1])

    def selected(self, rows: Ints) -> TraceTable:
        """Return the requests in the order of ``rows``; clients without requests are dropped."""
        codes, client = np.unique(self.client[rows], return_inverse=True)
        counts = np.diff(self.first_block)[rows]
        starts = np.repeat(self.first_block[rows] - sums_before(counts), counts)
        return replace(
            self,
            clients=tuple(self.clients[code] for code in codes),
            client=client.astype(np.int64),
            first_block=np.append(sums_before(counts), counts.sum()),
            blocks=self.blocks[starts + np.arange(counts.sum())],
            **{name: getattr(self, name)[rows] for name in COLUMNS if name != "client"},
        )


LENGTHS = ("input_tokens", "output_tokens", "max_tokens")
COUNTS = ("client", *LENGTHS, "session", "block_size", "branch", "shared")
COLUMNS = ("arrival_s", "end_s", "think_s", *COUNTS)


def sums_before(counts: Ints) -> Ints:
    """Return for each count the sum of all counts before it."""
    return np.cumsum(counts) - counts
