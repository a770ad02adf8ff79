"""Conversion of columns to and from Arrow without copies.

pyarrow's own conversions import pandas wherever it is installed: 45 MiB that nothing here needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array without nulls; contiguous arrays are not copied."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def to_numpy(numbers: pa.Array) -> NDArray[np.int64]:
    """Return 64-bit integers without nulls as numpy, without a copy."""
    values = np.frombuffer(numbers.buffers()[1], np.int64)
    return values[numbers.offset : numbers.offset + len(numbers)]


def named(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return indices into ``names`` as a column of names."""
    import pyarrow as pa

    texts = [name.encode() for name in names]
    ends = np.array([0, *accumulate(map(len, texts))], np.int32)
    dictionary = pa.StringArray.from_buffers(
        len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))
    )
    return pa.DictionaryArray.from_arrays(to_arrow(codes.astype(np.int32)), dictionary)
