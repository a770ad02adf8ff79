"""Test the share of busy time outside a timing profile's fitted domain, by hand."""

import numpy as np
import pytest

from fairbench.metrics.records import FitLimits, Service
from fairbench.metrics.service import outside_fit_ratio

# worker, client, start, end, steps, batch, context at the first step
ROWS = [
    (0, 0, 0.0, 1.0, 1, 4, 0),  # prefill: never outside
    (0, 0, 1.0, 2.0, 10, 4, 100),  # 100 to 136 tokens: inside
    (0, 1, 1.0, 2.0, 10, 4, 100),  # the same stretch in another client's row
    (0, 0, 2.0, 4.0, 10, 4, 180),  # six steps at 180 to 200 tokens are inside, four are not
    (1, 0, 0.0, 3.0, 5, 9, 90),  # a batch above 8
]


def ratio(fit):
    names = ("worker", "client", "start_s", "end_s", "steps", "batch_size", "context_tokens")
    columns = {name: [0] * len(ROWS) for name in Service.__dataclass_fields__}
    columns |= dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True))
    return outside_fit_ratio(Service.from_columns(columns), fit)


def test_the_fraction_outside_the_fit_equals_a_hand_count():
    assert ratio(FitLimits(8, 200)) == pytest.approx((2.0 * 4 / 10 + 3.0) / 7.0)


def test_unknown_limits_give_no_fraction():
    assert ratio(FitLimits(8, None)) == pytest.approx(3.0 / 7.0)
    assert ratio(FitLimits(9, None)) == 0
    assert np.isnan(ratio(None))
