"""Charges: the tokens booked for a request, for any report of its worker and any end."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from fairbench.live.router.answers import Usage

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
    """The maximum cost of a request. ``prompt_tokens`` is its known or estimated prompt."""

    prompt_tokens: int
    most_input_tokens: int
    most_output_tokens: int


def reported(usage: Usage, asked: Asked) -> Charge:
    """Return the charge that a worker reports, limited to between 0 and the request's maximum."""
    read = _within(usage.input_tokens, asked.most_input_tokens)
    return Charge(
        read,
        _within(usage.output_tokens, asked.most_output_tokens),
        _within(usage.cached_tokens, read),
    )


def broken_off(
    usage: Usage, asked: Asked, elapsed_s: float, token_s: float | None, *, left: bool = False
) -> Charge:
    """Return the charge for an incomplete answer: the received tokens, or an estimate.

    ``left`` means that the client abandoned the answer. Such a client also pays for the memory
    reserved for the rest. Otherwise a client that requests long answers and leaves early would
    reserve memory for free. The prompt counts completely. An answer in one piece arrives only at
    its end, so one token per ``token_s`` seconds since sending is assumed; None if a better count
    is known.
    """
    prompt = min(asked.prompt_tokens, asked.most_input_tokens)
    read = prompt if usage.input_tokens is None else usage.input_tokens
    produced = usage.output_tokens or 0
    if token_s is not None:
        produced = max(produced, int(elapsed_s / token_s))
    if left:
        to_come = min(max(0, asked.most_output_tokens - produced), MOST_RESERVED)
        produced += int(RESERVED_SHARE * to_come)
    return reported(usage._replace(input_tokens=read, output_tokens=produced), asked)


def _within(tokens: int | None, most: int) -> int:
    return max(0, min(tokens or 0, most))


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
