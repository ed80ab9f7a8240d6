"""GGUF files of encoders that rank or classify texts are read and written as llama.cpp has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rdrr
import torch
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.package import open_package
from support.encoders import (
    CLS,
    SEP,
    make_encoder,
    outputs_of,
    save_encoder,
    write_word_tokenizer,
)
from support.gguf_encoders import NAMES, XLM_ROBERTA, write_encoder_gguf
from support.gguf_entries import rewritten
from support.gguf_older import payloads
from support.gguf_unigram import write_unigram
from support.seeds import generator_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

TEXTS = ["a", "The quick (brown) fox", "best of times " * 4]
LABELS = {0: "bad", 1: "fair", 2: "good"}
OPTIONS = {
    "bert": {},
    "jina_bert": {},
    "nomic_bert": {},
    "roberta": {},
    "modernbert": {"classifier_pooling": "mean"},
}
# llama.cpp has no place for the first layer of Jina BERT's head, whose only layer has one row.
HEADS = [("bert", 1), ("bert", 3), ("modernbert", 1), ("modernbert", 3)]
FIRST, SECOND = (
    [pytest.param(*HEADS[at], marks=() if at in usual else pytest.mark.thorough) for at in range(4)]
    for usual in ((0, 3), (1, 2))
)
"""Each has two of them by day."""


def saved(kind, folder, rng, labels, task="ForSequenceClassification", **options):
    names = {} if labels == 1 else {"id2label": LABELS}
    stated = {"num_labels": labels, **names, **OPTIONS[kind], **options}
    model = make_encoder(kind, rng, task, **stated)
    save_encoder(model, folder)
    write_word_tokenizer(folder, lowercase=True)
    return model


def written(kind, tmp_path, rng, labels, pooling=4, **options):
    """Write a checkpoint, and a GGUF of it; return the model and the file."""
    model = saved(kind, tmp_path / "model", rng, labels)
    path = tmp_path / "model.gguf"
    return model, write_encoder_gguf(tmp_path / "model", path, pooling, **options)


def output_of(package):
    with open_package(package) as opened:
        output = opened.manifest.inference.output
        return output.embedding_postprocessor, output.classifier


def probabilities_of(package):
    with rdrr.load(package, backend="cpu") as loaded:
        return np.array([list(row.values()) for row in loaded.classify(TEXTS)])


def inputs_of(loaded):
    """Return the ids and the types of pairs."""
    pairs = loaded._codec.encode_texts([("who?", text) for text in TEXTS])
    return [(list(pair.ids), list(pair.types or ())) for pair in pairs]


def write_byte_level(folder, *, is_roberta):
    """Write a byte-level tokenizer of RoBERTa, or one with the pairs and types of BERT."""
    tokens = ["[PAD]", "<s>", "</s>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {token: at for at, token in enumerate(tokens)}
    file = Tokenizer(models.BPE(vocab=vocab | {"th": len(vocab)}, merges=[("t", "h")]))
    file.add_special_tokens(tokens[:4])
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = [("<s>", CLS), ("</s>", SEP)]
    pair = "<s> $A </s> $B:1 </s>:1"
    file.post_processor = (
        processors.RobertaProcessing(ends[1], ends[0], add_prefix_space=False)
        if is_roberta
        else processors.TemplateProcessing(single="<s> $A </s>", pair=pair, special_tokens=ends)
    )
    if not is_roberta:
        file.normalizer = normalizers.NFC()
    file.save(str(folder / "tokenizer.json"))
    settings = {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def first_states(model, package):
    """Return the hidden state of the first token of each text, [texts, width]."""
    with rdrr.load(package, backend="cpu") as loaded:
        ids = [loaded.encode(text) for text in TEXTS]
    body = model.base_model
    return torch.stack([outputs_of(body, row).last_hidden_state[0, 0] for row in ids])


@pytest.mark.parametrize(("kind", "labels"), FIRST)
def test_a_gguf_gives_the_package_of_its_checkpoint(kind, labels, rng, tmp_path):
    _, gguf = written(kind, tmp_path, rng, labels, has_pooler=True)
    convert(tmp_path / "model", tmp_path / "a", quantize="f32")
    convert(gguf, tmp_path / "b", quantize="f32")
    assert output_of(tmp_path / "a") == output_of(tmp_path / "b")
    with open_package(tmp_path / "a") as theirs, open_package(tmp_path / "b") as ours:
        assert ours.graph == theirs.graph
        assert set(ours.manifest.tensors) == set(theirs.manifest.tensors)
        for name in theirs.manifest.tensors:
            assert np.array_equal(ours.dequantize(name), theirs.dequantize(name)), name


@pytest.mark.parametrize(("kind", "labels"), SECOND)
def test_an_export_has_the_head_of_llama_cpp(kind, labels, rng, tmp_path):
    _, theirs = written(kind, tmp_path, rng, labels, has_pooler=True)
    convert(tmp_path / "model", tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    assert payloads(tmp_path / "out.gguf") == payloads(theirs)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert metadata[f"{NAMES[kind]}.pooling_type"] == 4
    names = ["LABEL_0"] if labels == 1 else list(LABELS.values())
    assert metadata[f"{NAMES[kind]}.classifier.output_labels"] == names


def test_a_bert_without_the_first_layer_has_the_scores_of_llama_cpp(rng, tmp_path):
    """llama.cpp's converter leaves the layer out, and states neither a pooling nor one label."""
    model, file = written("bert", tmp_path, rng, 1, pooling=None)

    def as_vector(metadata, tensors):
        metadata.pop("bert.classifier.output_labels")
        tensors["cls.output.weight"] = tensors["cls.output.weight"].reshape(-1)

    path = rewritten(file, as_vector, tmp_path / "vector.gguf")
    result = convert(path, tmp_path / "package", quantize="f32")
    assert any("lacks the first layer of the head" in note for note in result.notes)
    with torch.no_grad():
        scores = model.classifier(first_states(model, tmp_path / "package"))
    expected = torch.sigmoid(scores).numpy()
    assert np.abs(probabilities_of(tmp_path / "package") - expected).max() <= 1e-5
    export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    assert payloads(tmp_path / "out.gguf") == payloads(file)


