"""Metrics that need a comparison of several schedulers."""

from __future__ import annotations

from fairbench.metrics.metric import BOTH, CLIENT, LESS, MORE, Display, Form, Metric, Shown
from fairbench.metrics.reasons import NO_DEMAND, NOT_ALONE
from fairbench.metrics.tail import TAILS

METRICS = (
    Metric("best_service_rate_tok_s", "highest service of any scheduler", unit="tok/s",
        better=MORE, of_comparison=True),
    Metric("min_entitlement_best_ratio", "minimum fair share of best total",
        column="min. share\nof best", better=MORE, form=Form.WHOLE_PERCENT, most=1.0,
        undefined=NO_DEMAND, of_comparison=True, shown=(Shown(Display.COMPARISON, 4),)),
    *(
        Metric(f"sharing_incentive_p{rank}", f"sharing incentive P{rank}",
            column=f"sharing\nP{rank}",
            better=LESS, of=BOTH, digits=2, undefined=NOT_ALONE, of_comparison=True,
            tail=rank if rank in TAILS else 0,
            shown=(
                Shown(Display.COMPARISON, 1 + (rank in TAILS), dropped=4 if rank == 50 else None),
                Shown(Display.COMPARED_CLIENTS, 5 + (rank in TAILS))))
        for rank in (50, *TAILS)
    ),
    Metric("entitlement_best_tok_s", "fair share of the best total", unit="tok/s", of=CLIENT,
        of_comparison=True),
    Metric("entitlement_best_ratio", "of fair share of the best total", better=MORE, of=CLIENT,
        form=Form.PERCENT, undefined="the client was entitled to no service", of_comparison=True,
        shown=(Shown(Display.COMPARED_CLIENTS, 2),)),
)  # fmt: skip
