"""Charges: the tokens booked for a request, for any report of its worker and any end."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from fairbench_serve.answers import Usage

# assumed until an answer was complete: about the time of an 8B model on an A100
FIRST_TOKEN_S = 0.02
# Memory that an engine keeps free for the rest of an answer: SGLang reserves for at most 4,096
# further tokens, times the lowest value of its new_token_ratio.
RESERVED_SHARE, MOST_RESERVED = 0.098, 4_096
LATEST_SHARE = 0.05  # mean size of an answer


class Charge(NamedTuple):
    """The tokens booked for a client; cached tokens are part of the input."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def plus(self, other: Charge) -> Charge:
        return Charge(*map(sum, zip(self, other, strict=True)))


NOTHING = Charge()


class Bill:
    """The cost of a request so far, summed over all workers."""

    def __init__(self) -> None:
        self.total = NOTHING

    def add(self, charge: Charge) -> None:
        self.total = self.total.plus(charge)


class Asked(NamedTuple):
    """The maximum cost of a request. ``prompt_tokens`` is its known or estimated prompt.

    ``most_output_tokens`` is the output of all ``answers``, which are produced at the same time.
    """

    prompt_tokens: int
    most_input_tokens: int
    most_output_tokens: int
    answers: int = 1


def reported(usage: Usage, asked: Asked) -> Charge:
    """Return the charge that a worker reports.

    An impossible or missing count of input tokens is replaced by the known or estimated prompt, and
    one of cached tokens by 0.
    """
    told = _possible(usage.input_tokens, asked.most_input_tokens)
    read = told or min(asked.prompt_tokens, asked.most_input_tokens)
    output = max(0, min(usage.output_tokens or 0, asked.most_output_tokens))
    return Charge(read, output, _possible(usage.cached_tokens, read))


def broken_off(
    usage: Usage, asked: Asked, elapsed_s: float, token_s: float | None, *, left: bool = False
) -> Charge:
    """Return the charge for an incomplete answer: the received tokens, or an estimate.

    ``left`` means that the client abandoned an unfinished answer. Such a client also pays for the
    memory reserved for the rest. Otherwise a client that requests long answers and leaves early
    would reserve memory for free. The prompt counts completely. An answer in one piece arrives only
    at its end, so one token per ``token_s`` seconds since sending is assumed for each answer; None
    if a better count is known.
    """
    so_far, most = reported(usage, asked), asked.most_output_tokens
    produced = so_far.output_tokens
    if token_s is not None:
        produced = max(produced, min(int(elapsed_s / token_s) * asked.answers, most))
    if left:
        produced += int(RESERVED_SHARE * min(most - produced, MOST_RESERVED * asked.answers))
    return so_far._replace(output_tokens=produced)


def _possible(tokens: int | None, most: int) -> int:
    return tokens if tokens is not None and 0 <= tokens <= most else 0


class Pace:
    """Recent seconds per token of complete answers at each worker, including waiting."""

    def __init__(self) -> None:
        self._token_s: defaultdict[int, float] = defaultdict(lambda: FIRST_TOKEN_S)

    def token_s(self, worker: int) -> float:
        """Return the seconds per token, an exponential average over the worker's answers."""
        return self._token_s[worker]

    def observe(self, worker: int, elapsed_s: float, output_tokens: int) -> None:
        if output_tokens > 0:
            latest = max(elapsed_s / output_tokens, 1e-6)
            self._token_s[worker] += LATEST_SHARE * (latest - self._token_s[worker])
