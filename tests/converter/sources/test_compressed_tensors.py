"""Weights compressed with the package that defines the format, and compared with its decoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.quantized_checkpoints import write_quantized

N, K, GROUP = 100, 256, 64

CASES = {
    f"{form}-{bits}-{strategy}-{'symmetric' if symmetric else 'asymmetric'}": (
        form,
        {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric},
    )
    for form, kind, widths, strategies, symmetries in (
        ("pack-quantized", "int", (2, 4, 8), ("group", "channel"), (True, False)),
        ("pack-quantized", "int", (4,), ("tensor",), (True,)),
        ("int-quantized", "int", (8,), ("channel", "tensor"), (True, False)),
        ("float-quantized", "float", (8,), ("channel", "tensor", "block"), (True,)),
        ("naive-quantized", "float", (8,), ("group",), (True,)),
    )
    for bits in widths
    for strategy in strategies
    for symmetric in symmetries
}
BLOCK = [32, 48]


def scheme_of(weights):
    extra = {"group": {"group_size": GROUP}, "block": {"block_structure": BLOCK}}
    args = QuantizationArgs(**weights, **extra.get(weights["strategy"], {}))
    return QuantizationScheme(targets=["Linear"], weights=args)


def compressed(case, rng):
    """Return the stored parts, the values they represent, and the settings."""
    form, weights = CASES[case]
    scheme = scheme_of(weights)
    rows, columns = {
        "group": (1, GROUP),
        "channel": (1, K),
        "tensor": (N, K),
        "block": BLOCK,
    }[weights["strategy"]]
    shape = (-(-N // rows), -(-K // columns))
    weight = torch.from_numpy(rng.standard_normal((N, K), np.float32))
    top = 448 if weights["type"] == "float" else 1 << (weights["num_bits"] - 1)
    # float32, so that the package's own arithmetic rounds no more than this project's.
    scale = torch.from_numpy(rng.uniform(2 / top, 4 / top, shape).astype(np.float32))
    state = {
        "weight": weight,
        "weight_scale": scale if weights["strategy"] != "tensor" else scale[0],
    }
    if not weights["symmetric"]:
        zero = torch.from_numpy(rng.integers(1 - top // 2, top // 2, shape).astype(np.int8))
        state["weight_zero_point"] = zero if weights["strategy"] != "tensor" else zero[0]
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    meaning = compressor.decompress(stored, scheme)["weight"].float().numpy()
    settings = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
    }
    return stored, meaning, settings


def opened(folder, parts, settings):
    tensors = {f"m.{part}": value for part, value in parts.items()}
    return open_source(write_quantized(folder, {}, tensors, settings)).tensors


@pytest.mark.parametrize("case", CASES)
def test_values_equal_those_that_the_package_decompresses(case, tmp_path, rng):
    parts, meaning, settings = compressed(case, rng)
    assert len(np.unique(meaning)) > 3
    tensors = opened(tmp_path, parts, settings)
    assert list(tensors) == ["m.weight"]
    tensor = tensors["m.weight"]
    np.testing.assert_array_equal(tensor.read(), meaning)
    rows, columns = (slice(*sorted(rng.integers(0, size, 2))) for size in meaning.shape)
    np.testing.assert_array_equal(tensor.read(rows, columns), meaning[rows, columns])
    np.testing.assert_array_equal(tensor.read_transposed(columns), meaning[:, columns].T)
    assert measure(tensor).largest == np.abs(meaning).max()


def test_columns_in_any_order_are_scaled_by_their_group(tmp_path, rng):
    """The package no longer reads lists of groups, so their definition is the reference here."""
    parts, meaning, settings = compressed("pack-quantized-4-group-symmetric", rng)
    integers = meaning / np.repeat(parts["weight_scale"].numpy(), GROUP, 1)
    index = rng.permutation(np.arange(K) // GROUP).astype(np.int32)
    expected = np.rint(integers) * parts["weight_scale"].numpy()[:, index]
    tensors = opened(tmp_path / "listed", {**parts, "weight_g_idx": index}, settings)
    np.testing.assert_array_equal(tensors["m.weight"].read(), expected.astype(np.float32))
    # In this format, -1 in all entries means that there is no list.
    none = {**parts, "weight_g_idx": np.full(K, -1, np.int32)}
    tensors = opened(tmp_path / "none", none, settings)
    np.testing.assert_array_equal(tensors["m.weight"].read(), meaning)


def test_zero_points_that_are_not_packed_are_read_as_older_versions_wrote_them(tmp_path, rng):
    parts, meaning, settings = compressed("pack-quantized-4-group-asymmetric", rng)
    packed = parts["weight_zero_point"].numpy().view(np.uint32)
    nibbles = [(packed >> shift) & 15 for shift in range(0, 32, 4)]
    zeros = np.stack(nibbles, 1).reshape(-1, K // GROUP)[:N].astype(np.int8) - 8
    tensors = opened(tmp_path, {**parts, "weight_zero_point": zeros}, settings)
    np.testing.assert_array_equal(tensors["m.weight"].read(), meaning)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_shape": None}, "missing"),
        ({"weight_shape": np.array([N, K + 8])}, "weight_packed"),
        ({"weight_shape": np.array([N + 1, K])}, "weight_shape"),
        ({"weight_scale": np.ones((N - 1, 4), np.float32)}, "weight_scale"),
        ({"weight_scale": np.ones((N, 5), np.float32)}, "weight_scale"),
        ({"weight_zero_point": np.zeros((3, 3), np.int32)}, "weight_zero_point"),
    ],
)
def test_parts_that_contradict_each_other_are_refused_by_name(change, words, tmp_path, rng):
    parts, _, settings = compressed("pack-quantized-4-group-asymmetric", rng)
    opened(tmp_path / "good", parts, settings)
    changed = {part: value for part, value in {**parts, **change}.items() if value is not None}
    with pytest.raises(SourceError, match=words):
        opened(tmp_path / "bad", changed, settings)


def test_a_width_whose_packing_changed_between_versions_is_refused(tmp_path, rng):
    parts, _, settings = compressed("pack-quantized-4-group-symmetric", rng)
    settings["config_groups"]["group_0"]["weights"]["num_bits"] = 3
    with pytest.raises(SourceError, match="num_bits 3"):
        opened(tmp_path, parts, settings)
