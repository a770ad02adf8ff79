"""Test the study of remedies for stalls: its stored runs, and its table."""

from statistics import fmean

import pytest

from fairbench_studies.kit.rows import stored_rows
from fairbench_studies.stalls.table import PAGE, REMEDIES, SEEDS, TABLE, remedy_table, row

NUMBERS = ("stalled_s_per_min", "max_gap_s", "victim_ttft_p99_s", "long_ttft_p99_s", "tok_s")


def stored():
    return [one | {name: float(one[name]) for name in NUMBERS} for one in stored_rows(TABLE)]


def mean(engine, remedy, name):
    mine = [one for one in stored() if (one["engine"], one["remedy"]) == (engine, remedy)]
    assert len(mine) == len(SEEDS)
    return fmean(one[name] for one in mine)


def test_the_page_shows_the_means_of_the_stored_runs():
    table = remedy_table(stored())
    assert table.strip() in PAGE.read_text(encoding="utf-8")
    assert len(table.strip().splitlines()) == 2 + sum(map(len, REMEDIES.values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "remedy"), [("sglang", "mixed, chunks of 2,048"), ("vllm", "threshold 1,024")]
)
def test_a_stored_run_is_repeated(engine, remedy):
    (kept,) = (
        one
        for one in stored()
        if (one["engine"], one["remedy"], one["seed"]) == (engine, remedy, "1")
    )
    again = row(engine, remedy, 1)
    assert {name: f"{again[name]:.6g}" for name in NUMBERS} == {
        name: f"{kept[name]:.6g}" for name in NUMBERS
    }


def test_mixed_chunks_shorten_gaps_and_smaller_chunks_alone_do_not():
    usual = mean("sglang", "none: chunks of 8,192", "max_gap_s")
    assert mean("sglang", "chunks of 512", "max_gap_s") > usual
    assert mean("sglang", "mixed, chunks of 2,048", "max_gap_s") < usual / 10


def test_a_threshold_shortens_the_wait_of_short_prompts_at_the_expense_of_long_ones():
    none, threshold = "none: steps of 2,048", "threshold 512"
    for name, less in (("victim_ttft_p99_s", True), ("long_ttft_p99_s", False)):
        assert (mean("vllm", threshold, name) < mean("vllm", none, name)) == less


def test_a_prefill_share_stalls_answers_less_and_lets_first_tokens_wait():
    none = "none: chunks of 8,192"
    for share in ("prefill share of 40%", "prefill share, automatic"):
        for name in NUMBERS:
            is_less = mean("sglang", share, name) < mean("sglang", none, name)
            assert is_less == ("ttft" not in name)
