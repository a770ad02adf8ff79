"""Disaggregated clusters: prefill workers, decode workers, and the way between them."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Form, Metric

METRICS = (
    *(
        Metric(
            key=f"{side}_busy_ratio",
            heading=f"busy time of {side} workers over the run",
            form=Form.PERCENT,
            most=1.0,
            undefined="nothing was simulated",
        )
        for side in ("prefill", "decode")
    ),
    *(
        Metric(key=f"{side}_gpu_s", heading=f"busy time of {side} workers", unit="s", digits=1)
        for side in ("prefill", "decode")
    ),
    Metric(
        key="mean_transfer_ms",
        heading="mean time of a KV transfer",
        unit="ms",
        better=Better.LESS,
        undefined="no KV cache was transferred",
    ),
)
