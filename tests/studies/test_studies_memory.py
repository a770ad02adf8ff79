"""Test that tables about memory and disaggregation follow from the stored runs."""

import pytest

from fairbench_studies.disaggregation import fair
from fairbench_studies.disaggregation import table as disaggregation
from fairbench_studies.kit.rows import read_rows
from fairbench_studies.kit.table_store import read
from fairbench_studies.kit.table_text import differs, plus_minus
from fairbench_studies.memory import sessions
from fairbench_studies.memory import table as shares


@pytest.mark.parametrize(
    ("study", "name"),
    [(sessions, "sessions"), (shares, "memory-share"), (fair, "disaggregation-fair")],
)
def test_a_table_follows_from_its_runs(study, name):
    assert [*study.table(read_rows(study.RUNS))] == read(name)


def test_the_table_of_disaggregation_has_complete_configurations_only():
    rows = read_rows(disaggregation.RUNS)
    found = disaggregation.complete(rows)
    assert [*disaggregation.table(found)] == read("disaggregation")
    one_less = [row for row in rows if row != found["judge", "vtc", "SGLang"][0]]
    assert ("judge", "vtc", "SGLang") not in disaggregation.complete(one_less)


def test_a_change_differs_if_its_interval_excludes_zero():
    assert plus_minus([1.0, 2.0, 3.0], 1) == "+2.0 ± 2.5"
    assert not differs([1.0, 2.0, 3.0])
    assert differs([2.0, 2.1, 2.2])
    assert plus_minus([4.0], 0, "") == "4"
    assert not differs([4.0])
