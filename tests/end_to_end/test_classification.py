"""Models that classify texts, against transformers' `AutoModelForSequenceClassification`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rdrr
import torch
from rdrr_converter.convert import convert
from rdrr_format.errors import ConversionError, ManifestError, SourceError, UsageError
from rdrr_manifests.validation import validate
from support.checkpoints import make_model, save_checkpoint
from support.classifiers import make_classifier
from support.commands import rdrr as run_rdrr
from support.tiny_models import TinyModel
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

QWEN3 = TinyModel("qwen3", 256, (("tie_word_embeddings", True),))
GEMMA3 = TinyModel(
    "gemma3_text",
    384,
    (("sliding_window", 24), ("query_pre_attn_scalar", 48), ("sliding_window_pattern", 2)),
)
GPT2 = TinyModel("gpt2", 256, (("num_key_value_heads", 4), ("n_inner", 512)))
MODELS = (QWEN3, TinyModel("llama"), GEMMA3, GPT2)
TEXTS = ["a", "The quick brown fox", "It was the best of times, it was the worst of times. " * 2]
BOUNDS = {"cpu": 1e-4, "wgpu": 1e-3}
HINTS = {"cpu": {}, "wgpu": {"computePrecision": "f32"}}


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def converted(tmp_path, **options):
    package = tmp_path / "package"
    convert(tmp_path / "source", package, quantize="f32", **options)
    return package


@pytest.mark.parametrize(
    ("tiny", "backend"),
    [
        *((tiny, "cpu") for tiny in MODELS),
        (QWEN3, "wgpu"),
        *(pytest.param(tiny, "wgpu", marks=pytest.mark.thorough) for tiny in MODELS[1:]),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_probabilities_are_those_of_transformers(backend, tiny, rng, tmp_path):
    names = {0: "bad", 1: "fair", 2: "good"}
    model = make_classifier(tiny, rng, tmp_path / "source", 3, id2label=names)
    package = converted(tmp_path)
    assert validate(package).ok
    with rdrr.load(package, backend=backend, kernel_hints=HINTS[backend]) as loaded:
        rows = loaded.classify(TEXTS)
        for text, row in zip(TEXTS, rows, strict=True):
            logits = torch.from_numpy(logits_of(model, loaded.encode(text)))
            wanted = torch.softmax(logits, 0).numpy()
            assert list(row) == list(names.values())
            assert np.abs(np.array(list(row.values())) - wanted).max() <= BOUNDS[backend]
        # Some class differs from text to text; any one may be improbable in all of them.
        assert np.ptp([list(row.values()) for row in rows], axis=0).max() > 1e-2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "softmax"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, "sigmoid"),
    ],
)
def test_the_kind_of_problem_decides_what_follows_the_logits(options, expected, rng, tmp_path):
    model = make_classifier(QWEN3, rng, tmp_path / "source", 2, **options)
    follow = {"identity": lambda x: x, "sigmoid": torch.sigmoid, "softmax": lambda x: x.softmax(0)}
    with rdrr.load(converted(tmp_path), backend="cpu") as loaded:
        assert loaded.package.manifest.inference.output.classifier.activation == expected
        row = loaded.classify(TEXTS[1])[0]
        logits = torch.from_numpy(logits_of(model, loaded.encode(TEXTS[1])))
        assert list(row) == ["LABEL_0", "LABEL_1"]
        assert np.allclose(list(row.values()), follow[expected](logits).numpy(), atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_head_with_one_label_ranks_the_pairs_of_the_tokenizer(backend, rng, tmp_path):
    model = make_classifier(QWEN3, rng, tmp_path / "source", 1)
    path = str(tmp_path / "source" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    tokenizer.save(path)
    with rdrr.load(converted(tmp_path), backend=backend, kernel_hints=HINTS[backend]) as loaded:
        scores = loaded.rank("which?", TEXTS)
        asked = rdrr.RankPrompt(before="[", pair="{query}|{document}|{instruction}", after="]")
        by_question = loaded.rank("which?", TEXTS, prompt=asked, instruction="find")
        for text, score, answer in zip(TEXTS, scores, by_question, strict=True):
            pair = tokenizer.encode("which?", text).ids
            question = loaded.encode_as_is(f"[which?|{text}|find]")
            for ids, number in ((pair, score), (question, answer)):
                wanted = 1 / (1 + np.exp(-logits_of(model, ids)[0]))
                assert abs(number - wanted) <= BOUNDS[backend]
        assert max(scores) - min(scores) > 1e-2


@pytest.mark.cover
@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("tiny", [QWEN3, GEMMA3, GPT2], ids=lambda model: model.name)
def test_transformers_reads_an_exported_classifier(labels, tiny, rng, tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = make_classifier(tiny, rng, tmp_path / "source", labels)
    rdrr.export(converted(tmp_path), tmp_path / "out", lossless=True)
    convert(tmp_path / "out", tmp_path / "again", quantize="f32")
    read, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    assert np.allclose(logits_of(read.eval(), [5, 6, 7]), logits_of(model, [5, 6, 7]), atol=1e-5)
    blocks = [
        rdrr.open_package(tmp_path / name).manifest.inference.output
        for name in ("package", "again")
    ]
    assert blocks[0].classifier == blocks[1].classifier
    if labels == 1 or tiny is not QWEN3:  # test_gguf_of_rerankers.py has the form of llama.cpp
        with pytest.raises(ConversionError, match="no such classification head"):
            rdrr.export(tmp_path / "package", tmp_path / "m.gguf", to="gguf")


def test_the_commands_print_probabilities_and_scores(rng, tmp_path):
    make_classifier(QWEN3, rng, tmp_path / "source", 1, id2label={0: "relevant"})
    package = converted(tmp_path)
    document = json.loads(
        run_rdrr("classify", package, *TEXTS[:2], "--backend", "cpu", "--json").out
    )
    ranked = json.loads(
        run_rdrr("rank", package, "q", *TEXTS[:2], "--backend", "cpu", "--json").out
    )
    with rdrr.load(package, backend="cpu") as loaded:
        assert document["probabilities"] == loaded.classify(TEXTS[:2])
        assert ranked["scores"] == loaded.rank("q", TEXTS[:2])
    assert "relevant 0." in run_rdrr("classify", package, "a", "--backend", "cpu").out
    shown = run_rdrr("rank", package, "q", *TEXTS[:2], "--backend", "cpu").out
    best = TEXTS[int(np.argmax(ranked["scores"]))]
    assert shown.strip().startswith(best)


def test_what_a_classifier_cannot_do_says_so(rng, tmp_path):
    make_classifier(QWEN3, rng, tmp_path / "source", 2)
    with rdrr.load(converted(tmp_path), backend="cpu") as loaded:
        with pytest.raises(ManifestError, match="makes no embeddings"):
            loaded.embed("text")
        with pytest.raises(ManifestError, match="no output head"):
            loaded.generate("text")
        with pytest.raises(ManifestError, match="has several labels"):
            loaded.rank("query", ["text"])
        with pytest.raises(UsageError, match="wrong type"):
            loaded.classify(3)
    save_checkpoint(make_model(QWEN3, rng, num_hidden_layers=1), tmp_path / "plain")
    convert(tmp_path / "plain", tmp_path / "other")
    with (
        rdrr.load(tmp_path / "other", backend="cpu") as loaded,
        pytest.raises(ManifestError, match="does not classify"),
    ):
        loaded.classify("text")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"id2label": {"0": "a"}}, SourceError, "2 different names"),
        ({"id2label": {"0": "a", "1": "a"}}, SourceError, "2 different names"),
        ({"id2label": ["a", "b"]}, SourceError, "an object of names"),
        ({"problem_type": "guess"}, SourceError, "problem_type"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}},
            ConversionError,
            "activation",
        ),
    ],
)
def test_a_configuration_that_does_not_describe_the_head_is_refused(
    changes, error, message, rng, tmp_path
):
    make_classifier(QWEN3, rng, tmp_path / "source", 2)
    path = tmp_path / "source" / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8"
    )
    with pytest.raises(error, match=message):
        converted(tmp_path)


def test_a_checkpoint_without_the_head_is_refused(rng, tmp_path):
    make_classifier(QWEN3, rng, tmp_path / "source", 2)
    config = json.loads((tmp_path / "source" / "config.json").read_text(encoding="utf-8"))
    model = make_model(QWEN3, rng, num_hidden_layers=2)
    model.model.save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SourceError, match="classification head is missing"):
        converted(tmp_path)
