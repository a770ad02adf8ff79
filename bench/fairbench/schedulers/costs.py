"""Cost of a request, h(input tokens, output tokens): linear, measured, or a user's function.

[VTC] §4.2 only requires that h grows with both. A file of your own has one function,
``cost(input_tokens, output_tokens)``; a setting names the file.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator

from fairbench.errors import UsageError, unknown_name
from fairbench.files.python_file import module_of
from fairbench.schedulers.params import COST_FILES

Cost: TypeAlias = Callable[[int, int], float]

LINEAR, PROFILED = "linear", "profiled"
SUFFIX, FUNCTION = COST_FILES
# inputs and outputs with which a user's file is tested
TRIED_TOKENS = (0, 1, 2, 16, 17, 256, 4_096, 100_000)


def profiled_cost_ms(input_tokens: int, output_tokens: int) -> float:
    """Return the time of a request in a full batch, Llama-7b on an A10G ([VTC-artifact])."""
    x, y = input_tokens, output_tokens
    return 0.21001891 * x + 0.10075395 * y + 0.0039868 * x * y + 0.00324733 * y * y + 1.14601454


def own_cost(name: str) -> Cost | None:
    """Return the cost function that a setting names, or None for weighted tokens.

    Raises UsageError for an unknown name, for a file that cannot be run, and for an invalid cost
    function: not a number, below 0, or less for more tokens.
    """
    if name == LINEAR:
        return None
    if name == PROFILED:
        return profiled_cost_ms
    if not name.endswith(SUFFIX):
        raise unknown_name("cost", name, (LINEAR, PROFILED, f"FILE{SUFFIX}"))
    function = getattr(module_of(Path(name).resolve(), "cost"), FUNCTION, None)
    if not callable(function):
        raise UsageError(f"{name}: must define a function {FUNCTION}(input_tokens, output_tokens)")
    _try_out(function, name)
    cost: Cost = function
    return cost


def _try_out(function: Callable[[int, int], Any], name: str) -> None:
    values: dict[tuple[int, int], float] = {}
    for x, y in product(TRIED_TOKENS, repeat=2):
        where = f"{name}: {FUNCTION}({x}, {y})"
        try:
            value = function(x, y)
        except Exception as error:  # any exception of the user's code
            raise UsageError(f"{where} raises {type(error).__name__}: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UsageError(f"{where} is {value!r}: must be a number")
        if value < max(values.get(fewer, 0) for fewer in ((_fewer(x), y), (x, _fewer(y)))):
            raise UsageError(
                f"{where} is {value!r}: a cost must be at least 0, and must not fall as tokens grow"
            )
        values[x, y] = value


def _fewer(tokens: int) -> int:
    return max([tried for tried in TRIED_TOKENS if tried < tokens], default=0)


def _known(name: str) -> str:
    try:
        own_cost(name)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return name


CostName = Annotated[str, AfterValidator(_known)]
"""A parameter that selects the charge: ``linear``, ``profiled`` or a file."""
