"""Symmetric integers become blocks with the same values; others are decoded when they are read."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.checkpoint.lazy_rows import LazyRows
from rdrr_converter.checkpoint.source import SourceTensor, same_values
from rdrr_converter.sources import open_source
from support.quantized_checkpoints import Parts, Quantize, awq, gptq, packed, write_quantized

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": False}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}},
}
KEPT = {
    "gptq": (GPTQ, gptq(symmetric=True), "Q4_0"),
    "gptq-8": (GPTQ, gptq(8, 32, symmetric=True), "Q8_0"),
    "gptq-one-group": ({**GPTQ, "group_size": -1}, gptq(4, 256, symmetric=True), "Q4_0"),
    "gptq-version-2": (
        {**GPTQ, "checkpoint_format": "gptq_v2"},
        gptq(version=2, symmetric=True),
        "Q4_0",
    ),
    "awq": (AWQ, awq(symmetric=True), "Q4_0"),
    "compressed": (PACKED, packed(symmetric=True), "Q4_0"),
}
DECODED = {
    "zero points": (GPTQ, gptq()),
    "any order of columns": (GPTQ, gptq(act_order=True, symmetric=True)),
    "groups of 48": ({**GPTQ, "group_size": 48}, gptq(4, 48, symmetric=True)),
    "two bits": ({**GPTQ, "bits": 2}, gptq(2, symmetric=True)),
}


def module(folder: Path, parts: Parts, settings: dict[str, object]) -> SourceTensor:
    tensors = {f"m.{part}": value for part, value in parts.items()}
    return open_source(write_quantized(folder, {}, tensors, settings)).tensors["m.weight"]


def quantized(quantize: Quantize, rng: np.random.Generator) -> tuple[Parts, np.ndarray]:
    weight = rng.standard_normal((96, 256), np.float32)
    weight[0, :64] = 1  # a group of equal values
    return quantize(weight, rng)


@pytest.mark.parametrize("case", KEPT)
def test_blocks_hold_the_values_of_symmetric_integers(
    case: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    settings, quantize, dtype = KEPT[case]
    parts, meaning = quantized(quantize, rng)
    tensor = module(tmp_path, parts, settings)
    assert (tensor.dtype, tensor.is_block) == (dtype, True)
    rows, columns = slice(5, 61), slice(70, 133)
    np.testing.assert_array_equal(tensor.read(), meaning)
    np.testing.assert_array_equal(tensor.read(rows, columns), meaning[rows, columns])
    np.testing.assert_array_equal(tensor.read_transposed(columns), meaning[:, columns].T)
    assert same_values(tensor, pickle.loads(pickle.dumps(tensor)))


@pytest.mark.parametrize("case", DECODED)
def test_what_no_block_holds_is_decoded_when_it_is_read(
    case: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    settings, quantize = DECODED[case]
    parts, meaning = quantized(quantize, rng)
    tensor = module(tmp_path, parts, settings)
    assert tensor.decode is not None
    np.testing.assert_array_equal(tensor.read(), meaning)


def test_scales_that_f16_does_not_hold_and_a_scale_of_zero(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    parts, meaning = quantized(packed(symmetric=True), rng)
    for name, factor in (("too large", 2.0**20), ("too precise", 1 + 2.0**-20), ("a half", 0.5)):
        scales = parts["weight_scale"].astype(np.float32) * np.float32(factor)
        tensor = module(tmp_path / name, {**parts, "weight_scale": scales}, PACKED)
        assert tensor.is_block == (name == "a half")
        expected = np.multiply(meaning, np.float32(factor), dtype=np.float32)
        np.testing.assert_allclose(tensor.read(), expected, rtol=1e-6)
    scales = parts["weight_scale"].copy()
    scales[3] = 0
    tensor = module(tmp_path / "zero", {**parts, "weight_scale": scales}, PACKED)
    assert tensor.is_block
    np.testing.assert_array_equal(tensor.read(slice(3, 5)), [0 * meaning[3], meaning[4]])


def test_only_rows_that_are_taken_are_computed() -> None:
    computed: list[slice] = []

    def compute(rows: slice) -> np.ndarray:
        computed.append(rows)
        return np.arange(40, dtype=np.uint8).reshape(10, 4)[rows]

    lazy = LazyRows(compute)
    part = lazy[:, 1:3]
    assert computed == []
    np.testing.assert_array_equal(part[4:6], [[17, 18], [21, 22]])
    np.testing.assert_array_equal(lazy[np.array([7, 8, 2, 3])][1:4][:, :1], [[32], [8], [12]])
    assert computed == [slice(4, 6), slice(8, 9), slice(2, 4)]
    assert lazy[0:0].shape == lazy[np.array([1])][1:].shape == (0, 4)
