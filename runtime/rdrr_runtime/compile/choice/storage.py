"""The choice of how a matrix is kept in GPU memory: as stored, transposed, or expanded."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.layouts import Layout

from rdrr_runtime.compile.choice.decision import Unmet
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.gpu_weight import reads_flat

EXPANSIONS = {"dequant_f16": "F16", "dequant_f32": "F32"}


@dataclass(frozen=True)
class Storage:
    """The type and layout in which a matrix is kept in GPU memory.

    Attributes:
        dtype: Type in GPU memory.
        layout: Layout in GPU memory.
        note: What is changed at load, and why; empty if the matrix is kept as stored.
        unmet: The hint that is not honoured, if there is one.
        units_first: Whether to keep its units first, see `allocate_weight`.
    """

    dtype: DType
    layout: Layout
    note: str = ""
    unmet: Unmet | None = None
    units_first: bool = False


def choose_storage(
    preferences: Preferences,
    dtype: DType,
    layout: Layout,
    k: int,
    *,
    matmul: bool,
    experts: bool = False,
) -> Storage:
    """Choose how to keep a matrix [N, K].

    Args:
        preferences: Hints and defaults.
        dtype: Stored type.
        layout: Stored layout.
        k: Inputs per row, K.
        matmul: Whether the matrix is multiplied, rather than only looked up.
        experts: Whether the matrix belongs to an expert of a mixture.
    """
    hint = preferences.hint("q4kMatmul") if matmul and dtype.is_block else None
    if layout is Layout.FLAT and k % dtype.block_elements == 0:
        layout = Layout.ROW  # no block crosses rows, so the bytes are the same
    if hint and hint.value in EXPANSIONS:
        wide = EXPANSIONS[hint.value]
        return Storage(DTYPES[wide], Layout.ROW, f"{dtype} expanded to {wide} at load, {hint}")
    obstacle = _obstacle(dtype, layout, k, experts=experts)
    if not obstacle:
        # Scalars can be reordered without loss, and the kernels for row-major are faster.
        if layout is Layout.COLUMN and not dtype.is_block:
            return Storage(dtype, Layout.ROW, f"{dtype} transposed to row-major at load")
        return Storage(dtype, layout)
    unmet = Unmet(hint, obstacle) if hint else None
    # F32 rather than F16: without a hint the values stay exactly those of the package.
    note = f"{dtype} expanded to F32 at load, as {obstacle}"
    return Storage(DTYPES["F32"], Layout.ROW, note, unmet)


def _obstacle(dtype: DType, layout: Layout, k: int, *, experts: bool) -> str:
    """Return why no kernel can read a matrix as stored; an empty string if one can."""
    if dtype.name not in FORMATS:
        return f"no kernel reads {dtype}"
    if experts and layout is Layout.FLAT and dtype.is_block:
        return "kernels read experts only in row or column layout"
    if layout is Layout.FLAT and not reads_flat(dtype, k):
        return "its flat blocks cross rows within a unit of weights"
    return ""
