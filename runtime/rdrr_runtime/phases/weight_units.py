"""How kernels read each weight type: a table.

A unit is 32 weights of a stored row that a thread dequantizes at once
(`snippets/weight_<type>.wgsl`). Units of the K-quants gather weights that share bytes, so a unit
spans more than 32 positions: the granule is the run of positions that whole units cover.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.packing import GpuWeight

UNIT = 32

GRANULES: Mapping[str, int] = MappingProxyType(
    {
        "F32": 32,
        "F16": 32,
        "BF16": 32,
        "Q8_0": 32,
        "Q4_0": 32,
        "Q5_0": 32,
        "Q5_1": 32,
        "Q4_K": 64,
        "Q5_K": 64,
        "Q6_K": 128,
    }
)


def row_elements(weight: GpuWeight) -> int:
    """Weights of a stored row that carry meaning."""
    return weight.n if weight.layout is Layout.COLUMN else weight.k


def row_units(weight: GpuWeight) -> int:
    """Units of a stored row that hold any weight with meaning."""
    granule = granule_of(weight)
    return -(-row_elements(weight) // granule) * granule // UNIT


def row_padded(weight: GpuWeight) -> bool:
    """Whether some unit reaches beyond the weights that carry meaning."""
    return row_elements(weight) % granule_of(weight) != 0


def granule_of(weight: GpuWeight) -> int:
    """Positions that whole units of the weight's type cover.

    Raises:
        FormatError: No kernel reads the type.
    """
    found = GRANULES.get(weight.dtype.name)
    if found is None:
        raise FormatError(
            "no kernel reads this type", expected=", ".join(GRANULES), found=weight.dtype.name
        )
    return found


def power_of_two(value: int, low: int, high: int) -> int:
    """The smallest power of two not below `value`, kept within low..high (powers of two)."""
    return min(high, max(low, 1 << (max(1, value) - 1).bit_length()))
