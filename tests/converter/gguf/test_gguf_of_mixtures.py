"""GGUF files of mixtures with shared experts are read and written as by llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, SourceError
from support.checkpoints import make_checkpoint
from support.gguf_comparison import (
    assert_same_metadata,
    assert_same_packages,
    assert_same_tensors,
)
from support.gguf_entries import add_entry, add_tensor
from support.gguf_mixtures import ARCHITECTURES, LIKE_LLAMA_CPP, write_mixture_gguf
from support.tiny_models import ALL_MODELS, TinyModel

MODELS = [tiny for tiny in ALL_MODELS if tiny.model_type in ARCHITECTURES]
LATENT = [tiny for tiny in MODELS if ARCHITECTURES[tiny.model_type] == "deepseek2"]
LIKE_OTHERS = ("glm4_moe_lite", "solar_open")
"""Models with the names of DeepSeek 3 and GLM 4."""
WITH_FURTHER_LAYERS = ("deepseek_v3", "exaone_moe", "glm4_moe", "glm4_moe_lite")
"""Models with layers that predict further tokens."""


def saved(tiny: TinyModel, folder: Path, rng: np.random.Generator) -> Path:
    options = {"num_hidden_layers": 2, **LIKE_LLAMA_CPP.get(tiny.model_type, {})}
    if "n_routed_experts" in dict(tiny.options):
        options |= {"n_routed_experts": 8, "num_experts_per_tok": 3}
    return make_checkpoint(tiny, folder, rng, dtype="float32", **options)


@pytest.mark.parametrize(
    "tiny",
    [
        pytest.param(
            tiny,
            id=tiny.name,
            marks=pytest.mark.thorough if tiny.model_type in LIKE_OTHERS else (),
        )
        for tiny in MODELS
    ],
)
def test_a_gguf_and_an_export_are_those_of_llama_cpp(tiny, tmp_path, rng):
    checkpoint = saved(tiny, tmp_path / "model", rng)
    convert(checkpoint, tmp_path / "a", quantize="f32")
    more = int(tiny.model_type in WITH_FURTHER_LAYERS)
    path = write_mixture_gguf(checkpoint, tmp_path / "new.gguf", further=more)
    result = convert(path, tmp_path / "new", quantize="f32")
    assert sum("left out" in note for note in result.notes) == more
    assert_same_packages(tmp_path / "new", tmp_path / "a")
    # An export has the older form, so what it becomes shows how that is read.
    write_mixture_gguf(checkpoint, tmp_path / "older.gguf", split=False)
    result = export(tmp_path / "a", tmp_path / "out.gguf", to="gguf", lossless=True)
    assert any("expanded" in note for note in result.notes) == (tiny in LATENT)
    assert_same_tensors(tmp_path / "out.gguf", tmp_path / "older.gguf")
    assert_same_metadata(tmp_path / "out.gguf", tmp_path / "older.gguf")
    again = convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    assert not any("left out" in note for note in again.notes)
    assert_same_packages(tmp_path / "again", tmp_path / "a")


def test_a_model_with_corrections_that_llama_cpp_does_not_have_is_refused(tmp_path, rng):
    tiny = next(model for model in LATENT if model.model_type == "deepseek_v3")
    make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=2, attention_bias=False)
    convert(tmp_path / "model", tmp_path / "package", quantize="f32")
    with pytest.raises(ConversionError, match="cannot describe this model"):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")


def test_biases_that_llama_cpp_does_not_load_are_refused(tmp_path, rng):
    tiny = next(model for model in LATENT if model.model_type == "deepseek_v3")
    options = {**LIKE_LLAMA_CPP["deepseek_v3"], "attention_bias": True}
    make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=2, **options)
    convert(tmp_path / "model", tmp_path / "package", quantize="f32")
    with pytest.raises(ConversionError, match="no name for this tensor"):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dots1", {"num_key_value_heads": 2, "sliding_window": None}, "fewer key-value heads"),
        ("deepseek_v2", {}, "26 or 27 layers"),
    ],
)
def test_models_that_llama_cpp_would_not_load_are_noted(tmp_path, rng, name, options, words):
    tiny = next(model for model in MODELS if model.model_type == name)
    make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=2, **options)
    convert(tmp_path / "model", tmp_path / "package", quantize="f32")
    result = export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    assert any(words in note for note in result.notes)


def test_parts_of_latent_attention_that_do_not_fit_are_refused(tmp_path, rng):
    import gguf

    checkpoint = saved(LATENT[0], tmp_path / "model", rng)
    whole = read_gguf(write_mixture_gguf(checkpoint, tmp_path / "m.gguf"))
    for name, values, said in (
        ("attn_v_b", None, "incomplete"),
        ("attn_v_b", np.ones((4, 40, 71), np.float32), "do not fit"),
    ):
        writer = gguf.GGUFWriter(tmp_path / "bad.gguf", "deepseek2")
        for key, value in whole.metadata.items():
            if not key.startswith(("general.", "GGUF.")):
                add_entry(writer, key, value)
        for other, tensor in whole.tensors.items():
            if name not in other:
                add_tensor(writer, other, np.ones(tensor.shape, np.float32), "F32")
            elif values is not None:
                add_tensor(writer, other, values, "F32")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(SourceError, match=said):
            convert(tmp_path / "bad.gguf", tmp_path / "package", dry_run=True)
