"""Test that mutated user files end in success or in a one-line error, never in a traceback."""

import random

import pytest

from tests.fuzz.fuzz_files import INPUTS, RUN_COMMANDS, attempt, copy_run, outcome, prepared, well


def wrong_ends(count, seed):
    rng = random.Random(seed)
    with prepared() as here:
        ended = [attempt(here, rng) for _ in range(count)]
    return [one for one in ended if not well(one[0], one[2])]


@pytest.mark.slow
def test_many_mutated_files_end_well():
    assert wrong_ends(300, seed=2) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_files_are_valid_before_their_mutation(name):
    with prepared() as here:
        for other, (data, _) in INPUTS.items():
            (here / other).write_bytes(data)
        assert outcome(INPUTS[name][1]) == "0"


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN_COMMANDS, ids=" ".join)
def test_a_damaged_run_ends_in_one_line(command):
    with prepared() as here:
        copy_run(here)
        assert outcome(command) == "0"
