"""The storage type of each matrix of a GGUF that is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rdrr_format.dtypes import F16_OVERFLOW
from rdrr_format.layouts import Layout
from rdrr_manifests.logical import LogicalTensor, RowReader
from rdrr_manifests.package import Package


def storage_type(package: Package, parts: Sequence[LogicalTensor]) -> tuple[str, str]:
    """Choose the type of a matrix, and return it with the reason if it is not the stored type."""
    dtypes = sorted({part.dtype.name for part in parts})
    dtype, columns = parts[0].dtype, parts[0].columns
    if len(dtypes) > 1:
        why = f"{' and '.join(dtypes)} in one tensor"
    elif not dtype.is_block:
        return dtype.name, ""
    elif columns % dtype.block_elements:
        why = f"row length {columns} is not a multiple of the {dtype} block size"
    elif any(part.layout is Layout.COLUMN for part in parts):
        why = f"{dtype} blocks in the column layout contain weights of several rows"
    else:
        return dtype.name, ""
    return decoded_type(package, parts), why


def decoded_type(package: Package, parts: Sequence[LogicalTensor]) -> str:
    """Return the type in which decoded values are written: F16, or F32 where F16 overflows."""
    if any(part.dtype.name == "F32" for part in parts):
        return "F32"
    readers = [RowReader(package, part) for part in parts]
    largest = max(
        float(np.abs(reader.values(*chunk)).max())
        for reader in readers
        for chunk in reader.chunks()
    )
    return "F16" if largest < F16_OVERFLOW else "F32"
