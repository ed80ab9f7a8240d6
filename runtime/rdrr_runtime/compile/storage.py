"""How a matrix is kept in GPU memory: in the form of its type, transposed, or expanded."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.layouts import Layout

from rdrr_runtime.compile.decision import Unmet
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.phases.formats import FORMATS
from rdrr_runtime.phases.gpu_weight import reads_flat
from rdrr_runtime.phases.row_scales import SCALED_TYPES

EXPANSIONS = {"dequant_f16": "F16", "dequant_f32": "F32"}


@dataclass(frozen=True)
class Storage:
    """What a matrix is kept as; `note` says why, where that is not as it is stored."""

    dtype: DType
    layout: Layout
    note: str = ""
    unmet: Unmet | None = None


def choose_storage(
    preferences: Preferences,
    dtype: DType,
    layout: Layout,
    k: int,
    *,
    matmul: bool,
    experts: bool = False,
) -> Storage:
    """Return how to keep a matrix [N, K].

    Args:
        preferences: What is asked for.
        dtype: As it is stored.
        layout: As it is stored.
        k: Inputs of a row.
        matmul: False for a mere lookup table.
        experts: Whether it is one of a mixture's experts.
    """
    hint = preferences.hint("q4kMatmul") if matmul and dtype.is_block else None
    if layout is Layout.FLAT and k % dtype.block_elements == 0:
        layout = Layout.ROW  # blocks that do not cross rows: the bytes are the same
    if hint and hint.value in EXPANSIONS:
        wide = EXPANSIONS[hint.value]
        return Storage(DTYPES[wide], Layout.ROW, f"{dtype} expanded to {wide} at load, {hint}")
    obstacle = _obstacle(dtype, layout, k, experts=experts)
    if not obstacle:
        # Single values can be reordered without loss, and row-major has the faster kernels.
        if layout is Layout.COLUMN and not dtype.is_block:
            return Storage(dtype, Layout.ROW, f"{dtype} transposed to row-major at load")
        return Storage(dtype, layout)
    unmet = Unmet(hint, obstacle) if hint else None
    # F32 rather than F16: without a hint the values stay exactly those of the package.
    note = f"{dtype} expanded to F32 at load, as {obstacle}"
    return Storage(DTYPES["F32"], Layout.ROW, note, unmet)


def has_row_scales(preferences: Preferences, dtype: DType, *, by_column: bool = False) -> bool:
    """Return whether a matrix of linear layers gets the scales that int8 products need."""
    if by_column:
        return preferences.arithmetic.int8
    return dtype.name in SCALED_TYPES and preferences.rounds_16_bit_weights


def _obstacle(dtype: DType, layout: Layout, k: int, *, experts: bool) -> str:
    """Return why no kernel reads a matrix as it is stored, or nothing."""
    if dtype.name not in FORMATS:
        return f"no kernel reads {dtype}"
    if experts and layout is Layout.FLAT and dtype.is_block:
        return "experts are read in row or column layout"
    if layout is Layout.FLAT and not reads_flat(dtype, k):
        return "its flat blocks cross rows within a unit of weights"
    return ""
