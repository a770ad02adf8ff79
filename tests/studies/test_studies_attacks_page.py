"""The page on known attacks says what its file of results does."""

from fairbench.attack.known import KNOWN
from fairbench_studies.attacks import client_limits
from fairbench_studies.attacks import reserve as attack_reserve
from fairbench_studies.attacks import table as plot


def test_its_tables_are_those_of_the_file():
    page = plot.PAGE.read_text(encoding="utf-8")
    assert plot.put(page, plot.read()) == page
    assert page.count("±") >= len(plot.ROWS) * len(KNOWN) * 3


def test_every_known_attack_is_tried_under_every_row():
    rows = plot.read()
    assert {row["attack"] for row in rows} == set(KNOWN)
    assert len(rows) == len(plot.ROWS) * len(KNOWN)


def test_another_result_changes_the_page():
    page = plot.PAGE.read_text(encoding="utf-8")
    rows = plot.read()
    rows[0]["kept_mean"] = "0.1234"
    assert "0.12 ±" in plot.put(page, rows)
    assert plot.put(page, rows) != page


def test_what_limits_cost_is_that_of_its_file():
    page = plot.PAGE.read_text(encoding="utf-8")
    rows = client_limits.read()
    assert [row["scheduler"] for row in rows] == list(client_limits.ROWS)
    assert client_limits.put(page, rows) == page
    rows[0]["service_mean"] = "0.1234"
    assert "| 0.12 ±" in client_limits.put(page, rows)


def test_what_a_reserve_does_is_that_of_its_file():
    page = client_limits.PAGE.read_text(encoding="utf-8")
    rows = attack_reserve.read()
    named = {row["attack"] for row in rows}
    assert named == {attack_reserve.TWIN, *attack_reserve.ATTACKS}
    assert attack_reserve.put(page, rows) == page
    rows[1]["p95_mean"] = "0.1234"
    assert "| 0.12 ±" in attack_reserve.put(page, rows)
