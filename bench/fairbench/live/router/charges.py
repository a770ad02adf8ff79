"""Charges: what a request is booked with, whatever its worker says and however it ended."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from fairbench.live.router.usage import Usage

FIRST_TOKEN_S = 0.02  # until an answer was complete: about what an 8B model takes on an A100
# What an engine keeps free for the rest of an answer: SGLang, of at most 4,096 tokens to come, the
# share to which its new_token_ratio decays.
RESERVED_SHARE, MOST_RESERVED = 0.098, 4_096
LATEST_SHARE = 0.05  # of an answer in the average


class Charge(NamedTuple):
    """Tokens that a client is booked with; those cached are among the input."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


NOTHING = Charge()


class Bill:
    """What a request has cost so far, at whatever workers."""

    def __init__(self) -> None:
        self.total = NOTHING

    def add(self, charge: Charge) -> None:
        """One more worker has done something for it."""
        self.total = Charge(*map(sum, zip(self.total, charge, strict=True)))


class Asked(NamedTuple):
    """What a request may cost at most. ``prompt_tokens`` is what is known or estimated of it."""

    prompt_tokens: int
    most_input_tokens: int
    most_output_tokens: int


def reported(usage: Usage, asked: Asked) -> Charge:
    """What the worker says, as far as it can be: nothing below 0, nor more than was asked."""
    read = _within(usage.input_tokens, asked.most_input_tokens)
    return Charge(
        read,
        _within(usage.output_tokens, asked.most_output_tokens),
        _within(usage.cached_tokens, read),
    )


def broken_off(
    usage: Usage,
    asked: Asked,
    elapsed_s: float,
    token_s: float | None,
    *,
    left: bool = False,
) -> Charge:
    """What an answer that nobody read to its end has cost: what came of it, or an estimate.

    With ``left`` the client gave it up, and pays for what was kept free for the rest, too: else who
    asks for much and leaves early holds room for nothing. The prompt counts whole. Of an answer in
    one piece nothing has come: it is taken to have had a token every ``token_s`` seconds since it
    was sent, None where that is known better.
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
    """Seconds a token of whole answers at each worker lately, from sending to end, waiting too."""

    def __init__(self) -> None:
        self._token_s: defaultdict[int, float] = defaultdict(lambda: FIRST_TOKEN_S)

    def token_s(self, worker: int) -> float:
        """An exponential average over the worker's answers."""
        return self._token_s[worker]

    def observe(self, worker: int, elapsed_s: float, output_tokens: int) -> None:
        """An answer of so many tokens was complete after so long."""
        if output_tokens > 0:
            latest = max(elapsed_s / output_tokens, 1e-6)
            self._token_s[worker] += LATEST_SHARE * (latest - self._token_s[worker])
