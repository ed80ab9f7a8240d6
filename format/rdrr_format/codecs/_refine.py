"""Blocks with less error than ggml's, of the same size: what `quality="best"` adds.

It begins where ggml's search ends and takes turns: integers of the groups for given scales of the
block, scales of the block by least squares for given integers. The error that counts is the
squared one, weighted by the importance of columns if that is known. (ggml weighs larger weights
more, which lowers neither the error of a product nor perplexity.) What is kept never has more
error than what it began with. Padding weighs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.base import Bytes, Floats

_F64 = npt.NDArray[np.float64]

_SINGULAR = 1e-6  # share of the diagonal's product below which a determinant counts as zero


@dataclass(frozen=True)
class Form:
    """How a type's blocks approximate weights: w = d * a * code - dmin * b.

    Attributes:
        groups: Groups of a block, each with its a and b.
        codes: Lowest and highest code of a weight.
        a: Lowest and highest integer before d.
        b: Lowest and highest integer before dmin; (0, 0) for types without minimums.
        reach: How far a and b may move in each turn; one pair a turn.
        signed_floor: dmin may be negative.
    """

    groups: int
    codes: tuple[int, int]
    a: tuple[int, int]
    b: tuple[int, int]
    reach: tuple[tuple[int, int], ...]
    signed_floor: bool = False

    @property
    def bounds(self) -> Floats:
        """All bounds in the order in which the compiled code takes them."""
        return np.array([*self.codes, *self.a, *self.b], np.float32)


@dataclass
class Fit:
    """Numbers of blocks, and the error that they leave.

    Attributes:
        d: float32 [blocks], each exactly an f16.
        dmin: float32 [blocks], likewise.
        pairs: float32 [blocks, groups, 2], a and b.
        error: float64 [blocks].
    """

    d: Floats
    dmin: Floats
    pairs: Floats
    error: _F64

    def keep_better(self, other: Fit) -> None:
        """Take over the blocks in which the other leaves less error."""
        better = other.error < self.error
        for name in ("d", "dmin", "pairs", "error"):
            getattr(self, name)[better] = getattr(other, name)[better]


def column_weights(rows: Floats, columns: Floats, size: int) -> Floats:
    """Weights of columns [K] for each group of rows [n, K], float32 [groups, size]."""
    return np.ascontiguousarray(np.broadcast_to(columns, rows.shape)).reshape(-1, size)


def refine(
    groups: Floats, weights: Floats, form: Form, d: Floats, dmin: Floats, pairs: Floats
) -> Fit:
    """Improve blocks.

    Args:
        groups: float32 [blocks * groups, size].
        weights: float32 of the same shape.
        form: The type's.
        d: float32 [blocks] to begin with.
        dmin: float32 [blocks].
        pairs: float32 [blocks, groups, 2].
    """
    from rdrr_format.codecs._refine_groups import refine_groups

    sums = np.empty((len(groups), 6), np.float32)
    best: Fit | None = None
    for turn, (reach_a, reach_b) in enumerate(form.reach):
        moved = np.array(pairs, np.float32).reshape(-1, 2)
        by_group = np.repeat(d, form.groups), np.repeat(dmin, form.groups)
        refine_groups(groups, weights, *by_group, form.bounds, reach_a, reach_b, moved, sums)
        pairs = moved.reshape(-1, form.groups, 2)
        by_block = sums.reshape(-1, form.groups, 6).astype(np.float64)
        fit = Fit(d.copy(), dmin.copy(), pairs.copy(), by_block[:, :, 0].sum(axis=1))
        if best is None:
            best = fit
        else:
            best.keep_better(fit)
        if turn + 1 < len(form.reach):
            d, dmin = _solve(by_block, pairs, form, d, dmin)
    assert best is not None
    return best


def _solve(sums: _F64, pairs: Floats, form: Form, d: Floats, dmin: Floats) -> tuple[Floats, Floats]:
    """Least squares for d and dmin of each block, rounded to f16."""
    a, b = pairs[:, :, 0].astype(np.float64), pairs[:, :, 1].astype(np.float64)
    left = (a * a * sums[:, :, 2]).sum(axis=1)
    cross = -(a * b * sums[:, :, 1]).sum(axis=1)
    right = (b * b * sums[:, :, 4]).sum(axis=1)
    to_d, to_dmin = (a * sums[:, :, 3]).sum(axis=1), -(b * sums[:, :, 5]).sum(axis=1)
    determinant = left * right - cross * cross
    with np.errstate(all="ignore"):
        both = determinant > _SINGULAR * left * right
        alone = np.where(left > 0, to_d / left, d)
        new_d = np.where(both, (to_d * right - to_dmin * cross) / determinant, alone)
        new_dmin = np.where(both, (left * to_dmin - cross * to_d) / determinant, 0.0)
        if not form.signed_floor:
            new_d = np.where(new_dmin < 0, alone, new_d)
            new_dmin = np.maximum(new_dmin, 0.0)
        rounded = [values.astype(np.float16).astype(np.float32) for values in (new_d, new_dmin)]
    # Beyond f16, or no number: stay with what there was.
    kept = [np.isfinite(values) for values in rounded]
    return np.where(kept[0], rounded[0], d), np.where(kept[1], rounded[1], dmin)


def round_codes(groups: Floats, form: Form, fit: Fit) -> Bytes:
    """Codes for refined blocks, counted from the lowest, uint8 in the shape of the groups."""
    from rdrr_format.codecs._refine_groups import nearest_in_groups

    steps = (fit.d[:, None] * fit.pairs[:, :, 0]).reshape(-1)
    offsets = (fit.dmin[:, None] * fit.pairs[:, :, 1]).reshape(-1)
    codes = np.empty(groups.shape, np.uint8)
    low, high = (np.float32(code) for code in form.codes)
    nearest_in_groups(groups, steps, offsets, low, high, codes)
    return codes
