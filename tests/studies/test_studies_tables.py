"""Test that the tables of the documents show the stored results."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fairbench_studies.pages.tables as tables
from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from fairbench_studies.kit import table_store
from fairbench_studies.kit.table_text import BLOCK, as_markdown, bounded
from fairbench_studies.pages import table_parts
from fairbench_studies.pages.runs import fig7, headline, incentive

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=lambda path: path.name)
def test_rendering_gives_the_committed_pages(path):
    text = path.read_text(encoding="utf-8")
    assert tables.rendered(text) == text
    opened, closed = text.count("<!-- table: "), text.count("<!-- end -->")
    assert opened == closed == len(BLOCK.findall(text))


def test_every_stored_table_is_shown():
    shown = {
        name
        for path in tables.DOCUMENTS
        for _, name, _, _ in BLOCK.findall(path.read_text(encoding="utf-8"))
    }
    assert set(tables.MADE) <= shown
    of_runs = {"cells": "cells/", "real-input": "real-"}
    for path in table_store.TABLES.glob("*.csv"):
        start = of_runs.get(path.stem, path.stem)
        assert any(name.startswith(start) for name in shown), path.name


@pytest.mark.parametrize("name", sorted(table_parts.PARTS))
def test_a_part_of_a_table_has_its_rows_and_at_most_seven_columns(name):
    header, _, *body = tables.render(name).splitlines()
    assert 3 <= len(body) <= 13
    assert header.count("|") <= 8
    assert {line.count("|") for line in body} == {header.count("|")}


def test_a_part_of_a_table_keeps_marks_and_empty_cells(monkeypatch):
    monkeypatch.setitem(table_parts.PARTS, "t", (r"a|b \| 2", ("y", "x")))
    table = "| x | z | y |\n|---|---|--:|\n| a | 9 | |\n| b | 2 | 3 |\n| b | 4 | 5 |\n"
    assert table_parts.part("t", table) == "| y | x |\n|--:|---|\n| | a |\n| 3 | b |\n"
    assert table_parts.part("other", table) == table


def test_a_changed_number_changes_the_table(tmp_path, monkeypatch):
    rows = table_store.read("cells")
    rows[2]["service_rate_tok_s"] = "1234567.8"
    monkeypatch.setattr(table_store, "TABLES", tmp_path)
    table_store.write("cells", rows)
    assert "| 1,234,568 |" in tables.render("cells/tot-s1")
    assert "| 1,234,568 |" in headline()


@pytest.fixture
def summary():
    return simulate(resolve({"workload": "chat", "scenario": "none", "num_programs": 2})).summary


def test_a_row_shows_the_numbers_of_its_run(tmp_path, summary):
    for label in ("b", "a"):
        run = tmp_path / label
        run.mkdir()
        (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    rows = table_store.collect([f"x=1::{tmp_path / 'b'}", str(tmp_path / "a")])
    assert [row["of"] for row in rows] == ["x=1", ""]
    for name in table_store.NUMBERS:
        assert rows[0][name] == ("" if summary[name] is None else repr(summary[name]))
    assert rows[0]["at_least"].split() == [
        n for n in table_store.NUMBERS if n in summary["censored"]
    ]
    assert float(rows[0]["service_rate_tok_s"]) == summary["service_rate_tok_s"]


def test_rows_are_in_order_of_workload_and_scheduler(tmp_path, summary):
    for workload, scheduler in (("chat", "vtc"), ("tot", "d2lpm"), ("tot", "fcfs")):
        run = tmp_path / f"{workload}-{scheduler}"
        run.mkdir()
        changed = {**summary, "workload": workload, "scheduler": scheduler}
        (run / "summary.json").write_text(json.dumps(changed), encoding="utf-8")
    rows = table_store.collect(map(str, sorted(tmp_path.iterdir())))
    assert [(row["workload"], row["scheduler"]) for row in rows] == [
        ("tot", "fcfs"),
        ("tot", "d2lpm"),
        ("chat", "vtc"),
    ]


def test_bounds_and_alignment_of_a_table():
    row = {"a": "957.2", "b": "31.46", "c": "", "at_least": "a"}
    assert [bounded(row, name) for name in "abc"] == ["> 957", "31.5", "-"]
    assert as_markdown(("x", "y"), [("a", "> 1"), ("2 b", "")]) == (
        "| x | y |\n|---|--:|\n| a | > 1 |\n| 2 b | |\n"
    )


def test_all_49_cells_exist():
    cells = [
        (row["workload"], row["scenario"], row["scheduler"]) for row in table_store.read("cells")
    ]
    assert len(set(cells)) == len(cells) == 49
    assert {row["seed"] for row in table_store.read("cells")} == {"0"}
    with (ROOT / "results" / "tables" / "cells.csv").open(newline="") as file:
        assert next(csv.reader(file))[:4] == ["of", "workload", "scenario", "scheduler"]


def test_a_sweep_becomes_the_table_of_figure_7(tmp_path, monkeypatch):
    def cell(scheduler, dp, incentive, **bound):
        return {
            **{"workload": "tot", "scenario": "s1", "scheduler": scheduler, "dp": dp},
            "sharing_incentive_p95": {"mean": incentive, **bound},
            "service_rate_tok_s": {"mean": 28_249.0},
            "jain_index_actual": {"mean": 0.127},
        }

    cells = [cell("vtc", 8, 12.34), cell("vtc", 1, 5.128, lower_bound=True), cell("lpm", 1, 1.0)]
    (tmp_path / "comparison.json").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    monkeypatch.setattr(table_store, "TABLES", tmp_path)
    table_store.write("fig7", table_store.collect_sweep(tmp_path))
    assert fig7().splitlines()[2:] == [
        "| `tot s1` | `lpm` | 1.00 / 28.2 / 0.13 | |",
        "| `tot s1` | `vtc` | > 5.12 / 28.2 / 0.13 | 12.3 / 28.2 / 0.13 |",
    ]


def test_a_stored_sweep_has_the_columns_of_its_table(tmp_path):
    points = ["--workloads", "chat", "--scenarios", "none", "--schedulers", "fcfs", "--dp", "1"]
    few = ["--num-programs", "2", "--num-runs", "1", "--result-dir", str(tmp_path)]
    done = CliRunner().invoke(app, ["sweep", *points, *few])
    assert done.exit_code == 0, done.output
    (row,) = table_store.collect_sweep(next(tmp_path.iterdir()))
    assert (row["workload"], row["scheduler"], row["dp"]) == ("chat", "fcfs", "1")
    assert float(row["service_rate_tok_s"]) > 0


def test_a_lower_bound_in_a_table_is_rounded_down():
    row = {"p": "1656.7", "q": "12.38", "at_least": "p q", "sharing_incentive_p95": "2.349"}
    assert bounded(row, "p") == "> 1,656"
    assert bounded(row, "q") == "> 12.3"
    assert bounded(row | {"at_least": ""}, "p") == "1,657"
    assert incentive(row | {"at_least": "sharing_incentive_p95"}) == "> 2.34"
