"""Test targets as users write them, with hand-computed values."""

import pytest

from fairbench.errors import UsageError
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench_logs.planning.question import parse_slo, parse_slos
from fairbench_logs.planning.search import judge


def summary(completed=100, unfinished=0, **values):
    made = {"completed": completed, "unfinished": unfinished, "refused": 0, "failed": 0}
    return made | {"clients": [], "censored": [], "notes": {}} | values


@pytest.mark.parametrize(
    ("text", "metric", "below", "limit"),
    [
        ("ttft_p99<2s", "p99_ttft_ms", True, 2000.0),
        ("ttft_p95 < 250ms", "p95_ttft_ms", True, 250.0),
        ("p99_ttft_ms<2000", "p99_ttft_ms", True, 2000.0),
        ("tpot_mean<=50ms", "mean_tpot_ms", True, 50.0),
        ("victim_p99_s<1500ms", "victim_p99_s", True, 1.5),
        ("worst_share>80%", "min_entitlement_ratio", False, 0.8),
        ("min_share>0.8", "min_entitlement_ratio", False, 0.8),
        ("on_time>=99.5%", "goodput_ratio", False, 0.995),
        ("sharing_p99<=1", "sharing_incentive_p99", True, 1.0),
        ("clients.team-a.p99_s<3", "clients.team-a.p99_s", True, 3.0),
    ],
)
def test_a_target_is_a_metric_and_a_limit_in_its_unit(text, metric, below, limit):
    slo = parse_slo(text)
    assert (slo.metric, slo.below, slo.limit) == (metric, below, pytest.approx(limit))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ttft_p99", "write METRIC<LIMIT"),
        ("ttft_p99<fast", "write METRIC<LIMIT"),
        ("ttft_p99>2s", "less p99_ttft_ms is better, so the target must be written with <"),
        ("min_share<80%", "more min_share is better, so the target must be written with >"),
        ("min_shares>80%", "Did you mean 'min_share'?"),
        ("victim_ttft_p95x<2s", "Did you mean 'victim_"),
        ("ttft_p96_ms<2s", "Did you mean 'ttft_p9"),
        ("ttft_p99<2", "--slo ttft_p99<2: needs a unit, ttft_p99<2s or ttft_p99<2ms"),
        ("ttft_p99<-2s", "--slo ttft_p99<-2s: a limit must be at least 0"),
        ("num_requests<3", "unknown metric in --slo 'num_requests'"),
        # relative to the runs of other schedulers
        ("min_entitlement_best_ratio>0.5", "unknown metric"),
        ("p99_s<3", "unknown metric in --slo 'p99_s'"),
        (
            "min_share>80ms",
            "has no unit, so its limit cannot be in ms; write a number without a unit",
        ),
        ("ttft_p99<2%", "is measured in ms, so its limit cannot be in %; write it in s or ms"),
        ("ttft_p99<0s", "p99_ttft_ms is never below 0"),
        ("min_share>200%", "min_share is never above 1 (100%)"),
        ("jain_index>1", "jain_index is never above 1 (100%)"),
    ],
)
def test_a_wrong_target_is_one_line(text, complaint):
    with pytest.raises(UsageError) as error:
        parse_slo(text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["refused<=0", "min_share>=100%", "service_rate_tok_s>5000", "clients.a.tree_share>1"]
)
def test_a_limit_at_the_end_of_the_range_counts(text):
    assert parse_slo(text).text == text


def test_without_a_target_there_is_nothing_to_plan():
    with pytest.raises(UsageError, match="--slo: missing; a plan needs at least one target:"):
        parse_slos([])


def test_only_unusual_percentiles_must_be_requested():
    texts = ("ttft_p99<2s", "ttft_p90<2s", "min_share>80%", "clients.a.p90_s<1")
    assert [parse_slo(text).rank for text in texts] == [None, 90, None, 90]


def test_the_mean_is_judged_and_its_interval_shows_significance():
    slo = parse_slo("ttft_p99<2s")
    close = judge(slo, [summary(p99_ttft_ms=value) for value in (1000.0, 1500.0, 2900.0)])
    assert (close.met, close.certain, close.seeds_met, close.mean) == (True, False, 2, 1800.0)
    assert close.as_json()["margin"] == pytest.approx(0.1)
    far = judge(slo, [summary(p99_ttft_ms=value) for value in (1000.0, 1010.0, 1020.0)])
    assert (far.met, far.certain) == (True, True)
    # t with 2 degrees of freedom is 4.303, and the deviation is 10
    assert far.high == pytest.approx(1010 + 4.302653 * 10 / 3**0.5)


def test_a_target_has_a_direction_and_may_include_its_limit():
    runs = [summary(min_entitlement_ratio=0.8)]
    assert not judge(parse_slo("min_share>80%"), runs).met
    assert judge(parse_slo("min_share>=80%"), runs).met


def test_a_client_that_lacks_nothing_has_its_full_share():
    notes = {"min_entitlement_ratio": NOT_CONTENDED}
    idle = summary(min_entitlement_ratio=None, notes=notes)
    slo = parse_slo("min_share>80%")
    assert judge(slo, [idle, idle]).certain
    assert judge(slo, [idle, summary(min_entitlement_ratio=0.5)]).met is False
    assert judge(slo, [summary(min_entitlement_ratio=None)]).met is False


def test_a_lower_bound_of_a_latency_meets_no_target():
    slo = parse_slo("victim_p99_s<5s")
    cut_off = summary(victim_p99_s=2.0, censored=["victim_p99_s"])
    judged = judge(slo, [cut_off])
    assert (judged.met, judged.bound, judged.as_json()["margin"]) == (False, ">", None)


@pytest.mark.parametrize("percent", [50, 78, 90, 95, 99])
@pytest.mark.parametrize(("more", "met"), [(0, True), (1, False)])
def test_a_percentile_of_completed_requests_does_not_hide_unfinished_ones(percent, more, met):
    """Among 100 requests, one may lie beyond the 99th percentile, and two may not."""
    slo, unfinished = parse_slo(f"ttft_p{percent}<2s"), 100 - percent + more
    values = {f"p{percent}_ttft_ms": 10.0}
    run = summary(completed=100 - unfinished, unfinished=unfinished, **values)
    assert judge(slo, [run]).met is met


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_a_mean_hides_no_unfinished_request_and_a_median_at_most_half(statistic):
    slo = parse_slo(f"ttft_{statistic}<2s")
    most = {"mean": 0, "median": 50}[statistic]
    for unfinished, met in ((most, True), (most + 1, False)):
        values = {f"{statistic}_ttft_ms": 10.0}
        run = summary(completed=100 - unfinished, unfinished=unfinished, **values)
        assert judge(slo, [run]).met is met


@pytest.mark.parametrize(
    ("name", "key", "printed"),
    [
        ("min_share", "min_entitlement_ratio", "min_share"),
        ("worst_share", "min_entitlement_ratio", "min_share"),
        ("min_entitlement_ratio", "min_entitlement_ratio", "min_share"),
        ("tree_worst_share", "tree_worst_share", "min_tree_share"),
        ("min_share_of_goodput", "goodput_worst_share", "min_share_of_goodput"),
    ],
)
def test_a_metric_with_several_names_is_printed_under_the_main_name(name, key, printed):
    slo = parse_slo(f" {name} >= 80%")
    assert slo.metric == key
    assert slo.text == f"{printed} >= 80%"
