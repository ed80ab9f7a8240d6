"""`quality="best"`: the same types and sizes, less error, never more."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.codecs import CODECS
from rdrr_format.errors import FormatError

BLOCK_TYPES = [name for name, codec in CODECS.items() if codec.dtype.is_block]
# Largest fraction of ggml's squared error that may remain on normally distributed weights.
REMAINING_ERROR = {
    "Q8_0": 0.97,
    "Q6_K": 0.95,
    "Q5_K": 0.93,
    "Q5_1": 0.93,
    "Q4_1": 0.93,
    "Q5_0": 0.93,
    "Q4_K": 0.97,
    "Q4_0": 0.93,
    "MXFP4": 0.97,
}
DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
    "positive": lambda rng, shape: rng.random(shape) + 0.5,
    "negative": lambda rng, shape: -rng.random(shape) - 0.5,
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.02),
    "constant": lambda rng, shape: np.full(shape, rng.standard_normal()),
    "zero": lambda rng, shape: 0 * rng.random(shape),
    "denormal": lambda rng, shape: rng.standard_normal(shape) * 1e-40,
    "large": lambda rng, shape: rng.standard_normal(shape) * 1e4,
}


def errors(name, rows, importance=None, **options):
    """Return the squared error of each row, weighted by the importance of the columns."""
    codec = CODECS[name]
    back = codec.dequantize(codec.quantize(rows, importance, **options), rows.shape[1])
    assert np.isfinite(back).all()
    missed = (back.astype(np.float64) - rows) ** 2
    return (missed * (1 if importance is None else importance)).sum(axis=1)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_error_on_normal_weights_falls(name, rng):
    rows = rng.standard_normal((64, 1024)).astype(np.float32)
    ref, best = errors(name, rows).sum(), errors(name, rows, quality="best").sum()
    assert best < REMAINING_ERROR[name] * ref
    assert errors(name, rows, quality="ref").sum() == ref


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_no_row_has_more_error_than_with_ggml(name, draw, rng):
    rows = DISTRIBUTIONS[draw](rng, (16, 256)).astype(np.float32)
    ref, best = errors(name, rows), errors(name, rows, quality="best")
    slack = 1e-5 * ref + 1e-12 * (rows.astype(np.float64) ** 2).sum(axis=1)
    assert (best <= ref + slack).all()


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_importance_says_which_error_counts(name, rng):
    rows = rng.standard_normal((32, 512)).astype(np.float32)
    importance = np.exp(2 * rng.standard_normal(512)).astype(np.float32)
    guided = errors(name, rows, importance, quality="best").sum()
    assert guided < errors(name, rows, importance).sum()
    codec = CODECS[name]
    blind = codec.dequantize(codec.quantize(rows, quality="best"), 512)
    assert guided < (((blind - rows) ** 2) * importance).sum()


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q5_1"])
def test_the_error_of_padding_does_not_count(name, rng):
    """The zeros at the end of the last group of 32 are far from its weights, which share a minimum.

    Types without a minimum represent them exactly, whatever the scale is.
    """
    padding = 24
    K = 2 * CODECS[name].dtype.block_elements - padding
    rows = -0.5 - rng.random((64, K)).astype(np.float32)
    whole = np.pad(rows, ((0, 0), (0, padding)))
    codec = CODECS[name]
    as_values = codec.dequantize(codec.quantize(whole, quality="best"), whole.shape[1])[:, :K]
    best = errors(name, rows, quality="best").sum()
    assert best < ((as_values.astype(np.float64) - rows) ** 2).sum()
    assert best < errors(name, rows).sum()


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_rows_are_independent_and_the_size_is_that_of_the_type(name, rng):
    rows = rng.standard_normal((70, 256)).astype(np.float32)
    codec = CODECS[name]
    together = codec.quantize(rows, quality="best")
    assert together.shape == (70, codec.row_bytes(256))
    some = codec.quantize(rows[31:42], quality="best")
    assert np.array_equal(together[31:42], some)


def test_scalars_have_nothing_to_search_and_other_qualities_are_refused(rng):
    rows = rng.standard_normal((2, 64)).astype(np.float32)
    for name in ("F32", "F16", "BF16"):
        codec = CODECS[name]
        assert np.array_equal(codec.quantize(rows, quality="best"), codec.quantize(rows))
    with pytest.raises(FormatError, match="quality"):
        CODECS["Q8_0"].quantize(rows, quality="good")
    with pytest.raises(FormatError, match="NaN"):
        CODECS["Q4_0"].quantize(np.full((1, 32), np.nan), quality="best")
