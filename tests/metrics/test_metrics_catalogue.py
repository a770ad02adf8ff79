"""Test the catalogue: every metric has an entry, and an example adds a metric."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import DataError, UsageError
from fairbench.metrics import summary as summary_module
from fairbench.metrics.catalogue import (
    CATALOGUE,
    CLIENTS,
    chosen_metrics,
    columns_of,
    fitting,
    forget_needing,
    metric_of,
)
from fairbench.metrics.metric import Better, Display, Form, Metric, Needs, Of, Shown
from fairbench.metrics.optional_entries import MEMORY, SESSIONS, SIDES
from fairbench.metrics.run_data import RunData
from fairbench.metrics.summary import summarize
from fairbench.report import comparison_table, run_table
from fairbench.report.pages.run_page import client_grid
from fairbench.results.comparison import compare
from fairbench.results.significance import combine_summaries
from fairbench.results.summary import check_summary, values_of
from fairbench.sim.run import simulate
from fairbench_gate.clauses import parse_clause
from fairbench_studies.dlpm import fig1, fig7, fig11
from fairbench_studies.pages.metric_table import metric_table
from tests.docs_keys import undocumented
from tests.results.comparison_helpers import stored

DOCS = Path(__file__).parents[2] / "docs"


def chat(seed=0):
    return simulate(resolve({"workload": "chat", "num_programs": 2, "seed": seed})).summary


def longest(run):
    """Return the longest input of any request."""
    return float(run.requests.input_tokens.max(initial=0))


def longest_of_clients(run):
    """Return the longest input of each client, by index."""
    assert run.tables.clients == [client.name for client in run.facts.clients]
    found = np.zeros(run.clients)
    np.maximum.at(found, run.requests.client, run.requests.input_tokens)
    return found


TOY = Metric(
    key="longest_input_tokens",
    heading="longest input",
    column="longest\ninput",
    unit="tokens",
    better=Better.LESS,
    of=Of.BOTH,
    form=Form.WHOLE,
    undefined="there is no request",
    needs=frozenset({Needs.CACHED}),
    shown=(
        Shown(Display.SUMMARY),
        Shown(Display.CLIENTS),
        Shown(Display.COMPARISON, dropped=0),
        Shown(Display.REPEATS),
    ),
    compute=longest,
    by_client=longest_of_clients,
)


@pytest.fixture
def toy(monkeypatch):
    """Add a toy metric, which needs only a function and an entry."""
    monkeypatch.setitem(CATALOGUE, TOY.key, TOY)
    return TOY.key


def test_an_entry_with_its_function_puts_a_metric_into_the_summary(toy):
    summary = chat()
    of_clients = [client[toy] for client in summary["clients"]]
    assert summary[toy] == max(of_clients) > 0
    text = run_table.summary_text(summary, path=Path("x"))
    assert f"\nlongest input  {summary[toy]:,.0f} tokens\n" in text
    # the heading has two lines, and the metric is in the first
    assert "longest" in text.split("behaviour")[0]
    grid = client_grid(summary)
    assert grid.headings[-1] == "longest input"
    assert [row[-1].text for row in grid.rows] == [f"{value:,.0f}" for value in of_clients]


def test_a_new_metric_is_in_comparisons_and_over_seeds(toy, tmp_path):
    by_scheduler = {"lpm": 30.0, "vtc": 20.0}
    runs = [
        stored(tmp_path, {"scheduler": name}, **{toy: value, "trace": "exact.csv"})
        for name, value in by_scheduler.items()
    ]
    lines = comparison_table.comparison_text(compare(runs, {}), width=110).split("\n")
    (heading,) = (line for line in lines if line.endswith("longest"))
    assert heading
    marked = {line.split()[0]: line.split()[-1] for line in lines if line.startswith("  ") and
              line.split()[0] in by_scheduler}  # fmt: skip
    assert marked == {"lpm": "30!", "vtc": "20*"}
    combined = combine_summaries([chat(), chat(seed=1)])
    assert combined[toy]["runs"] == 2
    assert "longest input, tokens" in dict(run_table.results_of_repeats(combined))


def test_the_gate_and_the_schema_know_a_new_metric(toy, tmp_path):
    summary = chat()
    known = values_of(summary)
    assert parse_clause(f"{toy}:+10%", known).limit(Fraction(10)) == 11
    assert parse_clause(f"{CLIENTS}client-0.{toy}:+1", known).more_is_better is False
    with pytest.raises(UsageError, match="a higher longest_input_tokens is worse"):
        parse_clause(f"{toy}:-1", known)
    check_summary(summary, tmp_path)
    with pytest.raises(DataError, match=toy):
        check_summary({**summary, toy: "many"}, tmp_path)
    check_summary({key: value for key, value in summary.items() if key != toy}, tmp_path)
    forget_needing(summary, Needs.CACHED, "not told")
    assert summary[toy] is summary["clients"][0][toy] is None
    assert summary["notes"][f"clients.client-0.{toy}"] == "not told"
    docs = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    assert undocumented(CATALOGUE, docs) == [toy]
    row = f"| `{toy}` | longest input | run and client | tokens | less | there is no request; "
    assert row in metric_table()
    assert metric_table() not in docs


def test_a_missing_value_is_null_with_the_reason_of_its_entry(monkeypatch):
    nothing = Metric(
        key="nothing", heading="nothing", undefined="so it is",
        compute=lambda run: float("nan"),
    )  # fmt: skip
    monkeypatch.setitem(CATALOGUE, "nothing", nothing)
    summary = chat()
    assert summary["nothing"] is None
    assert summary["notes"]["nothing"] == "so it is"


def test_every_number_of_a_summary_has_an_entry():
    promised = {"workload": "chat", "num_programs": 2, "goodput": {"ttft": "1s"}}
    summary = simulate(resolve(promised, {"admission.policy": "demote"})).summary
    settings = {"dp", "seed", "timing_error_pct", "mem_fraction_static"}
    settings |= {"pool_tokens", "chunked_prefill_size"}
    for key, value in values_of(summary).items():
        if value.is_number and key not in settings:
            assert metric_of(key), key
    of_run = {key for key, one in CATALOGUE.items() if one.of is not Of.CLIENT}
    live = {key for key in of_run if key.startswith(("lateness_", "held", "estimated"))}
    live |= {key for key in of_run if key.startswith("tree_")}  # only if clients have tenants
    live |= {metric.key for metric in SESSIONS}  # keys of runs of sessions
    live |= {metric.key for metric in SIDES}  # keys of disaggregated runs
    missing = {key for key in of_run - summary.keys() - live if not CATALOGUE[key].of_comparison}
    assert missing == set()
    of_client = {key for key, one in CATALOGUE.items() if one.of is not Of.RUN}
    missing = of_client - summary["clients"][0].keys()
    # Some keys exist only with weights other than 1, with tenants, with padding, in runs that
    # record memory, or in runs of recorded sessions.
    missing -= {one.key for one in (*MEMORY, *SESSIONS)}
    missing = {key for key in missing if not CATALOGUE[key].of_comparison}
    assert missing == {"weight", "tree_share", "useful_service_tok_s"}


def test_every_figure_shows_metrics_of_the_catalogue():
    for key in (*fig1.FAIRNESS, fig1.THROUGHPUT, *fig7.COLUMNS, fig7.REACHABLE, *fig11.COLUMNS):
        assert key in CATALOGUE


@pytest.mark.parametrize("where", Display, ids=lambda where: where.name)
def test_the_columns_of_a_table_are_in_order_and_each_once(where):
    columns = columns_of(where)
    assert len({column.key for column in columns}) == len(columns)
    positions = [
        shown.position
        for column in columns
        for shown in CATALOGUE[column.key].shown
        if shown.display is where
    ]
    assert positions == sorted(positions)
    assert len(set(positions)) == len(positions)


def test_a_narrow_table_leaves_out_the_most_expendable_columns_first():
    columns = columns_of(Display.COMPARISON)
    dropped = [
        [one.key for one in more if one not in fewer]
        for more, fewer in zip([*fitting(columns)], [*fitting(columns)][1:], strict=False)
    ]
    assert dropped == [
        ["goodput_tok_s"], ["time_to_90pct_s"], ["jain_index_actual"], ["victim_p50_s"],
        ["sharing_incentive_p50"], ["limit_ratio"],
    ]  # fmt: skip


def test_every_entry_has_its_function():
    """An entry's function tells whether a metric belongs to a run alone or beside others."""
    for key, one in CATALOGUE.items():
        of_run = one.beside if one.of_comparison else one.compute
        of_clients = one.clients_beside if one.of_comparison else one.by_client
        assert bool(of_run) == (one.of is not Of.CLIENT), key
        assert bool(of_clients) == (one.of is not Of.RUN), key


