"""NomicBERT with experts, in the form of its publisher, against its formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rdrr
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.package import open_package
from rdrr_manifests.validation import validate
from support.nomic_mixture import EXPERTS, HIDDEN, INNER, hidden_states, save_nomic_mixture
from support.sentence_checkpoints import add_modules, expected_embedding

TEXTS = ["a", "The quick brown fox", "It was the best of times. " * 8]
EXACT = {"cpu": {}, "wgpu": {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}}


@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_mixture_of_nomic_bert_embeds_as_its_formula_says(backend, rng, tmp_path):
    tensors = save_nomic_mixture(rng, tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    assert validate(tmp_path / "package").ok
    with rdrr.load(tmp_path / "package", backend=backend, **EXACT[backend]) as model:
        for text, row in zip(TEXTS, model.embed(TEXTS), strict=True):
            ids = model.encode(text)
            states = hidden_states(tensors, ids)
            assert np.abs(row - expected_embedding(states, "mean", normalize=False)).max() <= 2e-5
            plain = hidden_states(tensors, ids, sum_bias=False)
            assert np.abs(row - expected_embedding(plain, "mean", normalize=False)).max() > 1e-2


@pytest.mark.parametrize(
    ("key", "value"), [("prenorm", True), ("causal", True), ("rotary_emb_fraction", 0.5)]
)
def test_the_publishers_keys_are_read_and_what_no_package_can_state_is_refused(
    key, value, rng, tmp_path
):
    folder = tmp_path / "source"
    save_nomic_mixture(rng, folder)
    convert(folder, tmp_path / "sound", dry_run=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, key: value}), encoding="utf-8")
    with pytest.raises((ConversionError, SourceError), match=key):
        convert(folder, tmp_path / "other", dry_run=True)


def test_a_mixture_comes_back_from_a_gguf_without_the_bias_that_llama_cpp_lacks(rng, tmp_path):
    tensors = save_nomic_mixture(rng, tmp_path / "source")
    add_modules(tmp_path / "source", HIDDEN, "mean")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    result = export(tmp_path / "package", tmp_path / "out.gguf")
    assert any("no bias to the sum of experts" in note for note in result.notes)
    shapes = {tensor.name: tuple(tensor.shape) for tensor in result.tensors}
    assert shapes["blk.1.ffn_up_exps.weight"] == (EXPERTS, INNER, HIDDEN)
    assert shapes["blk.1.ffn_down_exps.weight"] == (EXPERTS, HIDDEN, INNER)
    assert read_gguf(tmp_path / "out.gguf").metadata["nomic-bert-moe.moe_every_n_layers"] == 2
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    with rdrr.load(tmp_path / "again", backend="cpu") as model:
        for text in TEXTS:
            states = hidden_states(tensors, model.encode(text), sum_bias=False)
            expected = expected_embedding(states, "mean")
            assert np.abs(model.embed(text)[0] - expected).max() <= 1e-5


def test_a_mixture_comes_back_from_safetensors(rng, tmp_path):
    save_nomic_mixture(rng, tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "again", quantize="f32")
    with open_package(tmp_path / "package") as first, open_package(tmp_path / "again") as second:
        assert first.graph == second.graph
        for name in first.manifest.tensors:
            assert np.array_equal(first.dequantize(name), second.dequantize(name)), name
