"""Test the study of the limit: its page, and its table that grows run by run."""

from statistics import fmean

import pytest

from fairbench_studies.kit.rows import stored_rows
from fairbench_studies.kit.table_text import filled
from fairbench_studies.limit import table


def test_the_page_has_the_tables_of_the_stored_runs():
    page = table.PAGE.read_text(encoding="utf-8")
    assert filled(page, table.tables().get) == page
    assert len(stored_rows(table.TABLE)) == len(table.PLACES) * len(table.SCHEDULERS) * len(
        table.SEEDS
    )


def test_an_interrupted_study_continues_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "TABLE", tmp_path / "limit.csv")
    asked = []

    def measured(workload, scenario, scheduler, seed):
        asked.append((workload, scenario, scheduler, seed))
        if len(asked) == 10:
            raise KeyboardInterrupt
        return {
            "workload": workload, "scenario": scenario, "scheduler": scheduler, "seed": seed
        }  # fmt: skip

    monkeypatch.setattr(table, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        table.extend([0])
    assert len(stored_rows(table.TABLE)) == 9
    table.extend([0])
    assert asked[10] == asked[9]
    assert len(asked) == len(set(asked)) + 1 == 1 + len(table.PLACES) * len(table.SCHEDULERS)
    table.extend([0])
    assert len(stored_rows(table.TABLE)) == len(set(asked))


@pytest.mark.parametrize("seeds", [("x",), ("0", "1.5"), ("",)])
def test_seeds_are_whole_numbers(seeds):
    with pytest.raises(SystemExit, match="must be whole numbers"):
        table.main(*seeds)


def test_no_bundled_scheduler_is_nearer_to_the_limit_and_fairer_than_fair_finish():
    for found in table.both_measures().values():
        ours = found["published", "fair-finish"]
        assert not any(
            one.limit > ours.limit and one.worst_minute > ours.worst_minute
            for (form, _), one in found.items()
            if form == "published"
        )


def test_tuned_fair_finish_is_near_the_limit_and_less_fair_than_d2lpm_in_one_configuration():
    less_fair = []
    for place, found in table.both_measures().items():
        ours, rival = (found["tuned", name] for name in ("fair-finish", "d2lpm"))
        assert ours.limit >= 0.93
        assert ours.worst_minute > found["published", "d2lpm"].worst_minute
        if rival.worst_minute > ours.worst_minute:
            less_fair.append(place)
    assert less_fair == ["tot s1"]


def test_fair_finish_gives_fair_shares_in_all_configurations_but_one():
    shares = {}
    for row in stored_rows(table.TABLE):
        if row["scheduler"] == "fair-finish":
            place = shares.setdefault(f"{row['workload']} {row['scenario']}", [])
            place.append(float(row["min_entitlement_ratio"]))
    low = {place: fmean(found) for place, found in shares.items() if fmean(found) < 0.95}
    assert low == {"tot s2": pytest.approx(0.85, abs=0.005)}