def test_a_jina_bert_has_a_hyperbolic_tangent_after_its_only_layer(rng, tmp_path):
    model, file = written("jina_bert", tmp_path, rng, 1)
    convert(file, tmp_path / "package", quantize="f32")
    with torch.no_grad():
        states = first_states(model, tmp_path / "package")
        scores = torch.tanh(model.classifier(states))
    expected = torch.sigmoid(scores).numpy()
    assert np.abs(probabilities_of(tmp_path / "package") - expected).max() <= 1e-5
    export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    assert payloads(tmp_path / "out.gguf") == payloads(file)


@pytest.mark.parametrize("labels", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_an_xlm_roberta_is_written_as_bert_and_comes_back(labels, rng, tmp_path):
    """bge-reranker is one: its positions begin after the padding's, and pairs have no types."""
    options = {"vocab_size": 500, "type_vocab_size": 1, "pad_token_id": 3}
    names = {} if labels == 1 else {"id2label": LABELS}
    task = "ForSequenceClassification"
    model = make_encoder(XLM_ROBERTA, rng, task, num_labels=labels, **names, **options)
    save_encoder(model, tmp_path / "model")
    write_unigram(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    theirs = write_encoder_gguf(tmp_path / "model", tmp_path / "model.gguf", 4)
    assert payloads(tmp_path / "out.gguf") == payloads(theirs)
    mine, other = (read_gguf(path).metadata for path in (tmp_path / "out.gguf", theirs))
    assert {key: mine.get(key) for key in other} == other
    convert(theirs, tmp_path / "again", quantize="f32")
    with (
        rdrr.load(tmp_path / "package", backend="cpu") as first,
        rdrr.load(tmp_path / "again", backend="cpu") as second,
    ):
        assert inputs_of(first) == inputs_of(second)
        assert first.classify(TEXTS) == second.classify(TEXTS)
        if labels == 1:
            assert first.rank("who?", TEXTS) == second.rank("who?", TEXTS)


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_pairs_of_byte_level_tokens_have_their_separators(kind, rng, tmp_path):
    """RoBERTa has two between texts and no types, ModernBERT has one."""
    save_encoder(
        make_encoder(kind, rng, "ForSequenceClassification", **OPTIONS[kind]), tmp_path / "m"
    )
    is_roberta = kind == "roberta"
    write_byte_level(tmp_path / "m", is_roberta=is_roberta)
    convert(tmp_path / "m", tmp_path / "package", quantize="f32")
    result = export(tmp_path / "package", tmp_path / "out.gguf", lossless=True)
    assert not any("splits text" in note or "will split" in note for note in result.notes)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert "tokenizer.huggingface.json" not in metadata
    assert metadata["tokenizer.ggml.add_eos_token"] is True
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    with (
        rdrr.load(tmp_path / "package", backend="cpu") as first,
        rdrr.load(tmp_path / "again", backend="cpu") as second,
    ):
        inputs = inputs_of(first)
        assert inputs == inputs_of(second)
        assert inputs[0][0].count(SEP) == (3 if is_roberta else 2)


def _labels(value):
    return lambda metadata, _: metadata.update({"bert.classifier.output_labels": value})


def _columns(name):
    return lambda _, tensors: tensors.update({name: tensors[name][..., 1:].copy()})


DAMAGE = {
    "no labels": (
        lambda metadata, _: metadata.pop("bert.classifier.output_labels"),
        "classifier.output_labels.*expected 3 different names, found nothing",
    ),
    "too few labels": (_labels(["bad", "good"]), "expected 3 different names, found .*bad.*good"),
    "equal labels": (_labels(["bad", "bad", "good"]), "expected 3 different names"),
    "numbers": (_labels([1, 2, 3]), "expected 3 different names"),
    "one name": (_labels("bad"), "expected 3 different names, found bad"),
    "no head": (
        lambda _, tensors: [tensors.pop(f"cls.output.{part}") for part in ("weight", "bias")],
        "head of a ranking model is missing.*expected a tensor cls.output.weight",
    ),
    "a narrow output": (_columns("cls.output.weight"), r"classifier.weight.*expected \(3, 96\)"),
    "a narrow first layer": (_columns("cls.weight"), r"pooler.dense.weight.*expected \(96, 96\)"),
    "a short bias": (_columns("cls.output.bias"), r"classifier.bias.*expected \(3,\)"),
}


@pytest.fixture(scope="module")
def sound(request, tmp_path_factory):
    """A file of a BERT with three labels, which is read."""
    folder = tmp_path_factory.mktemp("sound")
    _, path = written("bert", folder, generator_of(request), 3, has_pooler=True)
    convert(path, folder / "package", dry_run=True)
    return path


@pytest.mark.parametrize("case", DAMAGE)
def test_a_head_that_is_damaged_is_refused(case, sound, tmp_path):
    change, message = DAMAGE[case]
    with pytest.raises(SourceError, match=message) as error:
        convert(rewritten(sound, change, tmp_path / "b.gguf"), tmp_path / "b", dry_run=True)
    assert error.value.hint


def test_a_modernbert_without_the_norm_of_its_head_is_refused(rng, tmp_path):
    _, sound = written("modernbert", tmp_path, rng, 3)
    convert(sound, tmp_path / "package", dry_run=True)

    def without_norm(_, tensors):
        del tensors["cls.norm.weight"]

    with pytest.raises(SourceError, match=r"head is missing.*expected head.norm.weight"):
        convert(rewritten(sound, without_norm, tmp_path / "b.gguf"), tmp_path / "b", dry_run=True)


@pytest.mark.parametrize(
    ("kind", "task", "options", "found"),
    [
        ("modernbert", "ForSequenceClassification", {"classifier_pooling": "cls"}, "pooling cls"),
        ("modernbert", "ForSequenceClassification", {"classifier_bias": True}, "with a bias, gelu"),
        ("bert", "ForTokenClassification", {}, "pooling none"),
        ("jina_bert", "ForSequenceClassification", {}, "tanh, a layer with a bias"),
        ("nomic_bert", "ForSequenceClassification", {}, "tanh, a layer with a bias"),
    ],
)
def test_a_head_that_llama_cpp_lacks_is_refused(kind, task, options, found, rng, tmp_path):
    saved(kind, tmp_path / "model", rng, 3, task, **options)
    convert(tmp_path / "model", tmp_path / "package", quantize="f32")
    with pytest.raises(ConversionError, match=f"no such classification head.*{found}") as error:
        export(tmp_path / "package", tmp_path / "out.gguf")
    assert "safetensors" in str(error.value)


def test_probabilities_that_a_reader_would_not_take_are_noted(rng, tmp_path):
    for problem, count in (("multi_label_classification", 1), ("single_label_classification", 0)):
        folder, package = tmp_path / problem, tmp_path / f"{problem}.rdrr"
        saved("bert", folder, rng, 3, problem_type=problem)
        convert(folder, package, quantize="f32")
        notes = export(package, tmp_path / f"{problem}.gguf").notes
        assert sum("makes probabilities of the scores" in note for note in notes) == count
