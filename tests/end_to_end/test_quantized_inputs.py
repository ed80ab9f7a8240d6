"""Checkpoints quantized by other programs give the package of their dequantized weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_format.codecs import CODECS
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_checkpoint, make_model, save_checkpoint, write_tokenizer
from support.commands import rdrr
from support.comparison import relative_error, scored, transformers_logits
from support.quantized_checkpoints import awq, fp8, gptq, packed, write_quantized
from support.tiny_models import MORE_MODELS, TINY_MODELS, VOCAB

CPU = 1e-4
MODELS = {tiny.model_type: tiny for tiny in (*TINY_MODELS, *MORE_MODELS)}

SCHEMES = {
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8(128, 128), "fp8"),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
        gptq(4, 128, act_order=True),
        "GPTQ 4-bit",
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64}, awq(), "AWQ 4-bit"),
    "pack-quantized": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}},
        },
        packed(),
        "int4",
    ),
    "float-quantized": (
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        fp8(1, 0, "weight_scale", "bfloat16"),
        "fp8",
    ),
}


def quantized(plain, scheme, rng):
    """Copy a checkpoint with quantized projections; return it with their dequantized weights."""
    from safetensors.torch import load_file

    settings, quantize, _ = SCHEMES[scheme]
    tensors, meanings = {}, {}
    for name, value in load_file(plain / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value
            continue
        parts, meanings[name] = quantize(value.numpy(), rng)
        tensors |= {
            f"{name.removesuffix('.weight')}.{part}": part_values
            for part, part_values in parts.items()
        }
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    folder = write_quantized(plain.with_name(scheme), config, tensors, settings)
    write_tokenizer(folder)
    return folder, meanings


def dequantized(plain, meanings):
    """Copy the checkpoint with some weights replaced by name."""
    from safetensors.torch import load_file

    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(plain / "model.safetensors") | meanings
    folder = write_quantized(plain.with_name("dequantized"), config, tensors, None)
    write_tokenizer(folder)
    return folder


def payload(folder):
    package = open_package(folder)
    return {name: bytes(package.read(name)) for name in package.manifest.tensors}


@pytest.mark.parametrize(
    ("model_type", "scheme"),
    [*(("qwen2", scheme) for scheme in SCHEMES), ("phi3", "gptq"), ("qwen3_moe", "fp8")],
)
def test_a_quantized_checkpoint_converts_as_its_dequantized_weights_do(
    model_type, scheme, tmp_path, rng
):
    """Phi-3's stacked tensors are split when they are decoded; experts are ordinary modules."""
    sizes = {"num_hidden_layers": 2 if "moe" in model_type else 1, "intermediate_size": 256}
    plain = make_checkpoint(MODELS[model_type], tmp_path / "plain", rng, dtype="float32", **sizes)
    checkpoint, meanings = quantized(plain, scheme, rng)
    assert any("experts" in name for name in meanings) is ("moe" in model_type)
    options = {"transpose_weights": True, "fuse_gate_up": "moe" not in model_type}
    convert(dequantized(plain, meanings), tmp_path / "expected", **options)
    convert(plain, tmp_path / "unquantized", **options)
    result = convert(checkpoint, tmp_path / "out", **options)
    assert payload(tmp_path / "out") == payload(tmp_path / "expected")
    assert payload(tmp_path / "out") != payload(tmp_path / "unquantized")
    named = f"{SCHEMES[scheme][2]} in the source"
    notes = f"{named}, dequantized and quantized again as Q4_K"
    assert any(notes in note for note in result.notes), result.notes
    reasons = [
        tensor.why
        for tensor in result.tensors
        if "self_attn" in tensor.name and "proj" in tensor.name
    ]
    assert all(why.endswith(f"; {named}") for why in reasons if not why.startswith("bias"))


