"""Test the tree of distinct prefixes against a set of token-by-token prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment
from fairbench.sim.distinct_prefixes import LONG, DistinctPrefixes
from tests.sim.sim_helpers import prompt
from tests.strategies import examples, prompts, tokens_of


class TokenByToken:
    """An oracle that stores every known prefix as a tuple of tokens."""

    def __init__(self):
        self.known, self.answers = set(), {}

    def add(self, text, answer, program):
        tokens = tokens_of(text)
        new = 0
        for end in range(1, len(tokens) + 1):
            if tokens[:end] not in self.known and tokens[:end] not in self._answered(program):
                new += 1
        self.known |= {tokens[:end] for end in range(1, len(tokens) + 1)}
        whole = tokens + tokens_of((answer,))
        after = {whole[:end] for end in range(len(tokens) + 1, len(whole) + 1)}
        self.answers.setdefault(program, set()).update(after)
        return max(1, new)

    def _answered(self, program):
        return self.answers.get(program, set())


@examples(200)
@given(st.data())
def test_compulsory_tokens_are_the_prefixes_that_nobody_computed(data):
    tree, oracle, answers, made = DistinctPrefixes(), TokenByToken(), {0: {}, 1: {}}, {0: [], 1: []}
    for number in range(data.draw(st.integers(1, 12))):
        program = data.draw(st.sampled_from([0, 1]))
        text = data.draw(prompts(lengths=(1, 2, 3, 5)))
        if made[program] and data.draw(st.booleans()):
            before, answer = data.draw(st.sampled_from(made[program]))
            rest = data.draw(st.sampled_from([(), text]))
            text = (*before, answer, *rest)
        answer = Segment(f"{program}/{number}", data.draw(st.sampled_from((1, 4))))
        made[program].append((text, answer))
        expected = oracle.add(text, answer, program)
        assert tree.add(text, answer, answers[program]) == expected, text


def test_an_answer_counts_only_behind_its_own_prompt():
    tree, answers = DistinctPrefixes(), {}
    answer, joined = Segment("answer", 7), Segment("joined", 3)
    assert tree.add(prompt("a", 10), answer, answers) == 10
    assert tree.add((*prompt("a", 10), answer, *prompt("b", 2)), joined, answers) == 2
    assert tree.add((*prompt("c", 5), answer), joined, answers) == 12
    assert tree.add((*prompt("a", 10), answer), joined, {}) == 1  # in the tree since it was read


def test_a_repeated_prompt_computes_its_last_token_and_a_longer_one_the_rest():
    tree = DistinctPrefixes()
    counts = [tree.add(prompt("a", length), Segment("x", 1), {}) for length in (100, 100, 40, 130)]
    assert counts == [100, 1, 1, 30]


def test_the_total_does_not_depend_on_the_order():
    texts = [prompt("a", 9, "b", 4), prompt("a", 5, "c", 2), prompt("a", 12), prompt("d", 3)]
    for order in (texts, texts[::-1], texts[2:] + texts[:2]):
        tree = DistinctPrefixes()
        assert sum(tree.add(text, Segment("x", 1), {}) for text in order) == 12 + 4 + 2 + 3


def test_empty_segments_change_no_prefix():
    tree = DistinctPrefixes()
    tree.add(prompt("a", 5, "gone", 0, "b", 5), Segment("x", 1), {})
    assert tree.add(prompt("a", 5, "b", 5, "c", 1), Segment("x", 1), {}) == 1


@pytest.mark.parametrize("turns", [3, LONG, 2 * LONG])
def test_a_long_conversation_computes_its_new_tokens_and_drops_old_prompts(turns):
    tree, answers, text = DistinctPrefixes(), {}, prompt("system", 50)
    for turn in range(turns):
        answer = Segment(f"answer {turn}", 20)
        assert tree.add(text, answer, answers) == (50 if turn == 0 else 7)
        text = (*text, answer, Segment(f"user {turn}", 7))
    assert tree.tokens == 50 + (turns - 1) * 27
    assert sum(len(prompt) for *_, prompt in answers.values()) <= turns * (LONG + 2)


def test_parallel_calls_continue_one_answer_and_a_shortened_history_is_new():
    tree, answers, answer = DistinctPrefixes(), {}, Segment("answer", 20)
    start = prompt("system", 50, "user", 5)
    tree.add(start, answer, answers)
    for branch in range(LONG):
        follow = (*start, answer, Segment(f"branch {branch}", 7))
        assert tree.add(follow, Segment(f"{branch}", 1), answers) == 7
    shortened = (*prompt("system", 50), answer, *prompt("branch 0", 7))
    assert tree.add(shortened, Segment("last", 1), answers) == 27
