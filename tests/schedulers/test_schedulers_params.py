"""Test the conversion of a part's settings to its parameter class and back."""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

import pytest
from annotated_types import Gt

from fairbench.errors import UsageError
from fairbench.schedulers import registry
from fairbench.schedulers.params import as_settings, default_settings, make_params


@dataclass(frozen=True)
class Params:
    quantum: Annotated[int, Gt(0)] = 10
    rate: Annotated[float, Gt(0)] = inf
    charge: Literal["extend", "input"] = "extend"
    weights: dict[str, Annotated[float, Gt(0)]] = field(default_factory=dict)
    levels: tuple[int, ...] = (1, 2)
    limit: int | None = None
    strict: bool = True


@dataclass(frozen=True)
class Checked:
    low: int = 1
    high: int = 2

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low must not be above high")


@dataclass(frozen=True)
class WrongDefault:
    quantum: int = "x"


@pytest.mark.filterwarnings("error")
def test_a_wrong_default_is_an_error_without_a_warning():
    assert default_settings("x", WrongDefault) == {"x.quantum": "x"}
    with pytest.raises(UsageError, match=r"x\.quantum = 'x': must be a valid integer"):
        make_params("x", WrongDefault, default_settings("x", WrongDefault))


def test_parameters_take_only_their_own_settings():
    settings = {"x.quantum": 3, "x.weights": {"a": 2}, "y.quantum": 4, "xx.quantum": 5}
    assert make_params("x", Params, settings) == Params(quantum=3, weights={"a": 2.0})


def test_parameters_survive_conversion_to_settings_and_back():
    params = Params(quantum=3, rate=0.5, charge="input", weights={"a": 2.0}, levels=(), limit=7)
    assert make_params("x", Params, as_settings("x", params)) == params
    assert make_params("x", Params, as_settings("x", Params())) == Params()


def test_an_absent_value_is_not_a_setting():
    assert "x.limit" not in as_settings("x", Params())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quantum", 0, "x.quantum = 0: must be greater than 0"),
        ("quantum", "5", "x.quantum = '5': must be a valid integer"),
        ("quantum", True, "x.quantum = True: must be a valid integer"),
        ("rate", float("nan"), "x.rate = nan: must be greater than 0"),
        ("charge", "imput", "x.charge = 'imput': choose from extend, input. Did you mean 'input'?"),
        ("weights", {"a": -1}, "x.weights.a = -1: must be greater than 0"),
        ("levels", [1, "b"], "x.levels.1 = 'b': must be a valid integer"),
        (
            "quantun",
            3,
            "unknown parameter of x 'quantun': choose from charge, levels, limit, quantum, rate, "
            "strict, weights. Did you mean 'quantum'?",
        ),
    ],
)
def test_a_wrong_parameter_is_one_line(key, value, message):
    with pytest.raises(UsageError) as caught:
        make_params("x", Params, {f"x.{key}": value})
    assert str(caught.value) == message


def test_a_combination_that_the_class_refuses_is_one_line():
    with pytest.raises(UsageError, match=r"^x: low must not be above high$"):
        make_params("x", Checked, {"x.low": 3})


def test_a_part_without_parameters_is_reported():
    with pytest.raises(
        UsageError, match=r"^fcfs\.size: cannot be set, because fcfs has no parameters$"
    ):
        registry.build_local("fcfs", {"fcfs.size": 1})
