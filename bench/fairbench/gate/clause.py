"""A clause: how much worse a metric may get (``min_share_60s:-5%``, ``victim_p95_s:+10%``)."""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

from fairbench.errors import UsageError
from fairbench.metrics.catalogue import key_of, short_of
from fairbench.results.values import more_is_better

SHAPE = re.compile(r"(?P<metric>.+):(?P<sign>[+-]?)(?P<amount>\d{1,15}(\.\d{1,15})?)(?P<unit>%?)")


MOST_PERCENT = 100  # by which a number that is never negative can fall


class Clause(NamedTuple):
    """A limit: ``metric`` may get worse by at most ``loss``.

    ``loss`` is at least 0, and a part of the baseline if ``relative``.
    """

    text: str
    metric: str
    more_is_better: bool
    loss: Fraction
    relative: bool

    def limit(self, baseline: Fraction) -> Fraction:
        """Return the worst value that passes, given the baseline's."""
        loss = abs(baseline) * self.loss if self.relative else self.loss
        return baseline - loss if self.more_is_better else baseline + loss


def parse_clause(text: str, known: Collection[str]) -> Clause:
    """Parse ``METRIC:-LOSS`` (if more is better) or ``METRIC:+LOSS``; LOSS may end in %.

    METRIC is a key of the summary or another name of it; the text has the name that is printed.
    ``known`` are the metrics of the summaries compared. Raises UsageError for another shape or
    sign, for an unknown metric, and for one of which neither more nor less is worse.
    """
    match = SHAPE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--fail-if {text!r}: write METRIC:-LOSS or METRIC:+LOSS, "
            "such as min_share_60s:-5% or victim_p95_s:+10%"
        )
    sign, amount, unit = match["sign"], match["amount"], match["unit"]
    metric = key_of(match["metric"])
    try:
        more = more_is_better(metric, known)
    except UsageError as error:
        raise UsageError(f"--fail-if {text!r}: {error}") from None
    loss, short = Fraction(amount), short_of(metric)
    worse = "-" if more else "+"
    if loss and sign != worse:
        raise UsageError(
            f"--fail-if {text!r}: a {'lower' if more else 'higher'} {short} is worse, so the "
            f"allowed loss must be written {short}:{worse}{amount}{unit}"
        )
    if more and unit and loss >= MOST_PERCENT:
        raise UsageError(
            f"--fail-if {text!r}: can never fail, because {short} cannot fall by more than 100%; "
            "give a smaller loss"
        )
    return Clause(
        f"{short}:{sign}{amount}{unit}", metric, more, loss / (100 if unit else 1), bool(unit)
    )
