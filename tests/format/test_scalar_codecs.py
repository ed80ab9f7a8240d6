"""F16 and BF16: rounding, and what happens at the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_format.codecs import CODECS, bf16_to_f32, f16_overflow_count, f32_to_bf16


def test_f16_rounds_to_nearest_even():
    # 2048 and 2050 are neighbours in F16; the values lie exactly at, below and above their
    # midpoint.
    rows = np.array([[2049.0, 2051.0, 2048.999, 2049.001]], np.float32)
    back = CODECS["F16"].dequantize(CODECS["F16"].quantize(rows), 4)
    assert back.tolist() == [[2048.0, 2052.0, 2048.0, 2050.0]]


def test_f16_overflow_counts_what_becomes_infinity():
    values = np.array([65504, 65519.996, 65520, -65520, 1e30, np.inf, np.nan, 0], np.float32)
    with np.errstate(over="ignore"):
        infinite = np.isinf(values.astype(np.float16)) & np.isfinite(values)
    assert f16_overflow_count(values) == int(infinite.sum()) == 3
    assert f16_overflow_count(values[:2]) == 0


def test_bf16_equals_torch_on_every_kind_of_bit_pattern(rng):
    bits = rng.integers(0, 2**32, 100_000, np.uint32)
    bits[:1000] = bits[:1000] & 0xFFFF0000 | 0x8000  # halves, which chance hardly gives
    values = bits.view(np.float32)
    ours = f32_to_bf16(values)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    finite = ~np.isnan(values)
    assert np.array_equal(ours[finite], theirs[finite])
    assert np.isnan(bf16_to_f32(ours[~finite])).all()


def test_every_bf16_value_survives_a_round_trip():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bf16_to_f32(bits)
    numbers = ~np.isnan(values)
    assert np.array_equal(f32_to_bf16(values)[numbers], bits[numbers])


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_infinity_and_nan_pass_through_scalar_types(name):
    rows = np.array([[np.inf, -np.inf, np.nan, -0.0]], np.float32)
    back = CODECS[name].dequantize(CODECS[name].quantize(rows), 4)
    assert np.array_equal(back, rows, equal_nan=True)
    assert np.signbit(back[0, 3])


def test_f32_is_exact(rng):
    rows = rng.standard_normal((5, 7)).astype(np.float32)
    stored = CODECS["F32"].quantize(rows)
    assert stored.tobytes() == rows.astype("<f4").tobytes()
    assert np.array_equal(CODECS["F32"].dequantize(stored, 7), rows)
