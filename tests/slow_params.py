"""Parameters of tests, some of which only the slow suite uses."""

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Return each as a parameter whose case is marked ``slow``. A tuple is a case's parameters."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
        for one in values
    ]
