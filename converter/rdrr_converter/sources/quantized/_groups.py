"""Groups of columns that share a scale and a zero point: weight = (value - zero) * scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.sources.quantized.modules import Module


@dataclass(frozen=True)
class Groups:
    """The assignment of columns to groups.

    Attributes:
        count: Number of groups.
        size: Columns per group, if the columns of a group are consecutive.
        index: Group of each column, if they are not; otherwise None.
    """

    count: int
    size: int
    index: npt.NDArray[np.int64] | None = None

    def window(self, begin: int, end: int) -> slice:
        """Return the groups that columns `begin` to `end` belong to."""
        if self.index is not None:
            return slice(0, self.count)
        return slice(begin // self.size, -(-end // self.size))

    def scaled(
        self, values: npt.NDArray[Any], begin: int, scales: F32Array, zeros: F32Array | None
    ) -> F32Array:
        """Return (value - zero) * scale for some columns.

        Args:
            values: Unpacked values [rows, columns].
            begin: Index of the first of these columns in the weight.
            scales: Scales [rows, groups] of the groups in `window`.
            zeros: Zero points [rows, groups] of these groups, or None.
        """
        result = values.astype(np.float32)
        end = begin + result.shape[1]
        if self.index is not None:
            chosen = self.index[begin:end]
            if zeros is not None:
                result -= zeros[:, chosen]
            result *= scales[:, chosen]
            return result
        window = self.window(begin, end)
        for group in range(window.start, window.stop):
            low, high = max(group * self.size, begin), min((group + 1) * self.size, end)
            part, at = result[:, low - begin : high - begin], group - window.start
            if zeros is not None:
                part -= zeros[:, at : at + 1]
            part *= scales[:, at : at + 1]
        return result


def find_groups(
    module: Module, part: str, columns: int, count: int, stated: tuple[int, ...], index: str
) -> Groups:
    """Find out how the columns of a module are grouped.

    Args:
        module: The module.
        part: Name of its scales, for messages.
        columns: Number of columns, K.
        count: Number of groups, from the shape of the scales.
        stated: Group sizes that the settings name.
        index: Name of the tensor with the group of each column, which the module may have.

    Raises:
        SourceError: The columns cannot be divided into that number of groups.
    """
    listed = module.get(index)
    if listed is not None:
        groups = _listed(module, index, columns, count)
        if groups is not None:
            return groups
    if count == 1:
        return Groups(1, columns)
    for size in stated:
        if size > 0 and -(-columns // size) == count:
            return Groups(count, size)
    if columns % count:
        expected = f"groups of {' or '.join(map(str, stated)) or 'one size'}"
        raise module.fault("does not fit the weight", part, expected, f"{count} for {columns}")
    return Groups(count, columns // count)


def _listed(module: Module, part: str, columns: int, count: int) -> Groups | None:
    """Return the groups that a tensor lists; None if all its entries are -1, for not stated."""
    tensor = module[part]
    if tensor.dtype not in ("I32", "I64") or tensor.rows * tensor.columns != columns:
        described = f"{tensor.rows * tensor.columns} of {tensor.dtype}"
        raise module.fault("does not fit the weight", part, f"{columns} integers", described)
    index = tensor.stored().reshape(-1).astype(np.int64)
    if (index == -1).all():
        return None
    if index.min() < 0 or index.max() >= count:
        described = f"{index.min()} to {index.max()}"
        raise module.fault("names groups that do not exist", part, f"0 to {count - 1}", described)
    size = -(-columns // count)
    if np.array_equal(index, np.arange(columns) // size):
        return Groups(count, size)
    return Groups(count, size, index)
