"""Rounding of matrices to Q8_0 rows for int8 products.

Int8 products need int8 codes with scales along the inputs. Matrices of 16-bit values, and those
whose blocks lie along the outputs, are rounded to Q8_0 before each product of several rows, in a
buffer that all matrices share, or once, each in memory of its own. The rounding error is at most
1/254 of the largest weight of each 32, as that of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.matvec_rows import MAX_MATRICES
from rdrr_runtime.phases.weights.binding import BoundWeights, WeightsRecord
from rdrr_runtime.phases.weights.checks import readable
from rdrr_runtime.phases.weights.formats import FORMATS, UNIT
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, Part

TYPE = "Q8_0"
ROUNDED_TYPES = ("F16", "BF16")
"""Unquantized types that can be multiplied in int8."""

WORKGROUP = 256
OUTPUTS = 32  # outputs of an item
SCRATCH_BYTES = 64 << 20
"""Most bytes of the shared buffer; a larger matrix is multiplied in several parts."""

ALIGNMENT = 256
"""Multiple at which a matrix begins in the shared buffer, as devices require of a binding."""


@dataclass(frozen=True, kw_only=True)
class Requantize(WeightsRecord):
    """Parameters of requantize.wgsl.

    Attributes:
        outputs: Rows to write.
    """

    shader = "products/requantize"
    trusted = True

    threads: int = WORKGROUP
    first: int
    outputs: int
    pairs: int
    target_scales: int


@dataclass(frozen=True)
class Requantized:
    """A matrix as Q8_0 rows, and the phases that write them.

    Attributes:
        weight: The rows. If its parts share memory, each must be read before the next is written.
        phases: For each part, the phase that writes it; none if that was done before the pass.
    """

    weight: GpuWeight
    phases: tuple[Phase, ...]

    def before(self, products: Sequence[Phase]) -> list[Phase]:
        """Return the products of the parts, each after the phase that writes its part."""
        if not self.phases:
            return list(products)
        pairs = zip(self.phases, products, strict=True)
        return [phase for pair in pairs for phase in pair]


def is_rounded(weight: GpuWeight) -> bool:
    """Return whether int8 products need a matrix rounded to Q8_0 rows, and can have it."""
    return weight.by_column or (weight.dtype.name in ROUNDED_TYPES and readable(weight))


def scratch_bytes(weight: GpuWeight, max_binding: int) -> int:
    """Return the bytes of the shared buffer that a matrix needs."""
    fit = _fitting_rows(weight.k, min(SCRATCH_BYTES, max_binding))
    most = max(min(part.rows, fit) for part in weight.parts)
    return FORMATS[TYPE].size(most, _units(weight.k))


def shared_bytes(weights: Iterable[GpuWeight], max_binding: int) -> int:
    """Return the bytes of a shared buffer for any of some matrices, or for those of a phase."""
    most = max((scratch_bytes(weight, max_binding) for weight in weights), default=0)
    several = MAX_MATRICES * (most + ALIGNMENT) if most else 0
    return max(most, min(several, SCRATCH_BYTES, max_binding))


def whole_bytes(weight: GpuWeight) -> int:
    """Return the bytes in which a whole matrix certainly fits, up to where another one may begin.

    It is divided into parts of whole items, so an incomplete item counts as a whole one.
    """
    rows = -(-weight.n // OUTPUTS) * OUTPUTS
    return -(-FORMATS[TYPE].size(rows, _units(weight.k)) // ALIGNMENT) * ALIGNMENT


def in_rows(weight: GpuWeight) -> GpuWeight:
    """Return what kernels may expect of the matrix after it was rounded: its type and layout."""
    return replace(weight, dtype=DTYPES[TYPE], layout=Layout.ROW, units_first=False)


def requantized(
    weight: GpuWeight, scratch: BufferSlice, max_binding: int, *, label: str
) -> Requantized:
    """Round a matrix to Q8_0 rows in a buffer that the parts of all matrices share.

    Args:
        weight: [N, K] that `is_rounded`.
        scratch: Buffer of at least `scratch_bytes`.
        max_binding: Bytes of the largest buffer that can be bound.
        label: Name of the matrix, for messages and profiles.
    """
    most = min(SCRATCH_BYTES, max_binding)
    return _requantized(weight, lambda size: scratch.range(0, size), most, label)


def requantized_apart(weight: GpuWeight, arena: Arena, *, label: str) -> Requantized:
    """Round a matrix to Q8_0 rows in memory of its own; see `requantized`.

    Raises:
        DeviceError: The device has too little memory.
    """
    return _requantized(
        weight, lambda size: arena.empty(f"{label}.rows", size), arena.max_binding, label
    )


def _requantized(
    weight: GpuWeight, memory_of: Callable[[int], BufferSlice], most: int, label: str
) -> Requantized:
    """Return a matrix in parts of at most `most` bytes, and the phases that round them."""
    units = _units(weight.k)
    pieces = tuple(_pieces(weight, _fitting_rows(weight.k, most)))
    parts = tuple(
        Part(memory_of(FORMATS[TYPE].size(rows, units)), source.first_row + first, rows)
        for source, first, rows in pieces
    )
    rounded = replace(
        weight,
        dtype=DTYPES[TYPE],
        layout=Layout.ROW,
        units=units,
        stride=weight.n,
        parts=parts,
        units_first=False,
    )
    phases = tuple(
        _phase(weight, source, first, rounded, part, label)
        for (source, first, _), part in zip(pieces, parts, strict=True)
    )
    return Requantized(rounded, phases)


def _units(k: int) -> int:
    """Return the units of a row of `k` inputs, an even number."""
    return -(-k // (2 * UNIT)) * 2


def _fitting_rows(k: int, most: int) -> int:
    """Return the most rows that fit `most` bytes, a multiple of the outputs of an item."""
    return max(1, most // FORMATS[TYPE].size(OUTPUTS, _units(k))) * OUTPUTS


def _pieces(weight: GpuWeight, fit: int) -> Iterator[tuple[Part, int, int]]:
    """Yield pieces of at most `fit` rows: the part of a matrix, the first row in it, the rows."""
    for part in weight.parts:
        rows = weight.outputs(part)
        for first in range(0, rows, fit):
            yield part, first, min(fit, rows - first)


def _phase(
    weight: GpuWeight, source: Part, first: int, rounded: GpuWeight, part: Part, label: str
) -> Phase:
    bound = BoundWeights((weight,), (source,))
    pairs = rounded.units // 2
    record = Requantize(
        variant=f"{bound.types}.column" if weight.by_column else bound.types,
        first=first,
        outputs=part.rows,
        pairs=pairs,
        target_scales=rounded.plane_offsets(part).scales or 0,
        **bound.fields,
    )
    items = -(-part.rows // OUTPUTS) * -(-pairs // 2)
    buffers = {"rows": part.slice, **bound.buffers}
    return Phase(record, buffers, Work(items), f"{label}.rows")
