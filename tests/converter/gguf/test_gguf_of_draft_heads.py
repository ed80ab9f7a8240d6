"""Heads for multi-token prediction in GGUF files: a layer after the last, as in llama.cpp."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_manifests.package import open_package
from safetensors.numpy import load_file, save_file
from support.checkpoints import make_checkpoint
from support.draft_heads import add_head
from support.gguf_comparison import ROUNDED, assert_same_packages
from support.gguf_mixtures import LIKE_LLAMA_CPP as LIKE_MIXTURES
from support.gguf_mixtures import write_mixture_gguf
from support.gguf_states import LIKE_LLAMA_CPP as LIKE_STATES
from support.gguf_states import write_state_gguf
from support.tiny_models import ALL_MODELS

KINDS = {
    "qwen3_5_text": ("qwen35", write_state_gguf),
    "qwen3_5_moe_text": ("qwen35moe", write_state_gguf),
    "qwen3_next": ("qwen3next", write_state_gguf),
    "glm4_moe": ("glm4moe", write_mixture_gguf),
    "glm4_moe_lite": ("deepseek2", write_mixture_gguf),
    "deepseek_v3": ("deepseek2", write_mixture_gguf),
}
USUAL = ("qwen3_5_moe_text", "glm4_moe_lite")
"""One of each writer; test_gguf_of_states.py and test_gguf_of_mixtures.py have the other layers."""
LIKE = {**LIKE_STATES, **LIKE_MIXTURES}
OWN_COPIES = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")
"""Tensors of the model that some files have a second time in the head."""


def saved(kind, folder, rng, **more):
    tiny = next(model for model in ALL_MODELS if model.model_type == kind)
    options = {"num_hidden_layers": 2, **LIKE.get(kind, {}), **more}
    if "n_routed_experts" in dict(tiny.options):
        options |= {"n_routed_experts": 8, "num_experts_per_tok": 3}
    checkpoint = make_checkpoint(tiny, folder, rng, dtype="float32", **options)
    add_head(checkpoint, rng)
    return checkpoint


def assert_same(first, second):
    assert_same_packages(first, second, ROUNDED)
    with open_package(first) as package:
        assert package.mtp_graph is not None


def payloads(path):
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_gives_the_head_of_its_checkpoint(kind, tmp_path, rng):
    checkpoint = saved(kind, tmp_path / "model", rng)
    KINDS[kind][1](checkpoint, tmp_path / "m.gguf")
    for source, package in ((checkpoint, "a"), (tmp_path / "m.gguf", "b")):
        notes = convert(source, tmp_path / package, quantize="f32").notes
        assert not [note for note in notes if "multi-token" in note]
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in USUAL else pytest.mark.thorough) for kind in KINDS],
)
def test_an_export_has_the_head_that_llama_cpp_loads(kind, tmp_path, rng):
    checkpoint = saved(kind, tmp_path / "model", rng)
    name, write = KINDS[kind]
    write(checkpoint, tmp_path / "m.gguf", **({"split": False} if name == "deepseek2" else {}))
    convert(checkpoint, tmp_path / "package", quantize="f32")
    result = export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    assert not [note for note in result.notes if "multi-token" in note]
    mine, other = payloads(tmp_path / "out.gguf"), payloads(tmp_path / "m.gguf")
    other = {key: values for key, values in other.items() if not key.endswith(OWN_COPIES)}
    assert {key for key in mine if ".nextn." in key} == {
        f"blk.2.nextn.{part}.weight" for part in ("eh_proj", "enorm", "hnorm", "shared_head_norm")
    }
    assert mine.keys() == other.keys()
    for key, values in other.items():
        np.testing.assert_allclose(mine[key], values, rtol=0, atol=2**-21, err_msg=key)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert metadata[f"{name}.block_count"] == 3
    assert metadata[f"{name}.nextn_predict_layers"] == 1
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    assert_same(tmp_path / "again", tmp_path / "package")


def test_a_list_of_recurrent_layers_covers_the_head(tmp_path, rng):
    kinds = ["full_attention", "linear_attention", "full_attention"]
    options = {"layer_types": kinds, "num_hidden_layers": 3}
    checkpoint = saved("qwen3_5_text", tmp_path / "model", rng, **options)
    convert(checkpoint, tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert metadata["qwen35.attention.recurrent_layers"] == [False, True, False, False]
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    assert_same(tmp_path / "again", tmp_path / "package")


def test_a_folder_for_transformers_has_no_head_and_a_note(tmp_path, rng):
    convert(saved("qwen3_5_text", tmp_path / "model", rng), tmp_path / "package", quantize="f32")
    result = export(tmp_path / "package", tmp_path / "out")
    assert "left out, because only an export as GGUF has it" in result.notes[0]
    assert not [tensor for tensor in result.tensors if tensor.name.startswith("mtp.")]


def test_an_incomplete_head_is_left_out_with_a_note(tmp_path, rng):
    checkpoint = saved("qwen3_5_text", tmp_path / "model", rng)
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    del tensors["mtp.norm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    write_state_gguf(checkpoint, tmp_path / "m.gguf")
    result = convert(tmp_path / "m.gguf", tmp_path / "package", quantize="f32")
    assert any("mtp.norm.weight is missing" in note for note in result.notes)
    convert(saved("qwen3_5_text", tmp_path / "whole", rng), tmp_path / "other", quantize="f32")
    manifest = tmp_path / "other" / "manifest.json"
    data = json.loads(manifest.read_text(encoding="utf-8"))
    del data["tensors"]["mtp.norm.weight"]
    manifest.write_text(json.dumps(data), encoding="utf-8")
    exported = export(tmp_path / "other", tmp_path / "out.gguf", to="gguf")
    assert "left out, because it is incomplete" in exported.notes[0]
    assert not [tensor for tensor in exported.tensors if "nextn" in tensor.name]
