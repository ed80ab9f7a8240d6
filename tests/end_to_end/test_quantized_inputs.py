"""Checkpoints that other programs quantized: the package of their dequantized weights."""

from __future__ import annotations

import json

import pytest
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from rdrr_runtime.cpu import CpuBackend
from support.checkpoints import TINY_MODELS, VOCAB, make_model, save_checkpoint, write_tokenizer
from support.commands import rdrr
from support.comparison import relative_error, scored, transformers_logits
from support.quantized_checkpoints import awq, fp8, gptq, packed, write_quantized

CPU = 1e-4
QWEN = next(tiny for tiny in TINY_MODELS if tiny.model_type == "qwen2")

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


def quantized(model, folder, scheme, rng):
    """The model with quantized projections on disk, and with what they stand for in memory."""
    import torch

    settings, quantize, _ = SCHEMES[scheme]
    plain = save_checkpoint(model, folder / "plain", dtype="float32")
    config = json.loads((plain / "config.json").read_text())
    tensors = {}
    for name, value in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value
            continue
        parts, meaning = quantize(value.numpy(), rng)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": one for part, one in parts.items()}
        value.copy_(torch.from_numpy(meaning))
    save_checkpoint(model, folder / "plain", dtype="float32")
    checkpoint = write_quantized(folder / scheme, config, tensors, settings)
    write_tokenizer(checkpoint)
    return plain, checkpoint


def payload(folder):
    package = open_package(folder)
    return {name: bytes(package.read(name)) for name in package.manifest.tensors}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantized_checkpoint_converts_as_its_dequantized_weights_do(scheme, tmp_path, rng):
    model = make_model(QWEN, rng, num_hidden_layers=1)
    before = [value.clone() for value in model.state_dict().values()]
    plain, checkpoint = quantized(model, tmp_path, scheme, rng)
    assert any((a != b).any() for a, b in zip(before, model.state_dict().values(), strict=True))
    options = {"transpose_weights": True, "fuse_gate_up": True}
    convert(plain, tmp_path / "expected", **options)
    result = convert(checkpoint, tmp_path / "out", **options)
    assert payload(tmp_path / "out") == payload(tmp_path / "expected")
    named = SCHEMES[scheme][2]
    # Gate and up are stored as one of the tensors.
    notes = f"{named} in the source, dequantized and quantized again as Q4_K"
    assert any(notes in note for note in result.notes), result.notes
    gate_up = next(one for one in result.tensors if "gate_up" in one.name)
    assert gate_up.why.endswith(f"; {named} in the source")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_are_those_of_transformers_with_the_dequantized_weights(scheme, tmp_path, rng):
    model = make_model(QWEN, rng, num_hidden_layers=2)
    ids = rng.integers(3, VOCAB, 40).tolist()
    unquantized = transformers_logits(model, ids)
    _, checkpoint = quantized(model, tmp_path, scheme, rng)
    reference = transformers_logits(model, ids)
    assert relative_error(unquantized, reference) > 100 * CPU
    convert(checkpoint, tmp_path / "out", quantize="f32")
    ours = scored(CpuBackend(open_package(tmp_path / "out"), context=64), ids)
    assert relative_error(ours, reference) <= CPU


def test_an_unknown_way_to_quantize_is_one_line_and_leaves_nothing(checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "hqq"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    done = rdrr("convert", checkpoint, tmp_path / "out")
    assert done.code == 1
    assert "quantized in a way that cannot be read" in done.err
    assert "found hqq" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_code_that_is_no_number_is_refused_with_the_tensors_name(tmp_path, rng):
    model = make_model(QWEN, rng, num_hidden_layers=1)
    _, checkpoint = quantized(model, tmp_path, "fp8", rng)
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
