"""GGUF files of models with state spaces, as llama.cpp writes them, and files that rdrr writes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_format.errors import ConversionError
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.comparison import relative_error, transformers_logits
from support.gguf_comparison import (
    EXPONENTIALS,
    ROUNDED,
    assert_same_metadata,
    assert_same_packages,
    assert_same_tensors,
)
from support.gguf_files import decoded_tensors
from support.gguf_state_spaces import LIKE_LLAMA_CPP, write_state_space_gguf
from support.tiny_models import STATE_SPACE_MODELS, covering

WITHOUT_FACTORS = [tiny for tiny in STATE_SPACE_MODELS if tiny.model_type != "falcon_h1"]
FALCON_H1 = [tiny for tiny in STATE_SPACE_MODELS if tiny.model_type == "falcon_h1"]
USUAL = ("mamba2-256", "nemotron_h-320", "granitemoehybrid-256", "falcon_h1-256")
IDS = [int(id_) for id_ in np.random.default_rng(0).integers(3, 300, 40)]


def saved(tiny, tmp_path, rng, **options):
    """Return the checkpoint of a model that llama.cpp can describe, and the model."""
    like = {**LIKE_LLAMA_CPP[tiny.model_type], **options}
    model = make_model(tiny, rng, **like)
    return save_checkpoint(model, tmp_path / "model", dtype="float32"), model


@pytest.mark.parametrize("tiny", covering(WITHOUT_FACTORS, USUAL))
def test_a_gguf_gives_the_package_of_the_checkpoint_and_is_written_alike(tmp_path, rng, tiny):
    checkpoint, _ = saved(tiny, tmp_path, rng)
    written = write_state_space_gguf(checkpoint, tmp_path / "m.gguf")
    convert(checkpoint, tmp_path / "theirs", quantize="f32")
    convert(written, tmp_path / "package", quantize="f32")
    assert_same_packages(tmp_path / "package", tmp_path / "theirs", ROUNDED)
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    assert_same_tensors(tmp_path / "out.gguf", written, EXPONENTIALS)
    assert_same_metadata(tmp_path / "out.gguf", written)


@pytest.mark.parametrize("tiny", covering(STATE_SPACE_MODELS, ["mamba2-256"]))
def test_a_model_read_from_a_gguf_computes_the_same(tmp_path, rng, tiny):
    checkpoint, model = saved(tiny, tmp_path, rng)
    written = write_state_space_gguf(checkpoint, tmp_path / "m.gguf")
    convert(written, tmp_path / "package", quantize="f32")
    with open_package(tmp_path / "package") as package:
        logits = CpuBackend(package, context=64).logits(IDS, 0, all_rows=True)
    assert relative_error(logits, transformers_logits(model, IDS)) < 1e-4


@pytest.mark.parametrize("tiny", covering(FALCON_H1, USUAL))
def test_the_factors_of_falcon_h1_are_written_into_the_weights(tmp_path, rng, tiny):
    checkpoint, model = saved(tiny, tmp_path, rng)
    convert(checkpoint, tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    written = write_state_space_gguf(checkpoint, tmp_path / "m.gguf")
    mine, other = (decoded_tensors(path) for path in (tmp_path / "out.gguf", written))
    # A factor on queries, keys and values goes to the keys and to the output of the attention.
    moved = [name for name in other if "attn_" in name and "norm" not in name]
    assert set(mine) == set(other)
    for name in set(other) - set(moved):
        np.testing.assert_allclose(mine[name], other[name], rtol=2e-7, atol=0, err_msg=name)
    assert_same_metadata(tmp_path / "out.gguf", written)
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    with open_package(tmp_path / "again") as package:
        logits = CpuBackend(package, context=64).logits(IDS, 0, all_rows=True)
    assert relative_error(logits, transformers_logits(model, IDS)) < 1e-4


def _falcon_package(tmp_path, rng, quantize, **options):
    checkpoint, _ = saved(FALCON_H1[0], tmp_path, rng, **options)
    convert(checkpoint, tmp_path / "package", quantize=quantize)
    return tmp_path / "package"


def test_factors_multiply_the_scales_of_blocks_and_keep_their_codes(tmp_path, rng):
    package = _falcon_package(tmp_path, rng, "q8_0")
    result = export(package, tmp_path / "out.gguf", to="gguf")
    assert {record.dtype for record in result.tensors if record.stored == "Q8_0"} == {"Q8_0"}
    errors = {record.name: record.relative_rmse for record in result.tensors}
    assert 0 < errors["blk.0.ffn_gate.weight"] < 2**-11
    assert errors["blk.0.ffn_up.weight"] == 0.0, "the control: no factor multiplies it"
    with open_package(package) as opened:
        factor = opened.manifest.inference.ffn.gate_multiplier
        name = "model.layers.0.mlp.gate_proj.weight"
        stored, values = opened.read(name).reshape(-1, 34), opened.dequantize(name)
    tensor = next(
        entry
        for entry in gguf.GGUFReader(tmp_path / "out.gguf").tensors
        if entry.name == "blk.0.ffn_gate.weight"
    )
    np.testing.assert_array_equal(tensor.data.reshape(-1, 34)[:, 2:], stored[:, 2:])
    decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    np.testing.assert_allclose(decoded, values * factor, rtol=2**-10, atol=0)


def test_blocks_whose_scales_would_be_too_small_are_decoded(tmp_path, rng):
    package = _falcon_package(tmp_path, rng, "q8_0", lm_head_multiplier=1e-4)
    result = export(package, tmp_path / "out.gguf", to="gguf")
    head = next(tensor for tensor in result.tensors if tensor.name == "output.weight")
    assert head.dtype == "F16"
    assert "scales of Q8_0 blocks" in head.why


@pytest.mark.parametrize(
    ("options", "lossless", "words"),
    [
        ({"attention_bias": True}, False, "no biases of projections"),
        ({"tie_word_embeddings": True}, False, "which are tied"),
        ({}, True, "powers of two"),
    ],
)
def test_factors_that_weights_cannot_have_are_refused(tmp_path, rng, options, lossless, words):
    plain = {"attention_in_multiplier": 1.0} if "attention_bias" in options else {}
    package = _falcon_package(tmp_path, rng, "f32", **options, **plain)
    with pytest.raises(ConversionError) as refused:
        export(package, tmp_path / "out.gguf", to="gguf", lossless=lossless)
    assert words in f"{refused.value.message} {refused.value.expected}"


def test_blocks_of_the_input_projection_are_copied_both_ways(tmp_path, rng):
    tiny = next(model for model in WITHOUT_FACTORS if model.model_type == "nemotron_h")
    checkpoint, _ = saved(tiny, tmp_path, rng)
    written = write_state_space_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    convert(written, tmp_path / "package")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    mine, other = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        for path in (tmp_path / "out.gguf", written)
    )
    assert other["blk.0.ssm_in.weight"].tensor_type.name == "Q8_0"
    assert mine["blk.0.ssm_in.weight"].data.tobytes() == other["blk.0.ssm_in.weight"].data.tobytes()


SMALL_EXPERTS = {
    "layers_block_type": ["moe", "linear_attention"],
    "mlp_bias": False,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mamba2", {"use_bias": True}, "no biases"),
        ("mamba2", {"expand": 4, "num_heads": 32}, "twice the hidden size"),
        ("granitemoehybrid", {"layer_types": ["full_attention"] * 4}, "another architecture"),
        ("nemotron_h", {**SMALL_EXPERTS, "layers_block_type": ["mlp", "moe"]}, "dense feed-forw"),
        ("nemotron_h", {**SMALL_EXPERTS, "mlp_bias": True}, "no biases in shared"),
    ],
)
def test_what_llama_cpp_would_not_load_is_refused(tmp_path, rng, name, options, words):
    tiny = next(model for model in WITHOUT_FACTORS if model.model_type == name)
    checkpoint, _ = saved(tiny, tmp_path, rng, **options)
    convert(checkpoint, tmp_path / "package", quantize="f16")
    with pytest.raises(ConversionError, match=words):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
