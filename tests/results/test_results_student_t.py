"""Test Student's t against tables and against its own inverse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.results.significance import central, quantile, two_sided_p


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [  # as every table prints them
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.975, 9, 2.262),
        (0.975, 30, 2.042),
        (0.975, 120, 1.980),
        (0.95, 5, 2.015),
        (0.995, 7, 3.499),
        (0.9995, 10, 4.587),
        (0.8, 2, 1.061),
        (0.5, 6, 0.0),
    ],
)
def test_quantiles_equal_the_tables(probability, degrees, expected):
    assert quantile(probability, degrees) == pytest.approx(expected, abs=5e-4)


def test_with_many_degrees_quantiles_equal_the_normal_distribution():
    assert quantile(0.975, 20_000) == pytest.approx(1.95996, abs=2e-4)


@given(st.floats(0.5, 0.9999), st.integers(1, 300))
def test_a_quantile_has_its_probability_below_it(probability, degrees):
    assert central(quantile(probability, degrees), degrees) == pytest.approx(2 * probability - 1)


def test_p_values_equal_the_closed_forms():
    # A single degree of freedom is the Cauchy distribution; two give P(|T| < t) = t / sqrt(2 +
    # t^2).
    assert two_sided_p(1.0, 1) == pytest.approx(0.5)
    assert two_sided_p(-3.0, 2) == pytest.approx(1 - 3 / 11**0.5)
    assert two_sided_p(0.0, 7) == 1.0


def test_invalid_probabilities_and_degrees_are_refused():
    with pytest.raises(ValueError, match=r"probability 1: must be"):
        quantile(1, 3)
    with pytest.raises(ValueError, match=r"probability 0\.3: must be"):
        quantile(0.3, 3)
    for call in (quantile, central):
        with pytest.raises(ValueError, match="0 degrees"):
            call(0.7, 0)
