"""Weights that other programs quantized are read with the values that the numbers represent."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
import torch
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.checkpoint.source import same_values
from rdrr_converter.sources import open_source
from rdrr_converter.sources.quantized._bits import unpack, word_span
from rdrr_converter.sources.quantized._scales import float_table
from rdrr_format.errors import SourceError
from safetensors.torch import save_file
from support.quantized_checkpoints import awq, fp8, gptq, pack, packed, write_quantized

N, K = 96, 256
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
V2 = {**GPTQ, "checkpoint_format": "gptq_v2"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [64, 48]}
PLAIN = {"quant_method": "fp8"}

CASES = {
    "gptq": (GPTQ, gptq()),
    "gptq-act-order": ({**GPTQ, "desc_act": True}, gptq(act_order=True)),
    "gptq-v2": (V2, gptq(version=2)),
    "gptq-v2-by-format": ({**GPTQ, "format": "gptq_v2"}, gptq(version=2)),
    "gptq-8": ({**GPTQ, "bits": 8}, gptq(8)),
    "gptq-3": ({**GPTQ, "bits": 3}, gptq(3)),
    "gptq-2-v2": ({**V2, "bits": 2}, gptq(2, version=2)),
    "gptq-one-group": ({**GPTQ, "group_size": -1}, gptq(4, K, listed=False)),
    "gptq-uneven-groups": ({**GPTQ, "group_size": 96}, gptq(4, 96, listed=False)),
    "gptq-unlisted": (GPTQ, gptq(listed=False)),
    "gptq-module-of-its-own": (GPTQ, gptq(8, 32, act_order=True)),
    "gptq-of-gptqmodel": ({**GPTQ, "meta": {"quantizer": ["gptqmodel:2.0"]}}, gptq(least=1)),
    "awq": (AWQ, awq()),
    "awq-old-words": ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, awq()),
    "awq-symmetric": ({**AWQ, "zero_point": False}, awq(symmetric=True)),
    "fp8-blocks": (FP8, fp8(64, 48)),
    "fp8-blocks-of-128": ({**FP8, "weight_block_size": [128, 128]}, fp8(128, 128)),
    "fp8-powers-of-two": (FP8, fp8(64, 48, scales="float8_e8m0fnu")),
    "fp8-tensor": (PLAIN, fp8(0, 0, "weight_scale", "bfloat16")),
    "fp8-tensor-inverse": (PLAIN, fp8(0, 0)),
    "fp8-rows": ({"quant_method": "fbgemm_fp8"}, fp8(1, 0, "weight_scale")),
}


def opened(folder, parts, settings, **options):
    tensors = {f"m.{part}": value for part, value in parts.items()}
    return open_source(write_quantized(folder, {}, tensors, settings, **options))


def weights(rng, shape=(N, K)):
    return rng.standard_normal(shape, np.float32)


def check_reading(tensor, meaning, rng):
    """Check that all ways to read a tensor give parts of the same matrix."""
    assert tensor.shape == meaning.shape
    np.testing.assert_array_equal(tensor.read(), meaning)
    rows, columns = (slice(*sorted(rng.integers(0, size, 2))) for size in meaning.shape)
    np.testing.assert_array_equal(tensor.read(rows, columns), meaning[rows, columns])
    np.testing.assert_array_equal(tensor.read(rows), meaning[rows])
    np.testing.assert_array_equal(tensor.read_transposed(columns), meaning[:, columns].T)
    assert measure(tensor).largest == np.abs(meaning).max()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pytorch"])
def test_unpacked_values_equal_those_that_were_packed(case, pickled, tmp_path, rng):
    settings, quantize = CASES[case]
    parts, meaning = quantize(weights(rng), rng)
    source = opened(tmp_path, parts, settings, pickled=pickled)
    assert list(source.tensors) == ["m.weight"]
    tensor = source.tensors["m.weight"]
    assert tensor.is_quantized
    assert tensor.is_block == (case == "awq-symmetric")
    check_reading(tensor, meaning, rng)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_any_span_of_values_can_be_unpacked_alone(bits, rng):
    values = rng.integers(0, 1 << bits, (3, 160))
    words = pack(values, bits)
    for _ in range(20):
        begin, end = sorted(rng.integers(0, 161, 2))
        span, start = word_span(int(begin), int(end), bits)
        part = unpack(words[:, span], bits)[:, begin - start : end - start]
        np.testing.assert_array_equal(part, values[:, begin:end])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("F8_E4M3", torch.float8_e4m3fn),
        ("F8_E5M2", torch.float8_e5m2),
        ("F8_E8M0", torch.float8_e8m0fnu),
    ],
)
def test_codes_of_8_bit_floats_have_the_values_that_torch_gives_them(name, dtype):
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    np.testing.assert_array_equal(float_table(name), codes.float().numpy())


def test_borrowed_zero_points_are_corrected_for_gptqmodel_only(tmp_path, rng):
    """GPTQModel subtracts 1 from whole words; other programs wrap around within a value."""
    parts, meaning = gptq(version=2)(weights(rng), rng)
    parts["qzeros"] = parts["qzeros"].copy()
    parts["qzeros"][0, 0] &= ~0xF  # the first zero point is 0
    one_less = {**parts, "qzeros": (parts["qzeros"].view(np.uint32) - 0x11111111).view(np.int32)}
    ours = {**GPTQ, "meta": {"quantizer": ["gptqmodel:2.0"]}}
    expected = opened(tmp_path / "v2", parts, V2).tensors["m.weight"]
    lent = opened(tmp_path / "lent", one_less, ours).tensors["m.weight"]
    assert same_values(expected, lent)
    wrapped = opened(tmp_path / "wrapped", one_less, GPTQ).tensors["m.weight"]
    assert not same_values(expected, wrapped)
    np.testing.assert_array_equal(wrapped.read(slice(2, N)), meaning[2:])
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    codes = (parts["qzeros"].view(np.uint32)[..., None] >> shifts) - 1 & 15  # 0 becomes 15
    within = (codes << shifts).sum(axis=-1, dtype=np.uint32).view(np.int32)
    within = opened(tmp_path / "within", {**parts, "qzeros": within}, GPTQ).tensors["m.weight"]
    assert same_values(expected, within)


@pytest.mark.parametrize("case", ["gptq-act-order", "awq", "fp8-blocks"])
def test_a_tensor_can_be_sent_to_another_process(case, tmp_path, rng):
    settings, quantize = CASES[case]
    parts, meaning = quantize(weights(rng), rng)
    tensor = opened(tmp_path, parts, settings).tensors["m.weight"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tensor)).read(), meaning)


def test_gptq_settings_in_the_older_file_are_read(tmp_path, rng):
    parts, meaning = gptq()(weights(rng), rng)
    tensors = {f"m.{part}": value for part, value in parts.items()}
    write_quantized(tmp_path, {}, tensors, None)
    assert "m.qweight" in open_source(tmp_path).tensors
    (tmp_path / "quantize_config.json").write_text(
        json.dumps({"bits": 4, "group_size": 64}), encoding="utf-8"
    )
    np.testing.assert_array_equal(open_source(tmp_path).tensors["m.weight"].read(), meaning)


def test_other_tensors_are_unchanged_and_notes_mention_scales_of_activations(tmp_path, rng):
    parts, _ = fp8(64, 48)(weights(rng), rng)
    extra = {"bias": weights(rng, (N,)), "input_scale": weights(rng, (1,))}
    source = opened(tmp_path, {**parts, **extra}, FP8)
    assert set(source.tensors) == {"m.weight", "m.bias"}
    np.testing.assert_array_equal(source.tensors["m.bias"].read()[0], extra["bias"])
    assert source.notes == (
        "1 scales of activations and caches are omitted, because those are not quantized here",
    )


@pytest.mark.parametrize(("size", "kept"), [(0, False), (1e-7, True)])
def test_a_bias_of_zeros_is_omitted_if_gptq_stores_one_for_every_module(size, kept, tmp_path, rng):
    parts, _ = gptq()(weights(rng), rng)
    bias = np.zeros(N, np.float16)
    bias[-1] = size
    source = opened(tmp_path, {**parts, "bias": bias}, GPTQ)
    assert ("m.bias" in source.tensors) is kept
    assert bool(source.notes) is not kept


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "found bitsandbytes"),
        ({"load_in_4bit": True}, "found none"),
        ({"quant_method": ["gptq"]}, "unknown method"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "found marlin"),
        ({**GPTQ, "is_marlin_format": True}, "found marlin"),
        ({**GPTQ, "format": "marlin"}, "found marlin"),
        ({**V2, "format": "gptq"}, "found gptq_v2 and gptq"),
        ({**AWQ, "version": "gemv"}, "found version gemv"),
        ({**AWQ, "bits": 8}, "of 8 bits"),
        ({**FP8, "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "found nvfp4"),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "marlin-24"}},
            "found marlin-24",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "transform_config": {"config_groups": {"R1": {}}},
            },
            "rotated.*found R1",
        ),
    ],
)
def test_unsupported_settings_are_refused_by_name(settings, words, tmp_path, rng):
    parts = {"weight": weights(rng)}
    assert opened(tmp_path / "good", parts, GPTQ).tensors["m.weight"].dtype == "F32"
    with pytest.raises(SourceError, match=words):
        opened(tmp_path / "bad", parts, settings)


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        ("gptq", {"scales": None}, "m.scales.*part.*missing|part.*missing.*m.scales"),
        ("gptq", {"qzeros": np.zeros((4, 13), np.int32)}, "m.qzeros.*does not fit"),
        ("gptq", {"qweight": np.zeros((32, 95), np.int32)}, "m.qweight.*does not fit"),
        ("gptq", {"g_idx": np.full(K, 4, np.int32)}, "m.g_idx.*0 to 3"),
        ("gptq", {"g_idx": np.zeros(7, np.int32)}, "m.g_idx.*does not fit"),
        ("awq", {"qzeros": None}, "m.qzeros"),
        ("awq", {"qweight": np.zeros((K, 11), np.int32)}, "m.qweight.*does not fit"),
        ("awq", {"scales": np.zeros((7, N), np.float16)}, "m.qzeros.*does not fit"),
        ("fp8-blocks", {"weight_scale_inv": np.ones((3, 3), np.float32)}, "does not fit"),
        ("fp8-blocks", {"weight": np.ones((N, K), np.float32)}, "m.weight.*F8_E4M3"),
        ("fp8-blocks", {"weight_scale_inv": np.ones((2, 6), np.int32)}, "weight_scale_inv"),
    ],
)
def test_parts_that_contradict_each_other_are_refused_by_name(case, change, words, tmp_path, rng):
    settings, quantize = CASES[case]
    parts, _ = quantize(weights(rng), rng)
    opened(tmp_path / "good", parts, settings).tensors["m.weight"].read()
    changed = {part: value for part, value in {**parts, **change}.items() if value is not None}
    with pytest.raises(SourceError) as caught:
        opened(tmp_path / "bad", changed, settings).tensors["m.weight"].read()
    text = str(caught.value)
    assert re.search(words, text), text


SHAPES = ((), (1,), (0, 4), (K, 0), (N,), (K,), (N, K), (K, N), (N, 4), (4, N), (12, 4), (2, 3, 4))
DTYPES = (np.float32, np.float16, np.int32, np.int8, np.int64, np.uint8, np.bool_, np.float64)


@pytest.mark.parametrize("case", CASES)
def test_any_replacement_of_a_part_is_read_or_refused(case, tmp_path, rng):
    settings, quantize = CASES[case]
    parts, _ = quantize(weights(rng), rng)
    for trial in range(12):
        part = rng.choice(sorted(parts))
        shape = SHAPES[rng.integers(len(SHAPES))]
        value = rng.integers(0, 2, shape).astype(rng.choice(DTYPES))
        try:
            source = opened(tmp_path / str(trial), {**parts, part: np.array(value)}, settings)
            measure(source.tensors["m.weight"])
        except SourceError as error:
            assert "m." in str(error)  # noqa: PT017


GROUP = {"num_bits": [4], "group_size": "64", "block_structure": 3}
JSON_VALUES = (None, True, 0, -1, 3, 2.5, "gemm", "x", [], [1, 2], [0, 64], ["a"], {}, {"a": [1]},
               {"group_0": {"weights": GROUP}}, {"group_0": {"weights": 3, "format": ["a"]}},
               {"config_groups": 3})  # fmt: skip
KEYS = ("bits", "w_bit", "group_size", "checkpoint_format", "is_marlin_format", "meta", "version",
        "zero_point", "weight_block_size", "format", "config_groups", "sparsity_config",
        "transform_config", "quant_method")  # fmt: skip
PACKED = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}}


@pytest.mark.parametrize("case", ["gptq", "awq", "fp8-blocks", "packed"])
def test_with_any_settings_a_checkpoint_is_read_or_refused(case, tmp_path, rng):
    settings, quantize = CASES.get(case, (PACKED, packed()))
    parts, _ = quantize(weights(rng), rng)
    folder = write_quantized(
        tmp_path, {}, {f"m.{part}": value for part, value in parts.items()}, settings
    )
    refused = 0
    for key in KEYS:
        for value in JSON_VALUES:
            config = {"quantization_config": {**settings, key: value}}
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
            try:
                for tensor in open_source(folder).tensors.values():
                    tensor.read(slice(0, 2))
            except SourceError:
                refused += 1
    assert 0 < refused < len(KEYS) * len(JSON_VALUES) or case == "packed"


def test_a_checkpoint_that_mlx_has_quantized_is_named_as_such(tmp_path):
    weight = {"weight": np.zeros((8, 8), np.int32), "scales": np.ones((8, 1), np.float32)}
    both = {**weight, "biases": np.zeros((8, 1), np.float32)}
    for number, (parts, config) in enumerate(
        [(both, {}), (weight, {"quantization": {"group_size": 64, "bits": 4}})]
    ):
        tensors = {f"m.{part}": torch.from_numpy(value) for part, value in parts.items()}
        save_file(tensors, folder_with(tmp_path / str(number), config) / "model.safetensors")
        with pytest.raises(SourceError, match=r"quantized by MLX.*the original, unquantized model"):
            open_source(tmp_path / str(number))
    plain = folder_with(tmp_path / "plain", {})
    save_file({"m.weight": torch.zeros(8, 8)}, plain / "model.safetensors")
    assert list(open_source(plain).tensors) == ["m.weight"]


def folder_with(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
