"""Test that a seed draws the stated numbers of texts, always the same, and another seed others."""

import re
from collections import Counter

from tests.reading import sample


def test_a_seed_always_draws_the_same_texts(capsys, monkeypatch):
    pools = {kind: [(f"a.py:{n}", f"{kind} {n}") for n in range(99)] for kind in sample.SIZES}
    monkeypatch.setattr(sample, "sentences", lambda: pools)
    drawn = []
    for seed in ("3", "3", "4"):
        sample.main(seed)
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]
    kinds = Counter(re.findall(r"^ *\d+\. (\w+)", drawn[0], re.MULTILINE))
    assert kinds == sample.SIZES


def test_consecutive_comment_lines_are_one_text_with_the_code_before_them(tmp_path):
    module = tmp_path / "a.py"
    module.write_text('"""A module."""\n# one\n# two\nx = 1  # three\n', "utf-8")
    texts = sorted(sample.of_code(module))
    assert texts == [
        ("comments", 2, "one two"),
        ("comments", 4, "three  (x = 1)"),
        ("docstrings", 1, "A module."),
    ]
