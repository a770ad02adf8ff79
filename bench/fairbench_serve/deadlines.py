"""Deadlines of requests, from their headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairbench.errors import UsageError, unknown_name
from fairbench.live import headers
from fairbench.live.json_errors import bad_request
from fairbench.targets import NO_TARGETS, Due, Targets, laid_over, parse_targets

LONGEST_MS = 86_400_000  # one day


@dataclass(frozen=True, slots=True)
class Promise:
    """The targets of a request, and the limit in seconds that the request itself sets."""

    targets: Targets = NO_TARGETS
    within_s: float | None = None

    def due(self, arrival_s: float, max_new_tokens: int) -> Due:
        """Return the due times; the request's own deadline takes precedence over a target."""
        due = self.targets.due(arrival_s, None, max_new_tokens)
        return due if self.within_s is None else due._replace(end_s=arrival_s + self.within_s)


NO_PROMISE = Promise()


@dataclass(frozen=True, slots=True)
class Promises:
    """The targets of every request, and of requests that name one of the ``objectives``."""

    of_all: Targets = NO_TARGETS
    objectives: Mapping[str, Targets] = field(default_factory=dict)

    def of(self, sent: Mapping[str, str]) -> Promise:
        """Return the targets for a request's headers. Raises Problem (400) for an invalid header.

        An unknown objective is ignored if no objectives are configured, since it belongs to another
        router; otherwise it is an error.
        """
        named = (sent[name] for name in headers.OBJECTIVE_ALIASES if name in sent)
        objective = next(named, None)
        targets = self.of_all
        if objective is not None and self.objectives:
            if objective not in self.objectives:
                raise bad_request(str(unknown_name("objective", objective, self.objectives)))
            targets = self.objectives[objective]
        within_ms = sent.get(headers.DEADLINE)
        if within_ms is None:
            return Promise(targets) if targets is not NO_TARGETS else NO_PROMISE
        return Promise(targets, _ms(within_ms) / 1000)

    def table(self) -> dict[str, str]:
        """Return the equivalent flags, ``NAME.LATENCY`` -> time."""
        named = {"": self.of_all, **self.objectives}
        return {
            f"{name}.{latency}".lstrip("."): str(target)
            for name, targets in named.items()
            for latency, target in targets.given()
        }


def promises(given: Mapping[str, str] | None) -> Promises:
    """Parse ``--goodput`` flags: ``ttft`` for every request, ``NAME.ttft`` for an objective.

    Raises UsageError for another latency or time, and for multiples of the unloaded latency, which
    is unknown here.
    """
    texts: dict[str, dict[str, str]] = {"": {}}
    for key, text in (given or {}).items():
        name, _, latency = key.rpartition(".")
        texts.setdefault(name, {})[latency] = text
    parsed = {name: parse_targets(one, f"--goodput {name}".rstrip()) for name, one in texts.items()}
    for targets in parsed.values():
        for latency, target in targets.given():
            if target.of_alone:
                raise UsageError(
                    f"--goodput {latency}:{target}: serve does not know the latency on an "
                    "idle worker; write a time such as 500ms or 2s"
                )
    of_all = parsed.pop("")
    return Promises(of_all, {name: laid_over(of_all, one) for name, one in parsed.items()})


def _ms(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= LONGEST_MS):
        raise bad_request(
            f"{headers.DEADLINE}: {text[:40]!r} must be a number of milliseconds from 1 "
            f"to {LONGEST_MS}"
        )
    return int(text)
