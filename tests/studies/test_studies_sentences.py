"""Test that the reading test draws the stated numbers of sentences, and the same for a seed."""

from collections import Counter

import pytest

from fairbench_studies.pages import sentences


def drawn(capsys, seed):
    sentences.main(seed)
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_sample_has_forty_sentences_of_four_kinds(capsys):
    lines = drawn(capsys, "3")
    kinds = Counter(line.split()[0] for line in lines)
    assert kinds == {"document": 15, "docstring": 10, "message": 10, "help": 5}
    assert len(set(lines)) == 40


def test_a_seed_draws_the_same_sentences_and_another_seed_others(capsys):
    first = drawn(capsys, "3")
    assert drawn(capsys, "3") == first
    assert drawn(capsys, "4") != first
