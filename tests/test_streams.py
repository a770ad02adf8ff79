"""Test named random streams."""

from fairbench.streams import stream


def test_streams_are_named_and_independent():
    assert stream(1, "a").random() == stream(1, "a").random()
    draws = {stream(seed, name).random() for seed in range(5) for name in ("a", "b", "client-0/x")}
    assert len(draws) == 15