@pytest.mark.parametrize(
    ("fused", "bits"), [pytest.param(False, 4, marks=pytest.mark.thorough), (True, 4), (False, 8)]
)
def test_symmetric_integers_are_kept_with_every_value_unless_the_package_is_transposed(
    fused, bits, tmp_path, rng, monkeypatch
):
    """Checkpoints that were trained for 4 bits, such as Kimi K2's, lose nothing."""
    settings = {"quant_method": "gptq", "bits": bits, "group_size": 64}
    monkeypatch.setitem(SCHEMES, "kept", (settings, gptq(bits, 64, symmetric=True), ""))
    plain = make_checkpoint(
        MODELS["qwen2"], tmp_path / "plain", rng, dtype="float32", num_hidden_layers=1
    )
    checkpoint, meanings = quantized(plain, "kept", rng)
    convert(checkpoint, tmp_path / "out", fuse_gate_up=fused)
    package = open_package(tmp_path / "out")
    dtype = {4: "Q4_0", 8: "Q8_0"}[bits]
    kinds = {name: tensor.dtype for name, tensor in package.manifest.tensors.items()}
    kept = [name for name, kind in kinds.items() if kind == dtype]
    assert len(kept) == (6 if fused else 7)
    values = np.concatenate([decoded(package, name).reshape(-1) for name in sorted(kept)])
    expected = np.concatenate([meaning.reshape(-1) for meaning in meanings.values()])
    np.testing.assert_array_equal(np.sort(values), np.sort(expected))
    convert(checkpoint, tmp_path / "columns", transpose_weights=True, fuse_gate_up=fused)
    columns = open_package(tmp_path / "columns").manifest.tensors
    assert dtype not in {tensor.dtype for tensor in columns.values()}


def decoded(package, name):
    tensor = package.manifest.tensors[name]
    rows, columns = tensor.shape
    codec = CODECS[tensor.dtype]
    blocks = np.frombuffer(bytes(package.read(name)), np.uint8).reshape(rows, -1)
    return codec.dequantize(blocks, columns)


# The test above shows the values of the other schemes.
@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(scheme, marks=() if scheme == "gptq" else pytest.mark.thorough)
        for scheme in SCHEMES
    ],
)
def test_logits_are_those_of_transformers_with_the_dequantized_weights(scheme, tmp_path, rng):
    import torch

    model = make_model(MODELS["qwen2"], rng, num_hidden_layers=2)
    ids = rng.integers(3, VOCAB, 40).tolist()
    unquantized = transformers_logits(model, ids)
    plain = save_checkpoint(model, tmp_path / "plain", dtype="float32")
    checkpoint, meanings = quantized(plain, scheme, rng)
    state = {name: torch.from_numpy(meaning) for name, meaning in meanings.items()}
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    reference = transformers_logits(model, ids)
    assert relative_error(unquantized, reference) > 100 * CPU
    convert(checkpoint, tmp_path / "out", quantize="f32")
    ours = scored(CpuBackend(open_package(tmp_path / "out"), context=64), ids)
    assert relative_error(ours, reference) <= CPU


def test_an_unknown_quantization_method_is_one_line_and_leaves_nothing(checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "hqq"}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = rdrr("convert", checkpoint, tmp_path / "out")
    assert done.code == 1
    assert "quantized by an unknown method" in done.err
    assert "found hqq" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_code_that_decodes_to_nan_is_refused_with_the_tensors_name(tmp_path, rng):
    plain = make_checkpoint(
        MODELS["qwen2"], tmp_path / "plain", rng, dtype="float32", num_hidden_layers=1
    )
    checkpoint, _ = quantized(plain, "fp8", rng)
    path = checkpoint / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = "model.layers.0.mlp.up_proj.weight"
    content[8 + length + header[name]["data_offsets"][0]] = 0x7F
    path.write_bytes(content)
    done = rdrr("convert", checkpoint, tmp_path / "out")
    assert done.code == 1
    assert "not finite" in done.err
    assert name in done.err
