"""Sentences on floods (periods of very high load by a client) and on the delays they cause."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from fairbench.errors import printable
from fairbench.files.times import ClockTime
from fairbench.metrics.floods import Flood, Harm, floods, harm_of
from fairbench.metrics.traffic import Traffic
from fairbench.report.numbers import number, percent

MANY = 1000.0  # A larger multiple of the other clients' mean load is printed as "over 1,000".
# A sentence on a flood also states the flood's share of the load without larger floods, if this
# share exceeds the flood's share of all load by more than ``LEAST_REST``.
LEAST_REST = 0.005
NAMED = 3  # A sentence names at most this number of delayed clients.
TTFT = "time to first token"


def flood_line(traffic: Traffic, flood: Flood, verb: str = "floods") -> str:
    """Return a sentence that names a flood's client, time and size.

    ``verb`` is "floods" or "bursts". A flood's size is its share of all load during the flood. If
    larger floods occur during the flood, the sentence also gives the flood's share of the load
    without the larger floods.
    """
    name = printable(traffic.clients[flood.client])
    when = "throughout"
    if not flood.throughout:
        when = f"from {window(flood.start_s, flood.end_s, traffic.clock)}"
    if flood.rest > flood.share + LEAST_REST:
        much = f"{flood.rest:.0%} of the load without larger floods"
    else:
        times = f"{flood.multiple:.0f}" if flood.multiple < MANY else f"over {MANY:,.0f}"
        much = f"{times} times the mean of the other clients"
    return f"{name} {verb} {when}: {flood.share:.0%} of the load in that time, {much}."


def harm_line(traffic: Traffic, harm: Harm, heavy: int, measured: str, basis: str) -> str:
    """Return a sentence on the delayed clients: their number, the period, and their waits.

    ``heavy`` is the number of clients that send floods of requests.
    """
    others = len(traffic.clients) - heavy
    worst = listed([printable(traffic.clients[one.client]) for one in harm.victims[:NAMED]])
    count = len(harm.victims)
    who = worst if count <= NAMED else f"{count:,} of {others:,} other clients"
    more = f" ({worst} longest)" if count > NAMED else ""
    when = window(harm.start_s, harm.end_s, traffic.clock)
    return (
        f"From {when}, {who} waited{more}: {'its' if count == 1 else 'their'} median {measured} "
        f"{basis} was {number(harm.median_s)} s, otherwise {number(harm.usual_s)} s."
    )


def listed(names: Sequence[str]) -> str:
    """Return names as ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


class Shortfall(NamedTuple):
    """The period in which a client received the smallest fraction (``share``) of its fair share."""

    client: str
    share: float
    start_s: float
    end_s: float


class JudgedTraffic(NamedTuple):
    """Traffic with its floods of requests, the delays that they cause, and the heavy clients.

    ``bursts`` are floods (sudden overloads) by clients that the workload declares as well-behaved.
    ``shortfall`` is the worst minute of a run, if a client received much less than its fair share
    in this minute.
    """

    traffic: Traffic
    floods: tuple[Flood, ...]
    harm: Harm | None
    heavy: tuple[str, ...]
    bursts: tuple[Flood, ...] = ()
    shortfall: Shortfall | None = None


def judged(
    traffic: Traffic, well_behaved: Collection[str] = (), shortfall: Shortfall | None = None
) -> JudgedTraffic:
    """Find the floods in traffic, and the delays that the floods cause.

    A flood of a client in ``well_behaved`` is called a burst.
    """
    every = floods(traffic)
    found = tuple(one for one in every if traffic.clients[one.client] not in well_behaved)
    bursts = tuple(one for one in every if one not in found)
    heavy = tuple(dict.fromkeys(traffic.clients[one.client] for one in found))
    return JudgedTraffic(traffic, found, harm_of(traffic, found), heavy, bursts, shortfall)


def traffic_lines(found: JudgedTraffic, basis: str, measured: str = TTFT) -> Iterator[str]:
    """Yield a sentence for each flood, burst and delay; traffic without floods yields nothing."""
    yield from (flood_line(found.traffic, one) for one in found.floods)
    yield from (flood_line(found.traffic, one, "bursts") for one in found.bursts)
    if found.harm is not None:
        for part in found.harm.parts or (found.harm,):
            yield harm_line(found.traffic, part, len(found.heavy), measured, basis)
    elif found.floods and found.shortfall is not None:
        yield shortfall_line(found.shortfall, found.traffic.clock)
    elif found.floods and found.traffic.knows_waits:
        yield "No other client waited noticeably longer than usual."


def shortfall_line(found: Shortfall, clock: ClockTime | None) -> str:
    """Return a sentence on the period in which a client received little of its fair share."""
    when = window(found.start_s, found.end_s, clock)
    return (
        f"{printable(found.client)} received {percent(found.share)} of its fair share from {when}."
    )


def window_list(parts: Sequence[tuple[float, float]], clock: ClockTime | None = None) -> str:
    """Return several periods as text: ``150 to 200 s and 600 to 660 s``."""
    return listed([window(*one, clock) for one in parts])


def window(start_s: float, end_s: float, clock: ClockTime | None = None) -> str:
    """Return a period in whole seconds, with clock times if they are known."""
    dated = f" ({clock.window(start_s, end_s)})" if clock is not None else ""
    return f"{start_s:,.0f} to {end_s:,.0f} s{dated}"
