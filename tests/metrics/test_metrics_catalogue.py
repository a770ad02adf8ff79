"""Test the catalogue: an entry for every metric, and a complete example of adding one."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import DataError, UsageError
from fairbench.gate.judge import parse_clause
from fairbench.metrics.catalogue import (
    CATALOGUE,
    CLIENTS,
    columns_of,
    fitting,
    forget_needing,
    metric_of,
)
from fairbench.metrics.entries.some_runs import MEMORY, SESSIONS, SIDES
from fairbench.metrics.metric import Better, Display, Form, Metric, Needs, Of, Shown
from fairbench.report import comparison_table, interval_lines, run_table
from fairbench.report.pages.run_page import client_grid
from fairbench.results.comparison import compare
from fairbench.results.intervals import combine
from fairbench.results.summary_schema import check_summary
from fairbench.results.values import values_of
from fairbench.sim.run import simulate
from fairbench_studies.dlpm import fig1, fig7, fig11
from fairbench_studies.pages.metric_table import metric_table
from tests.docs_keys import undocumented
from tests.results.comparison_helpers import stored

DOCS = Path(__file__).parents[2] / "docs"


def chat(seed=0):
    return simulate(resolve({"workload": "chat", "num_programs": 2, "seed": seed})).summary


def longest(tables, facts):
    """Return the longest input of a request."""
    return float(tables.requests.input_tokens.max(initial=0))


def longest_of_clients(tables, facts):
    """Return the longest input of each client, by index."""
    assert tables.clients == [client.name for client in facts.clients]
    found = np.zeros(len(tables.clients))
    np.maximum.at(found, tables.requests.client, tables.requests.input_tokens)
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
    compute_clients=longest_of_clients,
)


@pytest.fixture
def toy(monkeypatch):
    """Add a toy metric: its function and its entry are enough."""
    monkeypatch.setitem(CATALOGUE, TOY.key, TOY)
    return TOY.key


def test_an_entry_with_its_function_puts_a_metric_into_the_summary(toy):
    summary = chat()
    of_clients = [client[toy] for client in summary["clients"]]
    assert summary[toy] == max(of_clients) > 0
    text = run_table.summary_text(summary, path=Path("x"))
    assert f"\nlongest input  {summary[toy]:,.0f} tokens\n" in text
    assert "longest" in text.split("behaviour")[0]  # the first of the two lines of the heading
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
    combined = combine([chat(), chat(seed=1)])
    assert combined[toy]["runs"] == 2
    assert "longest input, tokens" in dict(interval_lines.results_of(combined))


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
    assert f"| `{toy}` | run and client | tokens | less | there is no request |" in metric_table()
    assert metric_table() not in docs


def test_a_missing_value_is_null_with_the_reason_of_its_entry(monkeypatch):
    nothing = Metric(
        key="nothing", heading="nothing", undefined="so it is",
        compute=lambda tables, facts: float("nan"),
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
    live |= {key for key in of_run if key.startswith(("victim_session_", "victim_ttft_"))}
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
        ["sharing_incentive_p50"],
    ]  # fmt: skip
