"""Metrics that need a comparison of several schedulers."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Display, Form, Metric, Of, Shown
from fairbench.metrics.reasons import NO_DEMAND, NOT_ALONE
from fairbench.metrics.tail import TAILS

METRICS = (
    Metric(
        key="best_service_rate_tok_s",
        heading="highest service of any scheduler",
        unit="tok/s",
        better=Better.MORE,
        of_comparison=True,
    ),
    Metric(
        key="min_entitlement_best_ratio",
        heading="minimum fair share of best total",
        column="min. share\nof best",
        better=Better.MORE,
        form=Form.WHOLE_PERCENT,
        digits=3,
        most=1.0,
        undefined=NO_DEMAND,
        of_comparison=True,
        shown=(Shown(Display.COMPARISON, 4),),
    ),
    *(
        Metric(
            key=f"sharing_incentive_p{rank}",
            heading=f"sharing incentive P{rank}",
            column=f"sharing\nP{rank}",
            better=Better.LESS,
            of=Of.BOTH,
            digits=2,
            undefined=NOT_ALONE,
            of_comparison=True,
            tail=rank if rank in TAILS else 0,
            shown=(
                Shown(Display.COMPARISON, 1 + (rank in TAILS), dropped=4 if rank == 50 else None),
                Shown(Display.COMPARED_CLIENTS, 5 + (rank in TAILS)),
            ),
        )
        for rank in (50, *TAILS)
    ),
    Metric(
        key="entitlement_best_tok_s",
        heading="fair share of the best total",
        unit="tok/s",
        of=Of.CLIENT,
        of_comparison=True,
    ),
    Metric(
        key="entitlement_best_ratio",
        heading="of fair share of the best total",
        better=Better.MORE,
        of=Of.CLIENT,
        form=Form.PERCENT,
        undefined="it was entitled to no service",
        of_comparison=True,
        shown=(Shown(Display.COMPARED_CLIENTS, 2),),
    ),
)