# keys of a summary that are no metrics, and keys that describe a client
LISTS = {"clients", "worst_windows", "censored", "notes"}
DESCRIBED = {"percentiles", "goodput_classes", "tenants", "limit_cause", "evictions", "stalled"}
OF_CLIENTS = {"client", "misbehaving", "goodput_targets", "goodput_class", "owner"}
OF_CLIENTS |= {"padding_tokens", "output_multiple"}

RUNS = {
    "plain": ({"workload": "chat"}, {}),
    "targets and admission": (
        {"workload": "chat", "goodput": {"ttft": "1s"}},
        {"admission.policy": "demote"},
    ),
    "chosen percentiles and weights": (
        {"workload": "chat", "percentiles": "50,97", "weights": {"client-0": 2.0}},
        {},
    ),
    "memory": ({"workload": "chat", "memory_records": True}, {}),
    "two sides": ({"workload": "chat", "prefill": 1, "decode": 1}, {}),
    "first tokens": ({"workload": "long-qa", "scheduler": "vtc"}, {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_summary_has_the_metrics_of_its_entries_and_no_others(name, monkeypatch):
    """The keys of a summary are those of the run's entries, in the order of the catalogue."""
    made = []

    def recorded(*parts):
        made.append(RunData(*parts))
        return made[-1]

    monkeypatch.setattr(summary_module, "RunData", recorded)
    flags, settings = RUNS[name]
    whole = simulate(resolve({"num_programs": 1, **flags}, settings)).summary
    (run,) = made
    chosen = [one for one in chosen_metrics(run.facts.percentiles) if one.key not in CATALOGUE]
    entries = [one for one in (*CATALOGUE.values(), *chosen) if one.when(run)]
    of_run = [one.key for one in entries if one.compute]
    of_client = [one.key for one in entries if one.by_client]
    computed = summarize(run.tables, run.facts)
    assert [key for key in computed if key not in LISTS | DESCRIBED] == of_run
    assert [key for key in whole if key in computed] == [*computed]
    for client in computed["clients"]:
        assert [key for key in client if key not in OF_CLIENTS] == of_client
    missing = {key for key in of_run if computed[key] is None}
    assert missing <= computed["notes"].keys()
    for key in missing:
        assert metric_of(key).undefined
