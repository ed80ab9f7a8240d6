"""An exported GGUF has the same blocks as the converted one, and equivalent metadata."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import logical_tensors
from rdrr_manifests.package import open_package
from support.checkpoints import make_checkpoint, write_tokenizer
from support.gguf_files import ALIKE, LIKE_LLAMA_CPP, q4_k_m, write_gguf
from support.gguf_older import payloads
from support.safetensor_files import llama_tensors, write_llama
from support.tiny_models import MORE_MODELS, TINY_MODELS, TinyModel, covering

LAYERS = 2
LAYER = {"num_hidden_layers": 1}
USUAL = (
    "llama-576",
    "gemma3_text-384",
    "mixtral-256",
    "gpt_oss-288",
    "phimoe-320",
    "ministral3-256",
)
"""test_gguf_source.py has others."""


@pytest.fixture
def llama(tmp_path, rng):
    """A checkpoint that is quick to write; K is 256 and 512."""
    folder = write_llama(tmp_path / "llama", llama_tensors(rng, **LAYER), **LAYER)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("F32", {"quantize": "f32"}),
        ("F16", {"quantize": "f16", "transpose_weights": True, "fuse_gate_up": True}),
        ("Q8_0", {"quantize": "q8_0", "q4k_layout": "flat"}),
        (q4_k_m, {"fuse_gate_up": True}),
    ],
    ids=["F32", "F16 column", "Q8_0 flat", "Q4_K_M fused"],
)
def test_a_round_trip_keeps_every_payload(tmp_path, llama, dtype, options):
    path = write_gguf(llama, tmp_path / "m.gguf", dtype)
    convert(path, tmp_path / "package", **options)
    result = export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    assert payloads(tmp_path / "out.gguf") == payloads(path)
    assert result.is_lossless
    # The tokenizer of these tests has no merges, which llama.cpp needs.
    assert ["without merges" in note for note in result.notes] == [True]


@pytest.mark.parametrize("tiny", covering(TINY_MODELS + MORE_MODELS, USUAL))
def test_every_architecture_survives_a_round_trip(tmp_path, rng, tiny):
    layers = 1 if tiny.model_type in ALIKE else LAYERS
    options = {"num_hidden_layers": layers, **LIKE_LLAMA_CPP.get(tiny.model_type, {})}
    folder = make_checkpoint(tiny, tmp_path / "model", rng, **options)
    path = write_gguf(folder, tmp_path / "m.gguf", "Q8_0")
    convert(path, tmp_path / "package", quantize="q8_0")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    ours, theirs = payloads(tmp_path / "out.gguf"), payloads(path)
    assert set(ours) == set(theirs)
    for name, (shape, kind, data) in theirs.items():
        assert ours[name][:2] == (shape, kind)
        if tiny.model_type.startswith("gemma") and "norm" in name:
            # Subtracting 1 and adding it again rounds once for weights below 1/2.
            result = np.frombuffer(ours[name][2], np.float32)
            np.testing.assert_allclose(result, np.frombuffer(data, np.float32), rtol=1e-6)
        else:
            assert ours[name][2] == data, name
    mine, other = (read_gguf(file).metadata for file in (tmp_path / "out.gguf", path))
    assert {key: mine.get(key) for key in other} == {
        **other,
        "general.architecture": mine["general.architecture"],
        # rdrr writes a period instead of a list, and Gemma's scale only if it is unusual.
        **{key: mine.get(key) for key in other if key.endswith(("_pattern", "attention.scale"))},
    }
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="q8_0")
    first, second = (open_package(tmp_path / name) for name in ("package", "again"))
    assert first.graph == second.graph
    assert first.manifest.tokenizer == second.manifest.tokenizer


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemma2", "cannot describe this model"),
        ("gpt_oss", "cannot describe this model"),
        ("qwen2_moe", "experts in every layer"),
        ("smollm3", "cannot describe this model"),
    ],
)
def test_a_model_that_llama_cpp_would_compute_differently_is_refused(tmp_path, rng, name, words):
    tiny = next(model for model in MORE_MODELS if model.model_type == name)
    folder = make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=LAYERS)
    convert(folder, tmp_path / "package", quantize="f16")
    with pytest.raises(ConversionError, match=words):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_gguf_py_decodes_the_values_of_the_package(tmp_path, llama):
    convert(llama, tmp_path / "package", fuse_gate_up=True)
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    theirs = {tensor.name: tensor for tensor in reader.tensors}
    source = open_source(tmp_path / "out.gguf")
    with open_package(tmp_path / "package") as package:
        for name in ("model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
            values = package.dequantize(name)
            np.testing.assert_array_equal(source.tensors[name].read(), values)
        down = theirs["blk.0.ffn_down.weight"]
        assert list(down.shape) == [512, 256]  # gguf-py gives dimensions in reverse order
        np.testing.assert_array_equal(
            gguf.quants.dequantize(down.data, down.tensor_type),
            package.dequantize("model.layers.0.mlp.down_proj.weight"),
        )
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_M
    assert reader.fields["general.quantization_version"].contents() == 2


ODD = {
    **LAYER,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ({}, {"transpose_weights": True}, "the column layout"),
        (ODD, {}, "row length 192 is not a multiple"),
        (ODD, {"q4k_layout": "flat"}, "row length 192 is not a multiple"),
    ],
    ids=["column", "odd rows", "odd flat rows"],
)
def test_blocks_that_a_gguf_cannot_hold_become_f16_or_are_refused(
    tmp_path, rng, sizes, options, words
):
    folder = write_llama(tmp_path / "m", llama_tensors(rng, **sizes), **sizes)
    write_tokenizer(folder)
    convert(folder, tmp_path / "package", **options)
    with pytest.raises(ConversionError, match=words):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    assert not (tmp_path / "out.gguf").exists()
    result = export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    changed = [tensor for tensor in result.tensors if tensor.why]
    assert changed
    assert all(one.dtype == "F16" and words in one.why for one in changed)
    assert all(tensor.dtype == tensor.stored for tensor in result.tensors if not tensor.why)
    tensors = open_source(tmp_path / "out.gguf").tensors
    with open_package(tmp_path / "package") as package:
        for tensor in logical_tensors(package):
            values = package.dequantize(tensor.stored)
            if tensors[tensor.name].dtype == "F16":
                values = values.astype(np.float16)
            stored = tensors[tensor.name].read().reshape(tensor.shape)
            np.testing.assert_array_equal(stored, values, err_msg=tensor.name)


def test_values_that_f16_cannot_hold_are_exported_as_f32(tmp_path, rng):
    tensors = llama_tensors(rng, "F32", **LAYER)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][5, 7] = 70_000.0
    folder = write_llama(tmp_path / "m", tensors, **LAYER)
    convert(folder, tmp_path / "package", q4k_layout="column")
    result = export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    widened = [tensor.name for tensor in result.tensors if tensor.why and tensor.dtype == "F32"]
    assert widened == ["blk.0.ffn_up.weight"]


@pytest.mark.parametrize(("context", "fits"), [(2**32 - 1, True), (2**32, False)])
def test_a_number_that_metadata_cannot_hold_is_refused(tmp_path, llama, context, fits):
    package = tmp_path / "package"
    convert(llama, package, quantize="f16")
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    manifest["architecture"]["maxSeqLen"] = context
    (package / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    if fits:
        export(package, tmp_path / "out.gguf", to="gguf")
        return
    with pytest.raises(ConversionError, match=r"context_length.* cannot hold this number"):
        export(package, tmp_path / "out.gguf", to="gguf")
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_rope_frequency_divisors_survive_a_round_trip(tmp_path, rng):
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {"rope_parameters": {"rope_theta": 500000.0, **scaling}, "head_dim": 64, **LAYER}
    folder = write_llama(tmp_path / "m", llama_tensors(rng, **LAYER), **config)
    write_tokenizer(folder)
    path = write_gguf(folder, tmp_path / "m.gguf", "F16")
    convert(path, tmp_path / "package", quantize="f16")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    ours, theirs = (payloads(file)["rope_freqs.weight"] for file in (tmp_path / "out.gguf", path))
    assert ours[:2] == theirs[:2]
    result, wanted = (np.frombuffer(payload[2], np.float32) for payload in (ours, theirs))
    np.testing.assert_allclose(result, wanted, rtol=1e-5)
    assert result.max() == 32.0


def test_layers_without_a_period_are_listed_and_mentioned_in_a_note(tmp_path, rng):
    tiny = TinyModel("gemma3_text", 256, (("sliding_window", 24),))
    types = ["full_attention", "sliding_attention"]
    folder = make_checkpoint(tiny, tmp_path / "m", rng, num_hidden_layers=2, layer_types=types)
    convert(folder, tmp_path / "package", quantize="f16")
    result = export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    assert any("no period" in note for note in result.notes)
    assert open_source(tmp_path / "out.gguf").config["layer_types"] == types


def test_a_write_that_fails_leaves_nothing(tmp_path, llama):
    convert(llama, tmp_path / "package")
    shard = tmp_path / "package" / "shard_00000.bin"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(Exception, match="shard_00000"):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    shard.write_bytes(content)
    manifest = tmp_path / "package" / "manifest.json"
    data = json.loads(manifest.read_text(encoding="utf-8"))
    data["inference"]["output"]["scaleEmbeddings"] = True
    manifest.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ConversionError):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "package"]


@pytest.mark.parametrize(
    ("kind", "layers", "window", "noted"),
    [
        ("exaone4", 2, 24, True),
        pytest.param("exaone4", 64, 24, False, marks=pytest.mark.thorough),
        ("exaone4", 2, None, False),
        ("olmo3", 2, 24, False),
    ],
)
def test_windows_that_llama_cpp_reads_of_one_size_only_are_noted(
    tmp_path, rng, kind, layers, window, noted
):
    tiny = next(model for model in MORE_MODELS if model.model_type == kind)
    types = ["sliding_attention" if window else "full_attention", "full_attention"] * (layers // 2)
    make_checkpoint(
        tiny,
        tmp_path / "model",
        rng,
        num_hidden_layers=layers,
        hidden_size=64,
        intermediate_size=32,
        layer_types=types,
        sliding_window=window,
    )
    convert(tmp_path / "model", tmp_path / "package", quantize="f16")
    result = export(tmp_path / "package", tmp_path / "m.gguf", to="gguf")
    assert any("64 layers" in note for note in result.notes) == noted
