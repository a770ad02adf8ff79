"""The cards of a page on traffic: the largest flood and its harm."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.errors.printable import printable
from fairbench.report.numbers import number
from fairbench.report.pages.page import Headline
from fairbench.report.traffic_lines import Judged, window


def flood_headlines(found: Judged) -> Iterator[Headline]:
    """Yield a card for the largest flood and one for its harm; none without a flood."""
    for one in found.floods[:1]:
        when = "throughout" if one.throughout else window(one.start_s, one.end_s)
        name = printable(found.traffic.clients[one.client])
        yield Headline("who floods", name, f"{when}, {one.share:.0%} of the load then")
        if found.harm is not None:
            harm = found.harm
            clients = f"{len(harm.victims):,} client{'s' if len(harm.victims) > 1 else ''}"
            wait = f"median wait {number(harm.median_s)} s"
            yield Headline("who is hurt", clients, f"{window(harm.start_s, harm.end_s)}, {wait}")
        elif found.traffic.knows_waits:
            yield Headline("who is hurt", "nobody", "no wait is noticeably longer than usual")
