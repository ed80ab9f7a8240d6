"""How a matrix is kept in GPU memory: as it is stored, transposed, repacked or expanded."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.layouts import Layout

from rdrr_runtime.compile.decision import Unmet
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.phases.packing import FLAT_GRANULES, GPU_DTYPES
from rdrr_runtime.phases.row_scales import SCALED_TYPES
from rdrr_runtime.phases.turn_blocks import TURNED_TYPES

EXPANSIONS = {"dequant_f16": "F16", "dequant_f32": "F32"}


@dataclass(frozen=True)
class Storage:
    """How a matrix lies in GPU memory; `note` says why, where that is not as it is stored.

    `turned` blocks are those of `phases/turn_blocks.py`.
    """

    dtype: DType
    layout: Layout
    note: str = ""
    unmet: Unmet | None = None
    turned: bool = False


def choose_storage(
    preferences: Preferences,
    dtype: DType,
    layout: Layout,
    shape: tuple[int, int],
    *,
    max_binding: int,
    matmul: bool,
    experts: bool = False,
) -> Storage:
    """Return how to keep a matrix [N, K].

    Args:
        preferences: What is asked for.
        dtype: As it is stored.
        layout: As it is stored.
        shape: N and K.
        max_binding: Bytes of the largest buffer that can be bound.
        matmul: False for a mere lookup table.
        experts: Whether it is one of a mixture's experts.
    """
    k = shape[1]
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
        repacked = layout is Layout.COLUMN and matmul and not experts
        if repacked and _repacks(preferences, dtype, shape, max_binding):
            note = f"{dtype} in column layout repacked at load, for int8 products"
            return Storage(dtype, layout, note, turned=True)
        return Storage(dtype, layout)
    unmet = Unmet(hint, obstacle) if hint else None
    # F32 rather than F16: without a hint the values stay exactly those of the package.
    note = f"{dtype} expanded to F32 at load, as {obstacle}"
    return Storage(DTYPES["F32"], Layout.ROW, note, unmet)


def has_row_scales(preferences: Preferences, dtype: DType, *, turned: bool = False) -> bool:
    """Return whether a matrix of linear layers gets the scales that int8 products need."""
    if turned:
        # Only where a hint asks: what several rows gain has not been measured on a GPU yet.
        return preferences.hint("q4kMatmul") is not None and preferences.arithmetic.int8
    return dtype.name in SCALED_TYPES and preferences.rounds_16_bit_weights


def _repacks(
    preferences: Preferences, dtype: DType, shape: tuple[int, int], max_binding: int
) -> bool:
    kind = TURNED_TYPES.get(dtype.name)
    if kind is None or not preferences.arithmetic.int8 or shape[1] % 4:
        return False
    return 4 * kind.words(*shape) <= max_binding


def _obstacle(dtype: DType, layout: Layout, k: int, *, experts: bool) -> str:
    """Return why no kernel reads a matrix as it is stored, or nothing."""
    if dtype.name not in GPU_DTYPES:
        return f"no kernel reads {dtype}"
    if experts and layout is Layout.FLAT and dtype.is_block:
        return "experts are read in row or column layout"
    granule = FLAT_GRANULES.get(dtype.name)
    if layout is Layout.FLAT and (granule is None or k % granule):
        return "its flat blocks cross rows within a group of weights"
    return ""
