"""Test which columns of Parquet files are read and which are refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairbench.errors import DataError
from fairbench.files.formats import read_parquet


def test_a_column_of_nulls_is_read_as_unknown(tmp_path):
    """A metric that no run of a sweep has gives a column of nulls."""
    pq.write_table(pa.table({"x": [1, 2], "unknown": pa.nulls(2)}), tmp_path / "a.parquet")
    table = read_parquet(tmp_path / "a.parquet")
    assert table.to_pydict() == {"x": [1, 2], "unknown": [None, None]}


def test_a_column_of_an_unsupported_type_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [[1], [2]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"column 'x' is of type list<.*>: must hold"):
        read_parquet(tmp_path / "a.parquet")
