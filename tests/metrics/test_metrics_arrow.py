"""Test that columns go to Arrow and back unchanged, without an import of pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.tables import named, to_arrow, to_numpy


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.float64])
def test_numbers_equal_pyarrows(dtype):
    values = np.arange(12).astype(dtype).reshape(3, 4)[:, 1]  # not contiguous
    assert to_arrow(values).equals(pa.array(values.tolist(), pa.from_numpy_dtype(dtype)))


def test_never_is_a_number_and_not_null():
    column = to_arrow(np.array([np.nan, 1.0]))
    assert column.null_count == 0
    np.testing.assert_array_equal(column.to_numpy(), [np.nan, 1.0])


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 5))
def test_integers_of_a_slice_come_back(values, start):
    column = to_arrow(np.array(values, np.int64))
    assert to_numpy(column[start:]).tolist() == values[start:]


def test_names_may_be_empty_or_of_any_alphabet():
    names = ["", "client-0", "Zoë", "客户"]
    codes = np.array([3, 0, 2, 2, 1], np.int64)
    assert named(codes, names).to_pylist() == [names[code] for code in codes]


def test_a_run_is_saved_without_pandas(tmp_path):
    code = (
        "import sys; from fairbench.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'pyarrow' in sys.modules and 'pandas' not in sys.modules"
    )
    flags = ["run", "--workload", "chat", "--num-programs", "1", "--result-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-c", code, *flags], check=True, stdout=subprocess.DEVNULL)
    assert len(list(tmp_path.glob("*/*.parquet"))) == 3
