"""Test the study of the limit: its page, and its table that grows run by run."""

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
