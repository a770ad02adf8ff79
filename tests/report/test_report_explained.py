"""Test that each sentence of ``--explain`` states the numbers of the run."""

import copy
import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.metrics.reasons import NOT_CONTENDED, QUEUE_ESTIMATED
from fairbench.report.explained import explained_text, explanations
from fairbench.report.result_lines import waits_of, window_lines

RUN = ["run", "--workload", "chat", "--duration", "20", "--disable-tqdm"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return the directory of a short run."""
    folder = tmp_path_factory.mktemp("runs")
    result = CliRunner().invoke(app, [*RUN, "--result-dir", str(folder)])
    assert result.exit_code == 0, result.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def summary(stored):
    return json.loads((stored / "summary.json").read_text())


def told(summary, title):
    return " ".join(dict(explanations(summary)).get(title, []))


def test_show_and_run_print_the_sentences_below_the_summary(stored, tmp_path):
    plain = CliRunner().invoke(app, ["show", str(stored)]).stdout
    explained = CliRunner().invoke(app, ["show", str(stored), "--explain"]).stdout
    assert explained.startswith(f"{plain}\nClients: Service is input tokens plus two times output")
    run = CliRunner().invoke(app, [*RUN, "--explain", "--result-dir", str(tmp_path)]).stdout
    assert run.partition("\nClients: ")[2] == explained.partition("\nClients: ")[2]
    assert max(map(len, explained.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*RUN, "--explain", "--json"], "--explain cannot be combined with --json"),
        ([*RUN, "--explain", "--num-runs", "2"], "--explain needs a single run"),
    ],
)
def test_explain_needs_a_single_summary_as_text(words, complaint):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_the_sentences_contain_numbers_of_the_run(summary):
    summary |= {"jain_index": 0.5, "jain_index_maxmin": 0.75, "jain_index_actual": 0.6}
    summary |= {"max_service_gap": 1234.0, "service_gap_bound": 5678.0, "bound_source": "T. 1"}
    summary |= {"victim_p50_s": 2.0, "victim_p95_s": 20.0, "victim_p99_s": 30.0, "victim_n": 100}
    summary |= {"censored": ["victim_p99_s"], "refused": 3}
    assert "0.500 for service" in told(summary, "Jain index")
    assert "has 0.750, so service was less even than the demand allows" in told(
        summary, "Jain index"
    )
    assert "by at most 1,234 tokens" in told(summary, "Service gap")
    assert "guarantees at most 5,678 tokens by T. 1" in told(summary, "Service gap")
    victims = told(summary, "Well-behaved clients")
    assert "50% of their programs ended within 2.00 s" in victims
    assert "99% of their programs ended within > 30.0 s" in victims
    assert "a P99 needs 300 latencies, not 100" in victims
    assert "P95 needs" not in victims
    assert "3 requests were refused" in told(summary, "Requests")


def test_the_table_is_explained_by_the_well_behaved_client_with_the_lowest_share(summary):
    for share, row in zip((0.2, 0.9, 0.6, 0.7), summary["clients"], strict=True):
        row |= {"entitlement_ratio": share, "misbehaving": share == 0.2}
    client = summary["clients"][2]
    said = told(summary, "Clients")
    assert f"{client['client']} received" in said
    assert "60.0% of its max-min fair share" in said
    for row in summary["clients"]:
        row["misbehaving"] = True
    assert "received" not in told(summary, "Clients")


def test_a_run_without_contention_is_not_judged(summary):
    summary |= {"min_entitlement_ratio": None, "notes": {"min_entitlement_ratio": NOT_CONTENDED}}
    assert "so shares are not judged" in told(summary, "Whole run")
    summary |= {"min_entitlement_ratio": 0.5}
    assert told(summary, "Whole run").startswith("The client worst off received 50.0%")
    assert "short of service" not in told(summary, "Whole run")


def test_the_worst_window_names_client_and_cause(summary):
    row = {"start_s": 10.0, "end_s": 70.0, "client": "bob", "share": 0.25, "heavy_client": "eve"}
    row["heavy_share"] = 1.5
    summary["worst_windows"] = [row]
    said = told(summary, "Worst window")
    assert said.startswith("From 10 to 70 s, bob received 25.0% of its max-min fair share")
    assert "In these 60 s, eve received 150.0% of its own fair share." in said
    row["heavy_client"] = row["heavy_share"] = None
    assert "of its own fair share" not in told(summary, "Worst window")
    row["share"] = 1.0
    assert "bob" not in told(summary, "Worst window")
    assert "every client that had to wait received at least" in told(summary, "Worst window")
    ((length, said),) = window_lines(summary | {"min_share_60s": 1.0})
    assert (length, "bob" in said) == ("worst 60 s", False)


def test_a_run_without_programs_has_no_sentences(summary):
    changed = copy.deepcopy(summary) | {"num_programs": 0}
    assert list(explanations(changed)) == []
    assert explained_text(changed, 80) == "\n"


WHY = {
    "wait_p50_s": 2.3,
    "run_wait_p50_s": 1.85,
    "waiting": 7.0,
    "others_waiting": 1620.0,
    "worker": 3,
    "worker_ratio": 0.48,
    "arrivals_ratio": 1.9,
    "admitted": 134,
    "hit_rate": 0.71,
    "run_hit_rate": 0.8,
}
WAITED = (
    "requests waited 2.30 s (median; 1.85 s over the run) while 1,620 requests of other clients "
    "waited (mean)"
)


@pytest.mark.parametrize(
    ("changes", "dp", "cause"),
    [
        ({}, 4, "no sign of a burst of its own, one worker or lost cache hits"),
        ({"worker": 0, "worker_ratio": 1.0}, 1, "no sign of a burst of its own or lost cache hits"),
        ({"arrivals_ratio": 2.0}, 4, "it sent 2.00 times its mean number of requests"),
        ({"worker_ratio": 0.625}, 4, "62.5% of its waiting was at worker 3"),
        ({"worker_ratio": 0.74}, 2, "no sign of a burst of its own, one worker or lost cache hits"),
        (
            {"worker": None, "worker_ratio": 0.8},
            1,
            "80.0% of its waiting was in the gateway's queue",
        ),
        (
            {"hit_rate": 0.3, "arrivals_ratio": 3.0},
            4,
            "it sent 3.00 times its mean number of requests, 30.0% of its prompt tokens were "
            "cached, 80.0% over the run",
        ),
        (
            {"hit_rate": 0.3, "admitted": 9},
            4,
            "no sign of a burst of its own, one worker or lost cache hits",
        ),
        ({"run_hit_rate": None}, 1, "no sign of a burst of its own"),
        ({"run_hit_rate": None}, 4, "no sign of a burst of its own or one worker"),
        (
            {"hit_rate": None, "arrivals_ratio": None, "worker": None, "worker_ratio": None},
            4,
            "no sign of a burst of its own, one worker or lost cache hits",
        ),
    ],
)
def test_the_causes_of_waiting_are_those_that_the_numbers_show(changes, dp, cause):
    row = {"client": "bob", "why": WHY | changes}
    assert waits_of(row, {"dp": dp, "notes": {}}) == f"{WAITED}; {cause}"


def test_unknown_waits_are_not_told():
    assert waits_of({"client": "bob"}, {"dp": 4, "notes": {}}) == ""
    row = {"client": "bob", "why": WHY | {"wait_p50_s": None}}
    assert waits_of(row, {"dp": 4, "notes": {}}) == ""


def test_estimated_waits_are_said_to_be_estimates():
    row = {"client": "bob", "why": WHY}
    notes = {"queue_empty_share": QUEUE_ESTIMATED}
    assert waits_of(row, {"dp": 4, "notes": notes}).startswith(
        "requests waited about 2.30 s (median;"
    )
