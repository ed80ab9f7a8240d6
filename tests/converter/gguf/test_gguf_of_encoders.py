"""GGUF files of encoders are read and written as llama.cpp has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError
from rdrr_manifests.package import open_package
from support.encoders import make_encoder, save_encoder, write_word_tokenizer
from support.gguf_encoders import NAMES, write_encoder_gguf
from support.gguf_older import payloads
from support.sentence_checkpoints import add_modules
from tokenizers import Tokenizer

TEXTS = ["a", "", "The quick (brown) fox", "caf\u00e9 \u4e16\u754c", "[MASK] of times"]


def saved(kind, folder, rng, *, lowercase=True, pooling="mean", **options):
    model = make_encoder(kind, rng, **options)
    save_encoder(model, folder)
    write_word_tokenizer(folder, lowercase=lowercase)
    add_modules(folder, model.config.hidden_size, pooling)
    return folder


def ids_of(package):
    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pairs = [(text, "b c") for text in TEXTS]
    encoded = [*tokenizer.encode_batch(TEXTS), *tokenizer.encode_batch(pairs)]
    return [(text.ids, text.type_ids) for text in encoded]


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *((kind, "mean") for kind in NAMES),
        pytest.param("bert", "cls", marks=pytest.mark.thorough),  # see test_embeddings.py
    ],
)
def test_a_gguf_gives_the_package_of_its_checkpoint(kind, pooling, rng, tmp_path):
    checkpoint = saved(kind, tmp_path / "model", rng, pooling=pooling)
    number = {"mean": 1, "cls": 2}[pooling]
    gguf = write_encoder_gguf(checkpoint, tmp_path / "model.gguf", number)
    convert(checkpoint, tmp_path / "a", quantize="f32")
    convert(gguf, tmp_path / "b", quantize="f32")
    with open_package(tmp_path / "a") as theirs, open_package(tmp_path / "b") as ours:
        assert ours.graph == theirs.graph
        blocks = [package.manifest.inference for package in (ours, theirs)]
        pooled = [block.output.embedding_postprocessor for block in blocks]
        assert pooled[0].pooling_mode == pooled[1].pooling_mode == pooling
        assert set(ours.manifest.tensors) == set(theirs.manifest.tensors)
        for name in theirs.manifest.tensors:
            assert np.array_equal(ours.dequantize(name), theirs.dequantize(name)), name
    assert ids_of(tmp_path / "b") == ids_of(tmp_path / "a")


@pytest.mark.parametrize("kind", NAMES)
def test_an_export_has_the_tensors_and_the_metadata_of_llama_cpp(kind, rng, tmp_path):
    checkpoint = saved(kind, tmp_path / "model", rng)
    theirs = write_encoder_gguf(checkpoint, tmp_path / "model.gguf")
    convert(checkpoint, tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    assert payloads(tmp_path / "out.gguf") == payloads(theirs)
    mine, other = (read_gguf(path).metadata for path in (tmp_path / "out.gguf", theirs))
    other = {key: value for key, value in other.items() if not key.endswith("cls_token_id")}
    assert {key: mine.get(key) for key in other} == other
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    with open_package(tmp_path / "package") as first, open_package(tmp_path / "again") as second:
        assert first.graph == second.graph
    assert ids_of(tmp_path / "again") == ids_of(tmp_path / "package")


def test_gates_and_ups_of_jina_bert_may_be_tensors_of_their_own(rng, tmp_path):
    """The oldest files have them so."""
    checkpoint = saved("jina_bert", tmp_path / "model", rng)
    convert(checkpoint, tmp_path / "a", quantize="f32")
    for path, is_stacked in (("stacked.gguf", True), ("plain.gguf", False)):
        file = write_encoder_gguf(checkpoint, tmp_path / path, is_stacked=is_stacked)
        has_gates = "blk.0.ffn_gate.weight" in read_gguf(file).tensors
        assert has_gates is not is_stacked
        convert(file, tmp_path / "b", quantize="f32", overwrite=True)
        with open_package(tmp_path / "a") as theirs, open_package(tmp_path / "b") as ours:
            assert ours.graph == theirs.graph
            for name in theirs.manifest.tensors:
                assert np.array_equal(ours.dequantize(name), theirs.dequantize(name)), name


def test_tensors_that_llama_cpp_adds_stay_in_f32_in_a_quantized_file(rng, tmp_path):
    convert(saved("bert", tmp_path / "model", rng), tmp_path / "package", quantize="f16")
    result = export(tmp_path / "package", tmp_path / "out.gguf")
    types = {tensor.name: tensor.dtype for tensor in result.tensors}
    assert types["position_embd.weight"] == types["token_types.weight"] == "F32"
    assert types["blk.0.ffn_up.weight"] == types["token_embd.weight"] == "F16"


def test_a_tokenizer_that_keeps_case_is_in_the_file_as_a_whole(rng, tmp_path):
    checkpoint = saved("bert", tmp_path / "model", rng, lowercase=False)
    convert(checkpoint, tmp_path / "package", quantize="f32")
    result = export(tmp_path / "package", tmp_path / "out.gguf")
    assert any("splits text as uncased BERT does" in note for note in result.notes)
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    assert ids_of(tmp_path / "again") == ids_of(tmp_path / "package")


@pytest.mark.parametrize(("kind", "named"), [("distilbert", "distilbert"), ("mpnet", "mpnet")])
def test_encoders_that_this_version_cannot_write_are_refused_with_the_way_out(
    kind, named, rng, tmp_path
):
    convert(saved(kind, tmp_path / "model", rng), tmp_path / "package", quantize="f32")
    with pytest.raises(ConversionError, match=named) as error:
        export(tmp_path / "package", tmp_path / "out.gguf")
    assert "safetensors" in str(error.value)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "mpnet", *list(NAMES)[1:]])
def test_an_encoder_comes_back_from_safetensors(kind, rng, tmp_path):
    convert(saved(kind, tmp_path / "model", rng), tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text(encoding="utf-8"))
    assert "use_bidirectional_attention" not in config
    convert(tmp_path / "hf", tmp_path / "again", quantize="f32")
    with open_package(tmp_path / "package") as first, open_package(tmp_path / "again") as second:
        assert first.graph == second.graph
