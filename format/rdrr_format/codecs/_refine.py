"""The search of `quality="best"`: blocks of the same size with less error than ggml's.

The search starts from ggml's blocks and alternates between two steps: choose the integers of the
groups for given scales of the block, then fit the scales of the block to these integers by least
squares. It minimizes the squared error, weighted by the importance of columns if that is known.
(ggml counts the errors of large weights more, which lowers neither the error of a product nor
perplexity.)
A block is only replaced by one with less error. The error of padding does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.base import Bytes, Floats

_F64 = npt.NDArray[np.float64]

# A determinant counts as zero below this fraction of the product of the diagonal.
_SINGULAR = 1e-6


@dataclass(frozen=True)
class Form:
    """How the blocks of a type represent weights: w = d * a * code - dmin * b.

    Attributes:
        groups: Number of groups in a block; each has its own a and b.
        codes: Lowest and highest code of a weight.
        a: Lowest and highest integer factor of d.
        b: Lowest and highest integer factor of dmin; (0, 0) for types without minimums.
        reach: How far a and b may move in each iteration; one pair per iteration.
        signed_floor: Whether dmin may be negative.
    """

    groups: int
    codes: tuple[int, int]
    a: tuple[int, int]
    b: tuple[int, int]
    reach: tuple[tuple[int, int], ...]
    signed_floor: bool = False

    @property
    def bounds(self) -> Floats:
        """Bounds of code, a and b: float32 [6], as `refine_groups` takes them."""
        return np.array([*self.codes, *self.a, *self.b], np.float32)


@dataclass
class Fit:
    """The parameters of blocks, and their errors.

    Attributes:
        d: float32 [blocks], exactly representable as f16.
        dmin: float32 [blocks], exactly representable as f16.
        pairs: float32 [blocks, groups, 2], a and b.
        error: float64 [blocks], weighted squared errors.
    """

    d: Floats
    dmin: Floats
    pairs: Floats
    error: _F64

    def keep_better(self, other: Fit) -> None:
        """Take over those blocks that have less error in `other`."""
        better = other.error < self.error
        for name in ("d", "dmin", "pairs", "error"):
            getattr(self, name)[better] = getattr(other, name)[better]


def column_weights(rows: Floats, columns: Floats, size: int) -> Floats:
    """Return the weights of columns [K] for each group of rows [n, K]: float32 [groups, size]."""
    return np.ascontiguousarray(np.broadcast_to(columns, rows.shape)).reshape(-1, size)


def refine(
    groups: Floats, weights: Floats, form: Form, d: Floats, dmin: Floats, pairs: Floats
) -> Fit:
    """Search for parameters of blocks with less error, starting from `d`, `dmin` and `pairs`.

    Args:
        groups: float32 [blocks * groups, size], the weights of the model.
        weights: float32 of the same shape, the weights of the squared errors.
        form: How blocks of the type represent weights.
        d: float32 [blocks], initial values.
        dmin: float32 [blocks], initial values.
        pairs: float32 [blocks, groups, 2], initial a and b.
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
    """Fit d and dmin of each block by least squares, rounded to f16."""
    # The normal equations of x = d * (a * code) - dmin * b. The columns of `sums` hold the error
    # and the weighted sums of code, code^2, code * x, 1 and x of each group.
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
    # Keep the old value if the new one is NaN or exceeds the range of f16.
    kept = [np.isfinite(values) for values in rounded]
    return np.where(kept[0], rounded[0], d), np.where(kept[1], rounded[1], dmin)


def round_codes(groups: Floats, form: Form, fit: Fit) -> Bytes:
    """Return the codes of refined blocks minus the lowest code: uint8 in the shape of `groups`."""
    from rdrr_format.codecs._refine_groups import nearest_in_groups

    steps = (fit.d[:, None] * fit.pairs[:, :, 0]).reshape(-1)
    offsets = (fit.dmin[:, None] * fit.pairs[:, :, 1]).reshape(-1)
    codes = np.empty(groups.shape, np.uint8)
    low, high = (np.float32(code) for code in form.codes)
    nearest_in_groups(groups, steps, offsets, low, high, codes)
    return codes
