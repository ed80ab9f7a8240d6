"""Functions of the rows of matrices, computed by several threads: codecs release Python's lock.

The result does not depend on the number of threads, since each row is computed by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PART = 1 << 17
"""Elements that justify a thread: a search for their scales takes it about 10 ms."""


def by_rows(function: Callable[..., tuple[Array, ...]], *arrays: Array) -> tuple[Array, ...]:
    """Apply a function to parts of the rows of some arrays, and join what it returns.

    Args:
        function: Returns arrays with a row for each row of its arguments.
        arrays: Matrices with the same number of rows.
    """
    rows = len(arrays[0])
    parts = max(1, min(os.cpu_count() or 1, rows, arrays[0].size // PART))
    if parts == 1:
        return function(*arrays)
    ends = [rows * part // parts for part in range(parts + 1)]

    def compute(span: tuple[int, int]) -> tuple[Array, ...]:
        return function(*(array[slice(*span)] for array in arrays))

    with ThreadPoolExecutor(parts) as pool:
        results = pool.map(compute, pairwise(ends))
        return tuple(np.concatenate(pieces) for pieces in zip(*results, strict=True))
