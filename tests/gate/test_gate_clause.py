"""Test clauses of the gate: grammar, limits, and the direction in which a metric is worse."""

from fractions import Fraction

import pytest

from fairbench.errors import UsageError
from fairbench_gate.clauses import parse_clause

KNOWN = {"jain_index", "victim_p99_s", "service_rate_tok_s", "dp", "clients.a.b:c.p99_s"}


def limit(text, baseline):
    return parse_clause(text, KNOWN).limit(Fraction(baseline))


def test_an_absolute_loss_is_subtracted_from_the_baseline_or_added():
    assert limit("jain_index:-0.02", "0.9") == Fraction("0.88")
    assert limit("victim_p99_s:+2.5", "10") == Fraction("12.5")


def test_a_relative_loss_is_a_fraction_of_the_baseline():
    assert limit("service_rate_tok_s:-3%", "1000") == 970
    # floats cannot represent these numbers exactly
    assert limit("victim_p99_s:+10%", "1.0") == Fraction("1.1")


def test_a_loss_of_zero_needs_no_sign():
    texts = ("jain_index:+0%", "jain_index:-0", "jain_index:0", "victim_p99_s:-0%")
    assert [limit(text, "0.5") for text in texts] == [Fraction("0.5")] * 4


def test_the_metric_of_a_client_contains_the_clients_name():
    clause = parse_clause("clients.a.b:c.p99_s:+1", KNOWN)
    assert (clause.metric, clause.more_is_better) == ("clients.a.b:c.p99_s", False)


@pytest.mark.parametrize(
    "text", ["", "jain_index", "jain_index:", "jain_index:-", "jain_index:-2pp", "jain_index:-nan",
             ":-1", "jain_index:--1", "jain_index:-1e9", "jain_index:-0.02%%"],
)  # fmt: skip
def test_a_clause_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"write METRIC:-LOSS or METRIC:\+LOSS"):
        parse_clause(text, KNOWN)


@pytest.mark.parametrize("text", ["jain_index:+0.02", "jain_index:0.02"])
def test_a_sign_that_would_allow_a_gain_is_refused(text):
    with pytest.raises(UsageError, match=r"a lower jain_index is worse.*jain_index:-0\.02$"):
        parse_clause(text, KNOWN)


def test_an_impossible_loss_is_refused():
    with pytest.raises(UsageError, match="can never be met, because jain_index cannot fall by"):
        parse_clause("jain_index:-150%", KNOWN)
    assert parse_clause("jain_index:-99%", KNOWN).loss < 1


def test_percentages_written_as_fractions_of_a_share_are_refused():
    for metric in ("min_share_60s", "clients.a.entitlement_ratio"):
        with pytest.raises(UsageError, match=rf"is a fraction.*, write {metric}:-5%$"):
            parse_clause(f"{metric}:-5", {metric})
        assert parse_clause(f"{metric}:-0.05", {metric}).loss == Fraction("0.05")
    with pytest.raises(UsageError, match=r"is a fraction.*, write jain_index:-5%$"):
        parse_clause("jain_index:-5", KNOWN)
    assert parse_clause("service_rate_tok_s:-5", KNOWN).loss == 5


def test_an_unknown_metric_gets_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown metric 'jain_indx'.*Did you mean 'jain_index'"):
        parse_clause("jain_indx:-1", KNOWN)
    with pytest.raises(UsageError, match=r"Did you mean 'clients\.a\.b:c\.p99_s'"):
        parse_clause("clients.a.b:d.p99_s:+1", KNOWN)


def test_metrics_offered_for_an_unknown_name_have_a_worse_side():
    known = ["dp", "bound_source", "jain_index", "victim_p99_s", "clients.a.demand_tok_s"]
    with pytest.raises(UsageError, match="choose from jain_index, victim_p99_s") as raised:
        parse_clause("dpp:-1", known)
    assert "'dp'" not in str(raised.value)


def test_a_metric_without_a_worse_side_is_refused():
    with pytest.raises(
        UsageError, match="neither higher nor lower is better; choose another metric"
    ):
        parse_clause("dp:+1", KNOWN)


@pytest.mark.parametrize("name", ["min_share", "worst_share", "min_entitlement_ratio"])
def test_a_metric_with_several_names_is_printed_under_the_main_name(name):
    clause = parse_clause(f"{name}:-0.02", {"min_entitlement_ratio"})
    assert clause.metric == "min_entitlement_ratio"
    assert clause.text == "min_share:-0.02"


@pytest.mark.parametrize(
    ("short", "key"),
    [("min_tree_share", "tree_worst_share"), ("min_share_of_goodput", "goodput_worst_share")],
)
def test_shares_of_trees_and_of_goodput_have_separate_names(short, key):
    for name in (short, key):
        clause = parse_clause(f"{name}:-0.02", {key})
        assert (clause.metric, clause.text) == (key, f"{short}:-0.02")
