"""Test that the page on attacks shows the numbers of its results file."""

import re

from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench_attacks.behaviour import KNOWN
from fairbench_studies.attacks import client_limits, memory
from fairbench_studies.attacks import reserve as attack_reserve
from fairbench_studies.attacks import table as plot
from fairbench_studies.kit.rows import read_rows
from fairbench_studies.kit.table_text import filled


def put(page, study, rows):
    return filled(page, study.tables(rows).get)


def test_the_tables_of_the_page_match_the_file():
    page = plot.PAGE.read_text(encoding="utf-8")
    assert put(page, plot, read_rows(plot.TABLE)) == page
    assert page.count("±") >= len(plot.COLUMNS) * (len(KNOWN) - len(plot.HARMLESS))
    assert set(plot.COLUMNS) <= set(plot.ROWS)


def test_every_known_attack_is_tried_under_every_row():
    rows = read_rows(plot.TABLE)
    assert {row["attack"] for row in rows} == set(KNOWN)
    assert len(rows) == len(plot.ROWS) * len(KNOWN)


def test_another_result_changes_the_page():
    page = plot.PAGE.read_text(encoding="utf-8")
    rows = read_rows(plot.TABLE)
    rows[0]["kept_mean"] = "0.1234"
    assert "0.12 ±" in put(page, plot, rows)
    assert put(page, plot, rows) != page


def test_the_cost_of_limits_matches_the_file():
    page = plot.PAGE.read_text(encoding="utf-8")
    rows = read_rows(client_limits.TABLE)
    assert [row["scheduler"] for row in rows] == list(client_limits.ROWS)
    assert put(page, client_limits, rows) == page
    rows[0]["service_mean"] = "0.1234"
    assert "| 0.12 ±" in put(page, client_limits, rows)


def test_the_effect_of_a_reserve_matches_the_file():
    page = client_limits.PAGE.read_text(encoding="utf-8")
    rows = read_rows(attack_reserve.TABLE)
    named = {row["attack"] for row in rows}
    assert named == {attack_reserve.TWIN, *attack_reserve.ATTACKS}
    assert put(page, attack_reserve, rows) == page
    next(row for row in rows if row["attack"] in attack_reserve.SHOWN)["p95_mean"] = "0.1234"
    assert "| 0.12 ±" in put(page, attack_reserve, rows)


def test_the_cost_of_attacks_on_the_cache_matches_the_file():
    page = memory.PAGE.read_text(encoding="utf-8")
    rows = read_rows(memory.TABLE)
    wanted = len(memory.WORKLOADS) * len(EVICTIONS) * len(memory.ATTACKS) * memory.SEEDS
    assert len(rows) == wanted
    assert put(page, memory, rows) == page
    rows[0]["hits"] = "0.0001"
    assert put(page, memory, rows) != page


def test_the_text_on_attacks_on_the_cache_has_the_numbers_of_its_tables():
    page = memory.PAGE.read_text(encoding="utf-8")
    tables = "".join(line for line in page.splitlines() if line.startswith("|"))
    text = page[: page.index("## Setup")] + page[page.index("## Findings") :]
    numbers = re.findall(r"\d+\.\d+", "".join(x for x in text.splitlines() if x[:1] != "|"))
    kept = {name: [] for name in memory.ATTACKS}
    for row in read_rows(memory.TABLE):
        kept[row["attack"]].append(100 * float(row["kept"]))
    pairs = (zip(kept["none"], kept[name], strict=True) for name in ("scan", "pin"))
    known = {
        *re.findall(r"\d+\.\d+", tables),
        f"{max(abs(a - b) for p in pairs for a, b in p):.1f}",
    }
    assert len(numbers) >= 8
    assert sorted(set(numbers) - known) == []


def test_a_run_of_the_study_is_reproducible(monkeypatch):
    monkeypatch.setattr(memory, "DURATION_S", 400.0)
    rows = [memory.run("tool-use", "max-min", "pin", 200) for _ in range(2)]
    assert rows[0] == rows[1]
    assert 0 < float(rows[0]["hits"]) < 1
