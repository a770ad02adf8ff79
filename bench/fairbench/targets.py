"""Clients' latency targets, and the request deadlines that follow from them.

Metrics compare latencies with the targets, and the simulator passes the deadlines to schedulers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from fairbench.errors import UsageError, unknown_name

LATENCIES = ("ttft", "tpot", "e2el")  # names of latencies as in vLLM and AIPerf
SHAPE = re.compile(r"(\d+\.?\d*|\.\d+)(ms|s|x|)", re.ASCII)
WRITE = "write a time above 0 such as 500ms or 2s, or a multiple of the latency alone such as 5x"


class RequestCosts(Protocol):
    """A ``core.CostModel`` that also predicts a request's time in the HTTP server and tokenizer."""

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float: ...
    def decode_step_s(self, requests: int, context_tokens: int) -> float: ...

    def frontend_s(self, input_tokens: int) -> float:
        """Return the seconds that the HTTP server and the tokenizer spend on a request."""
        ...


class Alone(NamedTuple):
    """The latencies of a request that runs alone, on an idle replica with an empty cache."""

    ttft_s: float
    tpot_s: float
    e2el_s: float


class Target(NamedTuple):
    """A limit in seconds or, if ``of_alone``, as a multiple of the latency on an idle replica."""

    amount: float
    of_alone: bool = False

    def seconds(self, alone_s: float) -> float:
        """Return the latency limit in seconds; ``alone_s`` is the latency on an idle replica."""
        return self.amount * alone_s if self.of_alone else self.amount

    def __str__(self) -> str:
        return f"{self.amount:.12g}x" if self.of_alone else f"{self.amount * 1000:.12g}ms"


class Due(NamedTuple):
    """A request's deadlines in seconds on the host's clock; None means no deadline.

    ``token_every_s`` is the promised mean time between tokens, in seconds.
    """

    first_token_s: float | None
    end_s: float | None
    token_every_s: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """A client's latency targets, which apply to each request; None means no target.

    ``ttft`` is the time from arrival to the first token, ``tpot`` is the mean time between later
    tokens, and ``e2el`` is the time from arrival to the last token.
    """

    ttft: Target | None = None
    tpot: Target | None = None
    e2el: Target | None = None

    def __bool__(self) -> bool:
        """Return whether at least one latency has a target."""
        return any(self.given())

    def given(self) -> Iterator[tuple[str, Target]]:
        """Yield the names and values of the targets that are set."""
        for name in LATENCIES:
            if (target := getattr(self, name)) is not None:
                yield name, target

    @property
    def of_alone(self) -> bool:
        """Return whether any target is a multiple of the request's latency on an idle replica."""
        return any(target.of_alone for _, target in self.given())

    def due(self, arrival_s: float, alone: Alone | None, max_new_tokens: int) -> Due:
        """Return the deadlines of a request that may produce ``max_new_tokens`` tokens.

        The last token is due at the earlier of two times: the ``e2el`` target, or the ``ttft``
        target plus ``tpot`` times the number of later tokens.

        Args:
            arrival_s: Arrival of the request on the host's clock, in seconds.
            alone: Latencies of the request on an idle replica, or None if no target needs them.
            max_new_tokens: Limit on the request's output, in tokens.
        """
        ttft_s, tpot_s, e2el_s = alone or Alone(0.0, 0.0, 0.0)
        first = self.ttft and arrival_s + self.ttft.seconds(ttft_s)
        ends = [] if self.e2el is None else [arrival_s + self.e2el.seconds(e2el_s)]
        if first is not None and self.tpot:
            ends.append(first + self.tpot.seconds(tpot_s) * (max_new_tokens - 1))
        pace_s = self.tpot and self.tpot.seconds(tpot_s)
        return Due(first, min(ends, default=None), pace_s)

    def __str__(self) -> str:
        return " ".join(f"{name}:{target}" for name, target in self.given())


def alone(costs: RequestCosts, input_tokens: int, output_tokens: int) -> Alone:
    """Return the latencies of a request that is alone on an idle replica.

    A real engine with chunked prefill has slightly higher latencies than this function returns.

    Args:
        costs: A model of the time of each engine step, and of the HTTP server and the tokenizer.
        input_tokens: Length of the prompt, in tokens.
        output_tokens: Length of the output, in tokens.
    """
    ttft_s = costs.frontend_s(input_tokens) + costs.prefill_s(0, input_tokens)
    # context length at the last decode step, in tokens
    last = input_tokens + max(1, output_tokens - 1)
    tpot_s = (costs.decode_step_s(1, input_tokens + 1) + costs.decode_step_s(1, last)) / 2
    return Alone(ttft_s, tpot_s, ttft_s + max(0, output_tokens - 1) * tpot_s)


NO_TARGETS = Targets()
NOT_DUE = Due(None, None)


def parse_targets(texts: Mapping[str, str], where: str) -> Targets:
    """Parse targets from texts by name, such as ``{"ttft": "500ms"}``.

    A number without a unit is in milliseconds. Raises UsageError, whose message begins with
    ``where``.
    """
    parsed = {}
    for name, text in texts.items():
        if name not in LATENCIES:
            raise unknown_name(f"latency in {where}", name, LATENCIES)
        parsed[name] = _parse(text, f"{where}.{name}")
    return Targets(**parsed)


def written_targets(text: str) -> Targets:
    """Parse a text that ``str(targets)`` has produced."""
    return parse_targets(dict(word.split(":") for word in text.split()), "goodput_targets")


def laid_over(below: Targets, above: Targets) -> Targets:
    """Return all targets of ``above`` and the targets of ``below`` that ``above`` does not set."""
    return Targets(**dict(below.given()) | dict(above.given()))


def named_targets(
    given: Mapping[str, str],
    clients: Iterable[str],
    classes: Mapping[str, str] = MappingProxyType({}),
    usual: Mapping[str, Targets] = MappingProxyType({}),
) -> dict[str, Targets]:
    """Return each client's latency targets; ``given`` overrides the default targets ``usual``.

    A key of ``given`` is a latency such as ``ttft`` (for every client), or has the form
    ``NAME.ttft`` (for a client or a class). ``classes`` maps each client to its class. A target for
    a client takes precedence over a target for its class. Raises UsageError for an unknown name or
    latency, and for an invalid time.
    """
    names = list(clients)
    allowed = {*names, *classes.values()}
    texts: dict[str, dict[str, str]] = {}
    for key, text in given.items():
        name, _, latency = key.rpartition(".")
        if name and name not in allowed:
            raise unknown_name("client or class in goodput", name, allowed)
        texts.setdefault(name, {})[latency] = text
    layers = {
        name: parse_targets(one, f"goodput.{name}".rstrip(".")) for name, one in texts.items()
    }
    found = {}
    for name in names:
        targets = usual.get(name, NO_TARGETS)
        for layer in dict.fromkeys(("", classes.get(name, ""), name)):
            if layer in layers:
                targets = laid_over(targets, layers[layer])
        found[name] = targets
    return found


def _parse(text: str, where: str) -> Target:
    match = SHAPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not 0 < float(match[1]) < 1e9:
        raise UsageError(f"{where} = {text!r}: {WRITE}")
    amount, unit = float(match[1]), match[2]
    return Target(amount if unit in ("s", "x") else amount / 1000, unit == "x")
