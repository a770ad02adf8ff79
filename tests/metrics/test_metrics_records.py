import numpy as np
import pytest

from fairbench.errors import DataError
from fairbench.metrics.records import Programs, Service, Window
from tests.metrics.metrics_helpers import PROGRAM, log, programs


def test_columns_are_cast_and_read_back():
    table = programs({"client": 3, "arrival_s": 1})
    assert table.client.dtype == np.int64
    assert table.arrival_s.dtype == np.float64
    assert table.status.dtype == np.int8
    again = Programs.from_columns(table.to_columns())
    assert again.client.tolist() == [3]
    assert len(again) == 1


def test_an_empty_table_has_length_zero():
    assert len(log()) == 0


def test_take_selects_rows_of_every_column():
    table = log({"client": 0, "steps": 1}, {"client": 1, "steps": 7})
    picked = table.take(table.client == 1)
    assert isinstance(picked, Service)
    assert (picked.client.tolist(), picked.steps.tolist()) == ([1], [7])


def test_a_missing_column_is_named():
    columns = {name: [value] for name, value in PROGRAM.items() if name != "arrival_s"}
    with pytest.raises(DataError, match="Programs: column 'arrival_s' is missing"):
        Programs.from_columns(columns)


def test_a_shorter_column_is_named():
    columns = {name: [value] for name, value in PROGRAM.items()} | {"status": [0, 0]}
    with pytest.raises(DataError, match="Programs: column 'status' has 2 rows"):
        Programs.from_columns(columns)


def test_an_inverted_window_has_no_length():
    assert Window(2.0, 5.0).length_s == 3
    assert Window(5.0, 2.0).length_s == 0
