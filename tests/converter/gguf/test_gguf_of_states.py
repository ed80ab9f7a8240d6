"""GGUF files of Qwen 3.5, Qwen 3 Next and LFM2 are read and written as llama.cpp has them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError
from rdrr_manifests.package import open_package
from support.checkpoints import make_checkpoint
from support.gguf_comparison import (
    EXPONENTIALS,
    ROUNDED,
    assert_same_metadata,
    assert_same_packages,
    assert_same_tensors,
)
from support.gguf_states import ARCHITECTURES, LIKE_LLAMA_CPP, write_state_gguf
from support.tiny_models import LATEST_MODELS, covering

MODELS = [tiny for tiny in LATEST_MODELS if tiny.model_type in ARCHITECTURES]
QWEN35 = next(tiny for tiny in MODELS if tiny.model_type == "qwen3_5_text")


def saved(tiny, folder, rng, **more):
    options = {"num_hidden_layers": 2, **LIKE_LLAMA_CPP[tiny.model_type], **more}
    return make_checkpoint(tiny, folder, rng, dtype="float32", **options)


@pytest.mark.parametrize(
    "tiny", covering(MODELS, {tiny.name for tiny in MODELS} - {"lfm2-256", "qwen3_5_moe_text-256"})
)
def test_a_gguf_and_an_export_are_those_of_llama_cpp(tiny, tmp_path, rng):
    checkpoint = saved(tiny, tmp_path / "model", rng)
    convert(checkpoint, tmp_path / "a", quantize="f32")
    forms = {"new": {}}
    if tiny.model_type == "qwen3_5_text":
        forms["further"] = {"further": 1}
    if tiny.model_type in ("qwen3_5_moe_text", "qwen3_next"):
        forms["joined"] = {"joined": True}
    for form, options in forms.items():
        path = write_state_gguf(checkpoint, tmp_path / f"{form}.gguf", **options)
        convert(path, tmp_path / form, quantize="f32")
        assert_same_packages(tmp_path / form, tmp_path / "a", ROUNDED)
    file, other = tmp_path / "out.gguf", tmp_path / "new.gguf"
    export(tmp_path / "a", file, to="gguf", lossless=True)
    assert_same_tensors(file, other, EXPONENTIALS)
    assert_same_metadata(file, other, omitted=("dimension_sections",))
    metadata = read_gguf(file).metadata
    for key in read_gguf(other).metadata:
        if key.endswith("dimension_sections"):
            assert sum(metadata[key]) == metadata[key.replace("sections", "count")] // 2
    convert(file, tmp_path / "again", quantize="f32")
    assert_same_packages(tmp_path / "again", tmp_path / "a", ROUNDED)


def test_blocks_are_copied_both_ways_where_heads_are_whole_blocks(tmp_path, rng):
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    checkpoint = saved(QWEN35, tmp_path / "model", rng, **sizes)
    written = write_state_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    convert(written, tmp_path / "package")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    mine, other = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        for path in (tmp_path / "out.gguf", written)
    )
    quantized = {name for name, one in other.items() if one.tensor_type.name == "Q8_0"}
    assert {"blk.0.attn_qkv.weight", "blk.0.attn_gate.weight", "blk.0.ssm_out.weight"} <= quantized
    for name in quantized:
        assert mine[name].data.tobytes() == other[name].data.tobytes(), name
    convert(checkpoint, tmp_path / "theirs", quantize="q8_0")
    with open_package(tmp_path / "package") as ours, open_package(tmp_path / "theirs") as theirs:
        name = "model.layers.0.linear_attn.out_proj.weight"
        assert ours.read(name).tobytes() == theirs.read(name).tobytes()


def test_blocks_with_columns_of_several_heads_are_decoded_or_refused(tmp_path, rng):
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_value_heads": 8}
    checkpoint = saved(QWEN35, tmp_path / "model", rng, **sizes)
    convert(checkpoint, tmp_path / "package", quantize="q4_k_m")
    with pytest.raises(ConversionError, match="columns of several heads"):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    result = export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    decoded = {tensor.name: tensor.dtype for tensor in result.tensors if tensor.why}
    assert decoded == {"blk.0.ssm_out.weight": "F16"}
    again = convert(tmp_path / "out.gguf", tmp_path / "again")
    assert "Q4_K" in {tensor.dtype.name for tensor in again.plan.tensors}
    with open_package(tmp_path / "package") as package, open_package(tmp_path / "again") as two:
        for name in package.manifest.tensors:
            values = package.dequantize(name)
            if "out_proj" in name:
                values = values.astype(np.float16)
            np.testing.assert_allclose(two.dequantize(name), values, rtol=0, atol=2**-22)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("qwen3_5_text", {"linear_value_head_dim": 20}, "keys and values of the same size"),
        ("qwen3_next", {"decoder_sparse_step": 2}, "experts in every layer"),
        ("lfm2", {"conv_bias": True}, "no name for this tensor"),
    ],
)
def test_what_llama_cpp_would_not_load_is_refused(tmp_path, rng, name, options, words):
    tiny = next(model for model in MODELS if model.model_type == name)
    convert(saved(tiny, tmp_path / "model", rng, **options), tmp_path / "package", quantize="f16")
    with pytest.raises(ConversionError, match=words):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
