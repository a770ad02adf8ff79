"""Helpers that make specs and sweeps in one line, and return their errors."""

import tomllib

import pytest
from hypothesis import strategies as st

from fairbench.config import to_toml
from fairbench.config.resolve import resolve
from fairbench.config.sweep import make_sweep
from fairbench.errors import UsageError


def reread(spec):
    return resolve({}, {}, tomllib.loads(to_toml(spec)))


def message(*arguments):
    with pytest.raises(UsageError) as caught:
        resolve(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def sweep(**tables):
    return make_sweep({"name": "s", **tables})


AXES = st.fixed_dictionaries(
    {},
    optional={
        "workload": st.lists(st.sampled_from(["chat", "tot"]), min_size=1, unique=True),
        "dp": st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True),
        "seed": st.lists(st.integers(0, 9), min_size=1, max_size=2, unique=True),
        "vtc.charge": st.lists(st.sampled_from(["extend", "input"]), min_size=1, unique=True),
    },
)
