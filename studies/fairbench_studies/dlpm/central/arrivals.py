"""An endless stream of tree-of-thought requests, to measure a central scheduler's cost."""

from __future__ import annotations

from array import array
from collections import deque
from random import Random

from fairbench.core import Request
from fairbench_load.token_pages import segments_of

CLIENTS = 4
# The lengths in tokens are for trees of thought on the GSM8K data set ([DLPM] Table 2). A prompt
# consists of an instruction, which all prompts share, and a question. Each further tree level adds
# the previous output and a short instruction to the prompt.
INSTRUCTION_TOKENS = 66
QUESTION_TOKENS = 480
OUTPUT_TOKENS = 256
TURN_TOKENS = 32
LEVELS = 4
NEW_QUESTIONS = 0.25  # fraction of requests that start a new tree; other requests continue a tree
LATELY = 200
# ``CONTEXT_TOKENS`` is the mean context of running requests, which are on average at half the depth
# of their trees, and have produced half of their outputs.
CONTEXT_TOKENS = (
    INSTRUCTION_TOKENS
    + QUESTION_TOKENS
    + LEVELS // 2 * (OUTPUT_TOKENS + TURN_TOKENS)
    + OUTPUT_TOKENS // 2
)


class TreeOfThoughtArrivals:
    """A generator of tree-of-thought requests whose prompts consist of random token ids."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._instruction = self._tokens(INSTRUCTION_TOKENS)
        self._created = 0
        # ``_under_way`` holds the prompt and the tree level of each unfinished request by its id.
        self._under_way: dict[int, tuple[array[int], int]] = {}
        self._finished: deque[tuple[array[int], int]] = deque(maxlen=LATELY)

    def take(self) -> Request:
        """Create and return the next request."""
        if not self._finished or self._rng.random() < NEW_QUESTIONS:
            prompt, depth = self._instruction + self._tokens(QUESTION_TOKENS), 0
        else:
            parent, depth = self._rng.choice(self._finished)
            prompt, depth = parent + self._tokens(OUTPUT_TOKENS + TURN_TOKENS), depth + 1
        number, self._created = self._created, self._created + 1
        self._under_way[number] = prompt, depth
        return Request(
            request_id=number,
            client=f"client-{number % CLIENTS}",
            program_id=number,
            depth=depth,
            prompt=segments_of(prompt),
            input_tokens=len(prompt),
            max_new_tokens=OUTPUT_TOKENS,
        )

    def on_finish(self, request: Request) -> None:
        """Allow later prompts to extend this request's prompt, up to ``LEVELS`` turns."""
        prompt, depth = self._under_way.pop(request.request_id)
        if depth + 1 < LEVELS:
            self._finished.append((prompt, depth))

    def _tokens(self, count: int) -> array[int]:
        return array("I", self._rng.randbytes(count * array("I").itemsize))
