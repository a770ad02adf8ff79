"""Test the leaderboard: ranks, ranges and ratios by hand, on rows and on a stored sweep."""

import json
from math import log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config import identity
from fairbench.config.sweep import make_sweep, points
from fairbench.errors import DataError, UsageError
from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Better
from fairbench.results.significance import Decision, difference
from fairbench.results.store import SweepStore
from fairbench.results.summary import Value
from fairbench_papers.board import (
    NO_RATIO,
    BoardLine,
    Fold,
    board_json,
    chosen,
    folded,
    lines_csv,
    make_board,
    rank_ranges,
    read_lines,
    read_stored,
    score,
)
from fairbench_papers.board_report import board_markdown, board_text
from tests.gate.gate_helpers import store
from tests.strategies import examples

RATE, SHARE, P95 = "service_rate_tok_s", "min_entitlement_best_ratio", "victim_p95_s"
T_2 = 4.302652729749464  # 97.5% quantile of Student's t with two degrees of freedom


def line(row, seed=0, place="tot s1 dp 2", *, bounds=(), **values):
    usual = {RATE: 100.0, SHARE: 0.5, P95: 9.0, "sharing_incentive_p95": 1.0}
    rest = {"victim_n": 60, "timing_profile": "gpu/m", "simulated": True}
    lists = {"censored": list(bounds), "upper_bounds": [], "notes": {}}
    return BoardLine(place, row, seed, usual | rest | lists | values)


def lines_of(key, **rows):
    """Return a line per value, given each row's values by seed."""
    return [line(row, seed, **{key: v}) for row, vs in rows.items() for seed, v in enumerate(vs)]


def ranges(board):
    return {row.name: tuple(row.ranks) if row.ranks else None for row in board.rows}


# The loads of three seeds differ more than the rows. b is 2 above a in each seed, and c is
# inconclusive.
THREE = {"a": (10.0, 20.0, 33.0), "b": (12.0, 22.0, 35.0), "c": (15.0, 19.0, 36.0)}


def test_ranks_are_as_certain_as_the_paired_differences():
    board = make_board(lines_of(RATE, **THREE), sort=RATE)
    assert ranges(board) == {"c": (1, 1, 3), "b": (2, 1, 2), "a": (3, 2, 3)}
    against = {row.name: row.scores[RATE].against for row in board.rows}
    assert against == {"a": Decision.SAME, "b": Decision.BETTER, "c": Decision.INCONCLUSIVE}


def test_lower_is_better_for_some_metrics():
    board = make_board(lines_of(P95, **THREE), sort=P95)
    assert ranges(board) == {"a": (1, 1, 2), "b": (2, 2, 3), "c": (3, 1, 3)}


def test_one_configuration_has_plain_means_with_intervals():
    (first, *_) = make_board(lines_of(RATE, **THREE), sort=RATE, baseline="b").rows
    score = first.scores[RATE]
    assert score.value == pytest.approx(70 / 3)
    spread = sqrt(sum((x - 70 / 3) ** 2 for x in THREE["c"]) / 2)
    assert score.high - score.value == pytest.approx(T_2 * spread / sqrt(3))


def test_several_configurations_have_geometric_means_of_ratios():
    def at(place, row, *values):
        return [line(row, seed, place, **{RATE: v}) for seed, v in enumerate(values)]

    lines = [*at("x", "a", 10.0, 20.0, 40.0), *at("y", "a", 100.0, 100.0, 100.0)]
    lines += [*at("x", "b", 40.0, 80.0, 160.0), *at("y", "b", 100.0, 121.0, 100.0)]
    board = make_board(lines, sort=RATE)
    # Ratios of 4 and 1, 4 and 1.21, 4 and 1 have the geometric means 2, 2.2 and 2 by seed.
    score = board.rows[0].scores[RATE]
    assert board.rows[0].name == "b"
    assert score.value == pytest.approx((2 * 2.2 * 2) ** (1 / 3))
    logs = [log(2), log(2.2), log(2)]
    mean = sum(logs) / 3
    half = T_2 * sqrt(sum((x - mean) ** 2 for x in logs) / 2) / sqrt(3)
    assert (log(score.low), log(score.high)) == pytest.approx((mean - half, mean + half))
    assert score.against is Decision.BETTER
    # A share has a plain mean. The incentive is already a ratio, and is not divided by the
    # baseline.
    folds = {metric.key: metric.fold for metric in board.metrics}
    assert folds[SHARE] is Fold.MEAN
    assert folds["sharing_incentive_p95"] is Fold.GEOMETRIC


def test_the_order_does_not_depend_on_the_baseline():
    lines = [
        line(row, seed, place, **{RATE: value + seed})
        for place, values in {"x": (5, 9, 7), "y": (50, 20, 30)}.items()
        for row, value in zip("abc", values, strict=True)
        for seed in range(3)
    ]
    boards = [make_board(lines, sort=RATE, baseline=row) for row in "abc"]
    assert ranges(boards[0]) == ranges(boards[1]) == ranges(boards[2])


