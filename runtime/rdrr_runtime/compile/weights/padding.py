"""Weights with rows and columns of zeros added, for graphs with padded widths.

See `rdrr_manifests.graph.padding`. A padded matrix is held in host memory as a whole while it is
loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES, DType
from rdrr_manifests.graph.ops import WeightUse
from rdrr_manifests.graph.padding import VectorScale
from rdrr_manifests.package import Package

F32 = npt.NDArray[np.float32]

ROWS = 4096
"""Rows to yield at a time."""


def is_padded(package: Package, use: WeightUse) -> bool:
    """Return whether a tensor is smaller than the matrix or vector that the graph reads."""
    return package.tensor(use.name).shape != use.shape


def padded_dtype(dtype: DType) -> DType:
    """Return the type in which a padded matrix is kept: F16 if it is stored in F16, else F32."""
    return dtype if dtype.name == "F16" else DTYPES["F32"]


def padded_matrix(package: Package, use: WeightUse) -> Iterator[F32]:
    """Yield the rows of a padded matrix, float32 [rows, K]."""
    n, k = use.shape
    values = package.dequantize(use.name)
    for first in range(0, n, ROWS):
        rows = np.zeros((min(ROWS, n - first), k), np.float32)
        some = values[first : first + ROWS]
        rows[: len(some), : some.shape[1]] = some
        yield rows


def padded_vector(package: Package, use: WeightUse, scale: VectorScale | None) -> F32:
    """Return a padded vector, scaled if it is the weight of a norm."""
    values = package.dequantize(use.name)
    if scale is not None:
        # In float64, so that the only rounding is that of the result.
        wide = (values.astype(np.float64) + scale.offset) * scale.factor - scale.offset
        values = wide.astype(np.float32)
    padded = np.zeros(use.shape, np.float32)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
