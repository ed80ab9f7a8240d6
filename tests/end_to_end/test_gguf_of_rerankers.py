"""GGUF files of reranking models, whose head has the rows of the output matrix for yes and no."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import rdrr
from rdrr_converter.convert import convert
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ManifestError, SourceError
from rdrr_manifests.validation import validate
from safetensors.numpy import load_file
from support.checkpoints import make_checkpoint
from support.classifiers import make_classifier
from support.gguf_files import write_gguf
from support.tiny_models import TinyModel
from tokenizers import Tokenizer

QWEN3 = TinyModel("qwen3", 256, (("tie_word_embeddings", True),))
QUERY, TEXTS = "which?", ["a", "The quick brown fox", "It was the best of times. " * 4]
# The tiny tokenizer has one token for each byte, so the answers of the language model are letters.
PROMPT = rdrr.RankPrompt(before="[", pair="{query}|{document}|{instruction}", yes="y", no="n")
BOUNDS = {"cpu": 1e-5, "wgpu": 1e-3}
HINTS = {"cpu": {}, "wgpu": {"computePrecision": "f32"}}


def written(folder, rng, dtype="F32", **metadata):
    """Write a language model, and a GGUF of it as llama.cpp writes Qwen3-Reranker."""
    checkpoint = make_checkpoint(QWEN3, folder / "model", rng, dtype="float32", num_hidden_layers=2)
    letters = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    rows = [letters.encode(letter, add_special_tokens=False).ids[0] for letter in "yn"]
    matrix = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    stated = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"], **metadata}
    further = {"cls.output.weight": matrix[rows]}
    write_gguf(checkpoint, folder / "m.gguf", dtype, metadata=stated, further=further)
    return checkpoint, matrix[rows]


def ranked(package, backend="cpu", **options):
    with rdrr.load(package, backend=backend, kernel_hints=HINTS[backend]) as loaded:
        return np.array(loaded.rank(QUERY, TEXTS, **options))


@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_gguf_ranks_as_the_language_model_with_two_tokens(backend, rng, tmp_path):
    checkpoint, _ = written(tmp_path, rng)
    for source, package in ((checkpoint, "language"), (tmp_path / "m.gguf", "package")):
        convert(source, tmp_path / package, quantize="f32")
    assert validate(tmp_path / "package").ok
    wanted = ranked(tmp_path / "language", prompt=PROMPT)
    scores = ranked(tmp_path / "package", backend, prompt=PROMPT)
    assert np.abs(scores - wanted).max() <= BOUNDS[backend]
    assert np.ptp(wanted) > 1e-3


def test_a_head_with_yes_and_no_is_asked_the_question_of_qwen(rng, tmp_path):
    written(tmp_path, rng)
    convert(tmp_path / "m.gguf", tmp_path / "package", quantize="f32")
    usual = ranked(tmp_path / "package")
    assert np.array_equal(usual, ranked(tmp_path / "package", prompt=rdrr.RankPrompt()))
    assert not np.array_equal(usual, ranked(tmp_path / "package", prompt=PROMPT))


def test_an_export_has_the_head_and_the_metadata_of_llama_cpp(rng, tmp_path):
    _, rows = written(tmp_path, rng)
    convert(tmp_path / "m.gguf", tmp_path / "package", quantize="f32")
    rdrr.export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    tensors = [
        {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(tmp_path / name).tensors}
        for name in ("out.gguf", "m.gguf")
    ]
    assert tensors[0].keys() == tensors[1].keys()
    assert np.array_equal(tensors[0]["cls.output.weight"], rows)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert metadata["qwen3.pooling_type"] == 4
    assert metadata["qwen3.classifier.output_labels"] == ["yes", "no"]
    assert metadata["tokenizer.chat_templates"] == ["rerank"]
    template = metadata["tokenizer.chat_template.rerank"]
    asked = rdrr.RankPrompt()
    pair = asked.pair.replace("{instruction}", asked.instruction)
    assert template == asked.before + pair + asked.after
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    assert np.array_equal(ranked(tmp_path / "again"), ranked(tmp_path / "package"))


@pytest.mark.parametrize("dtype", [pytest.param("Q8_0", marks=pytest.mark.thorough), "Q5_1"])
def test_a_quantized_head_is_read_and_written(dtype, rng, tmp_path):
    _, rows = written(tmp_path, rng, dtype)
    convert(tmp_path / "m.gguf", tmp_path / "package")
    with rdrr.open_package(tmp_path / "package") as package:
        head = package.dequantize("score.weight")
    assert 0 < np.abs(head - rows).max() < 0.1 * np.abs(rows).max()
    wanted = ranked(tmp_path / "package")
    rdrr.export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
    convert(tmp_path / "out.gguf", tmp_path / "again")
    assert np.abs(ranked(tmp_path / "again") - wanted).max() < 1e-3


def test_yes_and_no_of_another_problem_do_not_rank(rng, tmp_path):
    options = {"problem_type": "multi_label_classification", "id2label": {0: "yes", 1: "no"}}
    make_classifier(QWEN3, rng, tmp_path / "source", 2, **options)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    with pytest.raises(ManifestError, match="has several labels"):
        ranked(tmp_path / "package")


def test_labels_of_another_meaning_are_kept_without_a_question(rng, tmp_path):
    names = {0: "bad", 1: "fair", 2: "good"}
    make_classifier(QWEN3, rng, tmp_path / "source", 3, id2label=names)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    rdrr.export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert metadata["qwen3.classifier.output_labels"] == list(names.values())
    assert "tokenizer.chat_template.rerank" not in metadata
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    scores = []
    for name in ("package", "again"):
        with rdrr.load(tmp_path / name, backend="cpu") as loaded:
            scores.append(loaded.classify(TEXTS))
    assert scores[0] == scores[1]
    assert list(scores[0][0]) == list(names.values())


def test_labels_that_do_not_fit_the_head_are_refused(rng, tmp_path):
    written(tmp_path, rng, **{"qwen3.classifier.output_labels": ["yes"]})
    with pytest.raises(SourceError, match="2 different names"):
        convert(tmp_path / "m.gguf", tmp_path / "package")
