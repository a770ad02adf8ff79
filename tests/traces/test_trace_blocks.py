"""Test that prompts in blocks become segments that share exactly what the blocks share."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.workloads.traces.programs import prompt_of_row, runs_of
from fairbench_logs.traces.build import TableBuilder, TraceRow

SIZE = 4


def table_of(prompts):
    builder = TableBuilder("x")
    for number, (blocks, tokens) in enumerate(prompts):
        builder.add(TraceRow(number, "a", tokens, 1, blocks=blocks, block_size=SIZE))
    return builder.table()


def prompts_of(table):
    runs = runs_of(table)
    return [prompt_of_row(table, runs, row, f"own-{row}") for row in range(len(table))]


def tokens_of_segments(prompt):
    return [(key, at) for key, length in prompt for at in range(length)]


def tokens_of_blocks(row, blocks, tokens):
    found = [(block, at) for block in blocks for at in range(SIZE)][:tokens]
    return found + [(f"own-{row}", at) for at in range(tokens - len(found))]


def common(one, other):
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


blocks = st.lists(st.integers(0, 5), max_size=6)


@given(st.lists(st.tuples(blocks, st.integers(1, 30)), min_size=1, max_size=8))
def test_two_prompts_share_as_much_in_segments_as_in_blocks(prompts):
    table = table_of(prompts)
    segments = [tokens_of_segments(one) for one in prompts_of(table)]
    plain = [tokens_of_blocks(row, *prompt) for row, prompt in enumerate(prompts)]
    assert [len(one) for one in segments] == [tokens for _, tokens in prompts]
    for i in range(len(prompts)):
        for j in range(len(prompts)):
            assert common(segments[i], segments[j]) == common(plain[i], plain[j])


def test_indistinguishable_blocks_form_one_segment():
    first, second, third = prompts_of(table_of([([1, 2, 3], 12), ([1, 2, 7], 10), ([9], 6)]))
    assert first == (("block-1", 8), ("block-3", 4))
    assert second == (("block-1", 8), ("block-7", 2))
    assert third == (("block-9", 4), ("own-2", 2))
