"""Test the cost of decoding when sequences share a prefix on hand-computed examples."""

from dataclasses import replace

import pytest

from tests.sim.sim_helpers import PLAIN, US, Home, prompt

# A step takes 1,000 us, 10 us per sequence, and 1 us per token of context.
READING = replace(PLAIN, coefficients_ms={**PLAIN.coefficients_ms, "c_K": 0.001})


@pytest.mark.parametrize(("shared_read", "context_us"), [(1.0, 222), (0.5, 172), (0.0, 122)])
def test_a_shared_prefix_is_read_as_often_as_the_profile_says(shared_read, context_us):
    home = Home(profile=replace(READING, shared_read=shared_read), pool=5_000)
    home.send(prompt("shared", 100), 1)  # leaves its prompt in the cache
    for number in range(2):
        home.send(prompt("shared", 100, f"own-{number}", 10), 2, at_ps=100_000 * US)
    home.run()
    start_us, steps, size = home.decodes()[-1]
    (row,) = (row for row in home.rows() if row["start_ps"] // US == start_us)
    assert (steps, size) == (1, 2)
    # Both have 110 tokens of prompt and one output; the first 100 are the same.
    assert (row["end_ps"] - row["start_ps"]) // US == 1_000 + 2 * 10 + context_us


def test_without_a_shared_prefix_no_time_is_saved():
    ends = []
    for shared_read in (0.0, 1.0):
        home = Home(profile=replace(READING, shared_read=shared_read), pool=5_000)
        sent = [home.send(100, 5), home.send(50, 9)]
        home.run()
        ends.append([sequence.finish_ps for sequence in sent])
    assert ends[0] == ends[1]
