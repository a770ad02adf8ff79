"""Parameters of tests that the fast suite leaves to the slow one: more of what it checks."""

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Each as a parameter whose case is marked ``slow``; a tuple is a case's parameters."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
        for one in values
    ]
