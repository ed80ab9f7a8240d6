"""Columns of a weight in groups that share a scale and a zero point: (value - zero) * scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_converter.sources.base import F32Array
from rdrr_converter.sources.quantized.modules import Module


@dataclass(frozen=True)
class Groups:
    """Which group each column belongs to.

    Attributes:
        count: Number of groups.
        size: Columns in a group, where they follow each other.
        index: Group of each column, where they do not.
    """

    count: int
    size: int
    index: npt.NDArray[np.int64] | None = None

    def window(self, begin: int, end: int) -> slice:
        """The groups that columns `begin` to `end` need."""
        if self.index is not None:
            return slice(0, self.count)
        return slice(begin // self.size, -(-end // self.size))

    def scaled(
        self, values: npt.NDArray[Any], begin: int, scales: F32Array, zeros: F32Array | None
    ) -> F32Array:
        """(value - zero) * scale of columns from `begin` on.

        Args:
            values: Stored values, or what they stand for [rows, columns].
            begin: Number of the first column.
            scales: Of the groups of the window [rows, groups].
            zeros: Their zero points, likewise; None for none.
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
    """The groups of a module.

    Args:
        module: The module.
        part: Its tensor of scales, for messages.
        columns: Number of columns, K.
        count: Number of groups that the scales are of.
        stated: Sizes of groups that the settings name.
        index: Part that holds the group of each column, if the module has it.

    Raises:
        SourceError: The columns cannot be divided like that.
    """
    listed = module.get(index)
    if listed is not None:
        found = _listed(module, index, columns, count)
        if found is not None:
            return found
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
    """Groups by their list; None where the list says nothing, which -1 stands for."""
    tensor = module[part]
    if tensor.dtype not in ("I32", "I64") or tensor.rows * tensor.columns != columns:
        found = f"{tensor.rows * tensor.columns} of {tensor.dtype}"
        raise module.fault("does not fit the weight", part, f"{columns} integers", found)
    index = tensor.stored().reshape(-1).astype(np.int64)
    if (index == -1).all():
        return None
    if index.min() < 0 or index.max() >= count:
        found = f"{index.min()} to {index.max()}"
        raise module.fault("names groups that are not there", part, f"0 to {count - 1}", found)
    size = -(-columns // count)
    if np.array_equal(index, np.arange(columns) // size):
        return Groups(count, size)
    return Groups(count, size, index)
