"""Test which metrics an experiment cannot have, against summaries of real runs."""

from functools import cache

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import experiment, resolve
from fairbench.errors import UsageError
from fairbench.metrics.catalogue import CATALOGUE, metric_of
from fairbench.metrics.metric import Better, Of
from fairbench.results.run_facts import check_metrics_of, why_missing
from fairbench.sim.run import simulate
from fairbench_logs.planning.question import Clusters, PlanQuestion

TINY = {"workload": "chat", "scenario": "none", "num_programs": 1}
CASES = {
    "plain": TINY,
    "memory": TINY | {"memory_records": True},
    "sides": TINY | {"prefill": 1, "decode": 1},
    "goodput": TINY | {"goodput": {"ttft": "500ms"}},
    "percentiles": TINY | {"percentiles": "90"},
    "alone": TINY | {"clients": 1},
    "admission": TINY | {"goodput": {"e2el": "60s"}},
}
SETTINGS = {"admission": {"admission.policy": "demote"}}
KEYS = [
    *(key for key, one in CATALOGUE.items() if one.better is not Better.NEITHER),
    *("p90_ttft_ms", "victim_p90_s", "p90_s"),
]
# metrics of a comparison, of servers only, or of runs with a cheating client
ELSEWHERE = {key for key, one in CATALOGUE.items() if one.of_comparison} | {"useful_service_tok_s"}


@cache
def case(name):
    return resolve(CASES[name], SETTINGS.get(name, {}))


@cache
def summary(name):
    return simulate(case(name)).summary


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_before_is_missing_afterwards_and_nothing_else(name):
    found = summary(name)
    rows = found["clients"]
    for key in KEYS:
        if key in ELSEWHERE:
            continue
        of_client = metric_of(key).of is Of.CLIENT or key in ("p90_s",)
        absent = all(key not in row for row in rows) if of_client else key not in found
        undefined = not of_client and found.get(key) is None
        asked = f"clients.{rows[0]['client']}.{key}" if of_client else key
        reason = why_missing(asked, case(name))
        assert bool(reason) >= absent, (key, reason)
        assert not reason or absent or undefined, (key, reason)


def test_sessions_have_their_own_metrics(tmp_path):
    log = tmp_path / "log.csv"
    rows = [f"{n},c{n % 2},s{n % 4},100,10" for n in range(20)]
    log.write_text("\n".join(["timestamp,client,session_id,input_tokens,output_tokens", *rows]))
    plain = tmp_path / "plain.csv"
    plain.write_text(log.read_text().replace("session_id", "other"))
    sessions, requests = (experiment({"trace": str(one)}, {}) for one in (log, plain))
    assert why_missing("victim_session_p95_s", sessions) == ""
    assert why_missing("victim_session_p95_s", requests).startswith("needs a workload of recorded")
    hint = "victim_p95_s is the time to first token here"
    assert hint in why_missing("victim_ttft_p95_s", requests)


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        ("victim_ttft_p95_s<2s", "needs a workload of recorded sessions, and chat has none"),
        ("median_itl_ms<50", "the records hold each request's first and last token"),
        ("clients.client-9.p99_s<2", "unknown client 'client-9'"),
        ("mean_transfer_ms<2", "needs workers for prompts alone"),
    ],
)
def test_a_plan_refuses_a_target_that_it_cannot_measure(slo, said):
    with pytest.raises(UsageError, match=said):
        Clusters(PlanQuestion([slo], ["fcfs"], 1, 2, dict(TINY), {}))


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("p90_ttft_ms", "needs this percentile to be chosen; give --percentiles 90"),
        ("num_requests", "neither higher nor lower is better"),
        ("tree_worst_share", "the workload has no tenants"),
        ("p50_s", "is a metric of one client; write clients.client-0.p50_s"),
        ("clients.client-0.jain_index", "is a metric of the whole run; write jain_index"),
        ("min_shares", "unknown metric"),
    ],
)
def test_a_comparison_refuses_a_metric_before_anything_runs(monkeypatch, metric, said):
    monkeypatch.setattr("fairbench.execute.comparison.run_sweep", lambda *_: 1 / 0)
    arguments = ["compare", "fcfs", "vtc", "--workload", "chat", "--metric", metric]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


def test_a_metric_that_one_of_several_experiments_has_is_kept():
    specs = [case("plain"), case("goodput")]
    check_metrics_of(["goodput_ratio", "on_time"], specs, "--metric")
    with pytest.raises(UsageError, match=r"^--metric mean_transfer_ms: needs workers for"):
        check_metrics_of(["mean_transfer_ms"], specs, "--metric")
