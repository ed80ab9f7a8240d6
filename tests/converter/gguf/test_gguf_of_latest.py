"""GGUF files of Apertus, Hunyuan with experts, Llama 4, Gemma and Qwen VL are llama.cpp's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_converter.sources import open_source
from rdrr_format.errors import ConversionError, SourceError
from support.checkpoints import make_checkpoint, make_multimodal, save_checkpoint
from support.gguf_comparison import (
    ROUNDED,
    assert_same_metadata,
    assert_same_packages,
    assert_same_tensors,
)
from support.gguf_latest import ARCHITECTURES, LIKE_LLAMA_CPP, write_latest_gguf
from support.tiny_models import ALL_MODELS, LATEST_MODELS

MODELS = [tiny for tiny in LATEST_MODELS if tiny.model_type in ARCHITECTURES]
VISION = [kind for kind in ARCHITECTURES if kind.endswith("_vl")]
ALIKE = ("gemma", "hunyuan_v1_moe", "internlm3")
"""Kinds whose layers differ in nothing."""
BY_NAME = {tiny.model_type: tiny for tiny in ALL_MODELS}


def saved(kind: str, folder: Path, rng: np.random.Generator) -> Path:
    if kind in VISION:
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        text = {"rope_parameters": rope, "head_dim": 16} if kind == "qwen2_5_vl" else {}
        return save_checkpoint(make_multimodal(kind, rng, **text), folder, dtype="float32")
    layers = 1 if kind in ALIKE else 2
    options = {"num_hidden_layers": layers, **LIKE_LLAMA_CPP.get(kind, {})}
    return make_checkpoint(BY_NAME[kind], folder, rng, dtype="float32", **options)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_gguf_and_an_export_are_those_of_llama_cpp(kind, tmp_path, rng):
    checkpoint = saved(kind, tmp_path / "model", rng)
    written = write_latest_gguf(checkpoint, tmp_path / "m.gguf")
    convert(checkpoint, tmp_path / "a", quantize="f32", without_vision=True)
    convert(written, tmp_path / "b", quantize="f32")
    assert_same_packages(tmp_path / "b", tmp_path / "a", ROUNDED)
    file = tmp_path / "out.gguf"
    export(tmp_path / "a", file, to="gguf", lossless=True)
    assert_same_tensors(file, written, ROUNDED, rounded=("rope_freqs.weight",))
    assert_same_metadata(file, written, omitted=("dimension_sections",))
    mine, other = (read_gguf(path).metadata for path in (file, written))
    for key, value in other.items():
        if key.endswith("dimension_sections"):
            assert sum(mine[key]) == sum(value)
    convert(file, tmp_path / "again", quantize="f32")
    assert_same_packages(tmp_path / "again", tmp_path / "a", ROUNDED)


@pytest.mark.parametrize("kind", ["ministral", "internlm3"])
def test_models_that_llama_cpp_has_as_llama_survive_a_round_trip(kind, tmp_path, rng):
    checkpoint = saved(kind, tmp_path / "model", rng)
    convert(checkpoint, tmp_path / "a", quantize="q8_0")
    result = export(tmp_path / "a", tmp_path / "out.gguf", to="gguf", lossless=True)
    assert read_gguf(tmp_path / "out.gguf").metadata["general.architecture"] == "llama"
    assert any("ignores the sliding window" in note for note in result.notes) == (
        kind == "ministral"
    )
    convert(tmp_path / "out.gguf", tmp_path / "again")
    assert_same_packages(tmp_path / "again", tmp_path / "a", ROUNDED)


@pytest.mark.parametrize(
    "kind",
    [
        "helium",
        *(
            pytest.param(kind, marks=pytest.mark.thorough)
            for kind in ("flex_olmo", "opt", "vaultgemma")
        ),
    ],
)
def test_models_that_llama_cpp_does_not_have_are_refused_by_name(kind, tmp_path, rng):
    convert(saved(kind, tmp_path / "model", rng), tmp_path / "a", quantize="f16")
    with pytest.raises(ConversionError, match=f"llama.cpp has no architecture for {kind}"):
        export(tmp_path / "a", tmp_path / "out.gguf", to="gguf")


def test_a_llama_4_with_other_chunks_than_llama_cpp_has_is_refused(tmp_path, rng):
    tiny = BY_NAME["llama4_text"]
    make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=4)
    convert(tmp_path / "model", tmp_path / "a", quantize="f16")
    with pytest.raises(ConversionError, match="cannot describe this model"):
        export(tmp_path / "a", tmp_path / "out.gguf", to="gguf")


def test_parameters_of_an_activation_must_be_stated_for_every_layer(tmp_path, rng):
    checkpoint = saved("apertus", tmp_path / "model", rng)
    written = write_latest_gguf(checkpoint, tmp_path / "m.gguf")
    tensor = open_source(written).tensors["model.layers.1.mlp.act_fn.beta"]
    assert (tensor.shape, tensor.read().shape) == ((), (1, 1))
    write_latest_gguf(checkpoint, tmp_path / "m.gguf", {"xielu.beta": [0.5]})
    with pytest.raises(SourceError, match="impossible parameters of an activation"):
        open_source(written)