def test_one_seed_is_inconclusive():
    board = make_board(lines_of(RATE, a=(1.0,), b=(2.0,)), sort=RATE)
    assert ranges(board) == {"b": (1, 1, 2), "a": (2, 1, 2)}
    assert board.rows[0].scores[RATE].against is Decision.INCONCLUSIVE
    assert "One seed cannot show a significant difference: the" in board_text(board)


@examples(40)
@given(st.lists(st.lists(st.integers(-5, 5), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_range_contains_the_rank_and_agrees_with_every_pair(drawn):
    samples = [[Value(float(x)) for x in one] for one in sorted(drawn, key=sum, reverse=True)]
    found = rank_ranges(samples, Better.MORE)
    for row, ranks in enumerate(found):
        assert ranks.first <= ranks.rank == row + 1 <= ranks.last
        certain = [difference(other, samples[row]).decisive for other in samples]
        assert ranks.first == 1 + certain.count(-1)
        assert ranks.last == len(samples) - certain.count(1)
    turned = rank_ranges(samples[::-1], Better.LESS)[::-1]
    count = len(samples)
    for row, other in zip(found, turned, strict=True):
        assert (row.first, row.last) == (count + 1 - other.last, count + 1 - other.first)


def test_a_row_that_lacks_a_run_is_named_and_not_averaged():
    lines = [*lines_of(RATE, a=(1.0, 2.0), b=(3.0, 4.0)), line("late", 0)]
    lines += [line(row, seed, "judge s1 dp 2") for row in ("a", "b") for seed in (0, 1)]
    board = make_board(lines)
    assert [row.name for row in board.rows] == ["a", "b"]
    assert board.incomplete == {"late": "tot s1 dp 2 seed 1; judge s1 dp 2 seeds 0 to 1"}
    assert "Not ranked: late has no run for tot s1 dp 2 seed 1" in board_text(board)
    with pytest.raises(UsageError, match="baseline 'late': has no run for tot s1 dp 2 seed 1"):
        make_board(lines, baseline="late")


def test_of_many_gaps_only_some_are_named():
    lines = [line("a", place=place) for place in "uvwxyz"]
    board = make_board([*lines, line("b", place="y")])
    assert board.incomplete == {"b": "u seed 0; v seed 0; w seed 0; and 2 more"}


def test_a_board_without_any_complete_row_is_refused():
    with pytest.raises(
        DataError, match="no scheduler has a run for every configuration and seed: a lacks"
    ):
        make_board([line("a", 0), line("b", 1)])


def test_a_configuration_without_values_is_left_out_with_a_note():
    calm = {SHARE: None, "notes": {SHARE: "not contended"}}
    lines = [line(row, place="calm", **calm) for row in ("a", "b")]
    lines += [line("a", place="x"), line("b", place="x", **{SHARE: 0.75})]
    board = make_board(lines)
    assert board.metrics[0].left_out == {"calm": "not contended"}
    assert board.rows[0].scores[SHARE].value == 0.75
    assert "without calm: not contended." in board_text(board)


def test_a_row_without_a_value_comes_last_with_a_reason():
    refused = {P95: None, "notes": {P95: "refused"}}
    lines = [line("a"), line("a", 1), line("b"), line("b", 1, **refused)]
    board = make_board(lines, sort=P95)
    assert ranges(board) == {"a": (1, 1, 1), "b": None}
    assert board.rows[1].scores[P95].reason == "refused"
    assert "Undefined: well-behaved P95 of b: refused." in board_text(board)


def test_lower_bounds_stay_lower_bounds():
    lines = [line("a", seed, **{P95: 5.0 + seed}) for seed in range(3)]
    lines += [line("b", seed, bounds=[P95], **{P95: 50.0 + seed}) for seed in range(3)]
    score = make_board(lines, sort=P95).rows[1].scores[P95]
    assert (score.bound, score.high) == (">", None)
    assert score.against is Decision.WORSE
    assert "> 51" in board_text(make_board(lines))
    other = [line(one.scheduler, one.seed, "y", bounds=one.summary["censored"]) for one in lines]
    score = make_board([*lines, *other], baseline="b").rows[0].scores[P95]
    # the baseline is a lower bound, so the ratio is an upper bound
    assert (score.bound, score.low) == ("<", None)


@pytest.mark.parametrize("fold", [Fold.MEAN, Fold.GEOMETRIC])
@pytest.mark.parametrize(("bound", "known"), [("", (True, True)), (">", (True, False)),
                                              ("<", (False, True))])  # fmt: skip
def test_only_the_end_that_a_bound_leaves_open_is_unknown(fold, bound, known):
    logs = [Value(one, bound) for one in (1.0, 2.0, 3.0)]
    found = score(logs, logs, fold, CATALOGUE[P95])
    assert found.bound == bound
    assert (found.low is not None, found.high is not None) == known


def test_the_table_notes_an_uncertain_percentile():
    assert "P95: each client has at least 60 latencies." in board_text(make_board([line("a")]))
    few = board_text(make_board([line("a"), line("b", victim_n=59)]))
    assert "P95: each client has at least 59 latencies; it needs about 60." in few
    many = [line("a", victim_n=300, victim_p99_s=12.0, sharing_incentive_p99=1.0)]
    assert "P99: each client has at least 300 latencies." in board_text(make_board(many))


def test_combining_values_without_a_ratio():
    assert folded([Value(0.0), Value(4.0)], Fold.GEOMETRIC) == Value(None, reason=NO_RATIO)
    assert folded([Value(0.0), Value(4.0)], Fold.MEAN) == Value(2.0)
    assert folded([Value(1.0, ">"), Value(4.0, "<")], Fold.MEAN).raw is None


def test_lines_are_read_back_from_their_file(tmp_path):
    lines = [
        line(row, seed, bounds=[P95], **{RATE: 1 / 3 + seed}) for row in "ab" for seed in (0, 1)
    ]
    path = tmp_path / "lines.csv"
    path.write_text(lines_csv(lines))
    again = read_lines(path)
    assert board_json(make_board(again)) == board_json(make_board(lines))
    assert board_text(make_board(again)) == board_text(make_board(lines))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("place,cell\nx,a\n", "line 1: column 'seed': missing"),
        ("", "line 1: column 'place': missing"),
        (f"place,cell,seed,{RATE}\nx,a,0,fast\n", f"line 2: {RATE} = 'fast': must be a number"),
        (f"place,cell,seed,{RATE}\nx,a,0,nan\n", f"line 2: {RATE} = 'nan': must be a number"),
        ("place,cell,seed\nx,a,-1\n", "line 2: seed = '-1': must be a whole number"),
        ("place,cell,seed\nx,a\n", "line 2: must have as many columns as line 1"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, complaint):
    path = tmp_path / "lines.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_lines(path)


def test_names_in_a_file_cannot_write_to_the_terminal(tmp_path):
    path = tmp_path / "lines.csv"
    path.write_text(lines_csv([line("\x1b[2Jvtc [bold]", place="a\x1bb")]))
    text = board_text(make_board(read_lines(path), sort=RATE))
    assert "\x1b" not in text
    assert "vtc [bold]" in text


def test_configurations_and_rows_are_selected_by_name():
    lines = [line(row, place=place) for row in "ab" for place in ("tot s1 dp 2", "tot s10 dp 2")]
    assert [one.place for one in chosen(lines, ["tot s1"], [])] == ["tot s1 dp 2"] * 2
    assert {one.scheduler for one in chosen(lines, [], ["b"])} == {"b"}
    with pytest.raises(UsageError, match="unknown place 'tot s2': choose from tot s1 dp 2"):
        chosen(lines, ["tot s2"], [])
    with pytest.raises(UsageError, match="unknown row 'c': choose from a, b"):
        chosen(lines, [], ["c"])


def test_tables_are_narrow_and_markdown_has_the_same_ranks():
    long = {"round-robin+preble-groups-code behind program-aware": (1e6,) * 3}
    board = make_board(lines_of(RATE, **long, **THREE), sort=RATE)
    assert max(map(len, board_text(board).splitlines())) <= 100
    assert "| 2-4 | `c` |" in board_markdown(board)
    json.dumps(board_json(board), allow_nan=False)


@pytest.fixture
def swept(tmp_path):
    """Store a sweep of two schedulers in one configuration, whose last point is unfinished."""
    grid = {"workload": "chat", "scenario": "none", "scheduler": ["vtc", "fcfs"], "num_programs": 1}
    sweep = make_sweep({"name": "s", "num_runs": 2, "grid": grid})
    specs = points(sweep)
    stored = SweepStore.create(tmp_path, sweep, specs)
    for number, spec in enumerate(specs[:-1]):
        flags = {"scheduler": spec.scheduler, "seed": spec.seed}
        store(stored.runs / str(number), spec=flags, **{RATE: 10.0 + number})
    return stored, specs


def test_points_without_a_run_are_named(swept):
    stored, specs = swept
    (missing,) = read_stored([stored.path]).missing
    assert missing == ("chat none dp 1, fcfs, seed 1", "not finished")
    stored.save_failure(identity(specs[-1]), "a point", "KeyError: 3", "")
    found = read_stored([stored.path])
    assert found.missing[0].reason == "failed: KeyError: 3"
    board = make_board(found.lines, found.missing)
    assert (board.baseline, board.incomplete) == ("vtc", {"fcfs": "chat none dp 1 seed 1"})
