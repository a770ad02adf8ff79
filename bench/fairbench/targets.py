"""Latency targets: what each request of a client was promised, and by when that makes it due.

Metrics judge by them, the simulator tells schedulers when a request is due.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from fairbench.errors import UsageError, unknown_name

LATENCIES = ("ttft", "tpot", "e2el")  # as vLLM and AIPerf name them
SHAPE = re.compile(r"(\d+\.?\d*|\.\d+)(ms|s|x|)")
WRITE = "write a time above 0 such as 500ms or 2s, or 5x for so many times the latency alone"


class RequestCosts(Protocol):
    """``core.CostModel``, and what lies outside the engine."""

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float: ...

    def decode_step_s(self, requests: int, context_tokens: int) -> float: ...

    def frontend_s(self, input_tokens: int) -> float:
        """Seconds before and behind the engine: HTTP, tokenizer."""
        ...


class Alone(NamedTuple):
    """Latencies of a request that an idle replica, with an empty cache, serves by itself."""

    ttft_s: float
    tpot_s: float
    e2el_s: float


class Target(NamedTuple):
    """At most so many seconds, or, if ``of_alone``, so many times the latency alone."""

    amount: float
    of_alone: bool = False

    def seconds(self, alone_s: float) -> float:
        """The limit of a request whose latency alone is ``alone_s``."""
        return self.amount * alone_s if self.of_alone else self.amount

    def __str__(self) -> str:
        return f"{self.amount:.12g}x" if self.of_alone else f"{self.amount * 1000:.12g}ms"


class Due(NamedTuple):
    """When a request is due, in seconds on the home's clock; None where nothing says so.

    ``token_every_s`` is the mean time between tokens that it was promised.
    """

    first_token_s: float | None
    end_s: float | None
    token_every_s: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """What each request of a client is to keep; None is no target.

    ``ttft`` is from arrival to the first token, ``tpot`` the mean time between tokens after it,
    ``e2el`` from arrival to the last token.
    """

    ttft: Target | None = None
    tpot: Target | None = None
    e2el: Target | None = None

    def given(self) -> Iterator[tuple[str, Target]]:
        """Those that there are, by name."""
        for name in LATENCIES:
            if (target := getattr(self, name)) is not None:
                yield name, target

    @property
    def of_alone(self) -> bool:
        """Whether some are multiples, for which a timing profile is needed."""
        return any(target.of_alone for _, target in self.given())

    def due(self, arrival_s: float, alone: Alone | None, max_new_tokens: int) -> Due:
        """When a request is due that may produce ``max_new_tokens``; nobody knows if it will.

        Its end is due by ``e2el``, or when the last token is by ``ttft`` and ``tpot``.
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
    """Latencies of a request by itself: the frontend, a prefill of all its input, steps of one.

    Longer prompts than an engine computes in one chunk take a little more there.
    """
    ttft_s = costs.frontend_s(input_tokens) + costs.prefill_s(0, input_tokens)
    last = input_tokens + max(1, output_tokens - 1)  # context of the last decode step
    tpot_s = (costs.decode_step_s(1, input_tokens + 1) + costs.decode_step_s(1, last)) / 2
    return Alone(ttft_s, tpot_s, ttft_s + max(0, output_tokens - 1) * tpot_s)


NO_TARGETS = Targets()
NOT_DUE = Due(None, None)


def parse_targets(texts: Mapping[str, str], where: str) -> Targets:
    """Targets from texts by name, such as ``{"ttft": "500ms"}``; a bare number is in ms.

    Raises UsageError that begins with ``where``.
    """
    parsed = {}
    for name, text in texts.items():
        if name not in LATENCIES:
            raise unknown_name(f"latency in {where}", name, LATENCIES)
        parsed[name] = _parse(text, f"{where}.{name}")
    return Targets(**parsed)


def written_targets(text: str) -> Targets:
    """The targets that ``str`` wrote."""
    return parse_targets(dict(word.split(":") for word in text.split()), "goodput_targets")


def laid_over(below: Targets, above: Targets) -> Targets:
    """The targets of ``above``, and where it has none those of ``below``."""
    return Targets(**dict(below.given()) | dict(above.given()))


def named_targets(
    given: Mapping[str, str],
    clients: Iterable[str],
    classes: Mapping[str, str] = MappingProxyType({}),
    usual: Mapping[str, Targets] = MappingProxyType({}),
) -> dict[str, Targets]:
    """The targets of each client by name: ``usual`` ones with ``given`` ones laid over them.

    A key of ``given`` is ``ttft``, for every client, or ``NAME.ttft``, for a client or one of the
    ``classes`` (client -> class); the client's own counts most. Raises UsageError for another name,
    latency or time.
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
