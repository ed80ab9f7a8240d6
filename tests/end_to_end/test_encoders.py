"""Encoders against transformers: embeddings of packed texts, labels of texts and tokens, masks."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import rdrr
import torch
import transformers
from pyarrow import parquet
from rdrr.evaluate import compare_embeddings
from rdrr_converter.convert import convert
from rdrr_device.capabilities import Capabilities
from rdrr_device.dry_run import DryRunArena
from rdrr_format.errors import (
    ConversionError,
    GenerationError,
    ManifestError,
    SourceError,
    UsageError,
)
from rdrr_manifests.graph.ops import Attention
from rdrr_manifests.validation import validate
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import HIDDEN, SHORT_HIDDEN
from rdrr_runtime.exec.plan import Plan, dry_run_plan
from rdrr_runtime.phases.cache.kv_cache import KvCache
from support.commands import rdrr as run_rdrr
from support.dawn_device import driver_of_dawn, why_no_dawn
from support.encoders import FAMILIES, MASK, make_encoder, outputs_of, save_encoder
from support.gguf_encoders import write_encoder_gguf
from support.jina_bert import SLOPES
from support.selected_tests import is_covering
from support.sentence_checkpoints import add_modules, expected_embedding

LONG = "It was the best of times. " * (4 if is_covering() else 8)
TEXTS = ["a", "", "The quick brown fox", LONG, "worst", "b"]
BOUNDS = {"cpu": 1e-5, "wgpu": 1e-5}
EXACT = {"cpu": {}, "wgpu": {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}}
LATER = [kind for kind in FAMILIES if kind not in ("mpnet", "modernbert")]
# The labels of packed texts are compared for the other families.
PACKED = ("bert", "xlm-roberta")
ON_BOTH = [
    *(("cpu", kind) for kind in PACKED),
    *(
        pytest.param("cpu", kind, marks=pytest.mark.thorough)
        for kind in FAMILIES
        if kind not in PACKED
    ),
    *(("wgpu", kind) for kind in ("mpnet", "modernbert")),
    *(pytest.param("wgpu", kind, marks=pytest.mark.thorough) for kind in LATER),
]


def converted(model, tmp_path, modules=None, **options):
    save_encoder(model, tmp_path / "source")
    if modules:
        add_modules(tmp_path / "source", model.config.hidden_size, modules)
    convert(tmp_path / "source", tmp_path / "package", **{"quantize": "f32", **options})
    return tmp_path / "package"


@pytest.mark.parametrize(("backend", "kind"), ON_BOTH)
def test_embeddings_of_packed_texts_are_those_of_transformers(backend, kind, rng, tmp_path):
    model = make_encoder(kind, rng)
    package = converted(model, tmp_path, "mean")
    assert validate(package).ok
    with rdrr.load(package, backend=backend, **EXACT[backend]) as loaded:
        vectors = loaded.embed(TEXTS)
        assert vectors.dtype == np.float32
        for text, row in zip(TEXTS, vectors, strict=True):
            states = outputs_of(model, loaded.encode(text)).last_hidden_state[0]
            assert np.abs(row - expected_embedding(states, "mean")).max() <= BOUNDS[backend]
        # A text has the same embedding whatever else is in its pass.
        assert np.abs(loaded.embed(TEXTS[3])[0] - vectors[3]).max() <= 1e-6


@pytest.mark.thorough
@pytest.mark.skipif(why_no_dawn() is not None, reason=str(why_no_dawn()))
@pytest.mark.parametrize("kind", FAMILIES)
def test_embeddings_on_dawn_are_those_of_transformers(kind, rng, tmp_path):
    layers = 2 if kind == "modernbert" else 1  # a layer with a window, and one without
    model = make_encoder(kind, rng, num_hidden_layers=layers)
    package = converted(model, tmp_path, "mean")
    with (
        driver_of_dawn(),
        rdrr.load(package, backend="wgpu", webgpu="dawn", **EXACT["wgpu"]) as loaded,
    ):
        for text, row in zip(TEXTS, loaded.embed(TEXTS), strict=True):
            states = outputs_of(model, loaded.encode(text)).last_hidden_state[0]
            assert np.abs(row - expected_embedding(states, "mean")).max() <= BOUNDS["wgpu"]


def test_slopes_of_another_head_are_other_embeddings(rng, tmp_path, monkeypatch):
    model = make_encoder("jina_bert", rng)
    with rdrr.load(converted(model, tmp_path), backend="cpu") as loaded:
        vector, ids = loaded.embed(TEXTS[3])[0], loaded.encode(TEXTS[3])
    for slopes, is_same in ((SLOPES[6], True), (SLOPES[6][::-1], False)):
        monkeypatch.setitem(SLOPES, 6, slopes)
        states = outputs_of(model, ids).last_hidden_state[0]
        expected = expected_embedding(states, "mean", normalize=False)
        assert bool(np.abs(vector - expected).max() <= 1e-5) is is_same


@pytest.mark.parametrize("kind", ["bert", pytest.param("modernbert", marks=pytest.mark.thorough)])
def test_more_texts_than_a_pass_holds_come_back_in_order(kind, rng, tmp_path, monkeypatch):
    monkeypatch.setattr("rdrr_runtime.reference.backend.PACKED_ROWS", 64)
    package = converted(make_encoder(kind, rng), tmp_path)
    texts = ["word " * int(count) for count in rng.integers(0, 20, 30)]
    with rdrr.load(package, backend="cpu") as loaded:
        done = []
        vectors = loaded.embed(texts, progress=lambda at, of: done.append((at, of)))
        assert done == [(at, 30) for at in range(1, 31)]
        alone = np.concatenate([loaded.embed(text) for text in texts])
        assert np.abs(vectors - alone).max() <= 1e-5 * np.abs(alone).max()
        one_by_one = list(loaded.embed_each(iter(texts), at_once=7))
        assert np.abs(np.stack(one_by_one) - alone).max() <= 1e-5 * np.abs(alone).max()
        assert np.array_equal(asyncio.run(loaded.aembed(texts)), vectors)
        assert loaded.embed([]).shape == (0, 96)


def test_a_long_text_is_cut_only_when_asked_for_and_the_result_says_so(rng, tmp_path):
    with rdrr.load(converted(make_encoder("bert", rng), tmp_path), backend="cpu") as loaded:
        texts = ["a", "b " * 300, "c " * 50]
        with pytest.raises(GenerationError, match="or use `truncate`"):
            loaded.embed(texts)
        cut = loaded.embed(texts, truncate=True)
        assert cut.truncated == (1,)
        assert np.array_equal(cut[1], loaded.embed("b " * 254)[0])
        assert loaded.embed(texts, truncate=20).truncated == (1, 2)
        assert loaded.embed("a").truncated == ()


def test_a_checkpoint_without_modules_has_the_mean_of_its_tokens(rng, tmp_path):
    model = make_encoder("distilbert", rng)
    save_encoder(model, tmp_path / "source")
    result = convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    assert any("the mean of a text's tokens" in note for note in result.notes)
    with rdrr.load(tmp_path / "package", backend="cpu") as loaded:
        states = outputs_of(model, loaded.encode("text")).last_hidden_state[0]
        wanted = expected_embedding(states, "mean", normalize=False)
        assert np.abs(loaded.embed("text")[0] - wanted).max() <= 1e-5
        with pytest.raises(ManifestError, match="no causal attention"):
            loaded.generate("text")


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "xlm-roberta"])
def test_labels_of_texts_are_those_of_transformers(kind, rng, tmp_path):
    labels = {0: "bad", 1: "fair", 2: "good"}
    model = make_encoder(kind, rng, "ForSequenceClassification", num_labels=3, id2label=labels)
    with rdrr.load(converted(model, tmp_path), backend="cpu") as loaded:
        for text, row in zip(TEXTS, loaded.classify(TEXTS), strict=True):
            wanted = torch.softmax(outputs_of(model, loaded.encode(text)).logits[0], 0).numpy()
            assert list(row) == list(labels.values())
            assert np.abs(np.array(list(row.values())) - wanted).max() <= 1e-5
        with pytest.raises(ManifestError, match="none for each token"):
            loaded.classify_tokens(TEXTS)


@pytest.mark.parametrize(
    ("kind", "task", "options"),
    [
        ("bert", "ForSequenceClassification", {}),
        ("roberta", "ForSequenceClassification", {}),
        ("distilbert", "ForSequenceClassification", {}),
        ("modernbert", "ForSequenceClassification", {"classifier_pooling": "mean"}),
        ("modernbert", "ForTokenClassification", {"classifier_bias": True}),
        ("bert", "ForTokenClassification", {}),
    ],
)
def test_a_head_for_labels_is_exported_for_transformers(kind, task, options, rng, tmp_path):
    labels = {0: "bad", 1: "fair", 2: "good"}
    model = make_encoder(kind, rng, task, num_labels=3, id2label=labels, **options)
    rdrr.export(converted(model, tmp_path), tmp_path / "out", lossless=True)
    again = getattr(transformers, f"AutoModel{task}").from_pretrained(tmp_path / "out")
    assert type(again) is type(model)
    assert again.config.id2label == labels
    ids = [1, 40, 50, 60, 2]
    logits = [outputs_of(loaded.eval(), ids).logits for loaded in (again, model)]
    assert (logits[0] - logits[1]).abs().max() <= 1e-5


def test_a_head_without_its_first_layer_is_not_exported_for_transformers(rng, tmp_path):
    model = make_encoder("bert", rng, "ForSequenceClassification", num_labels=1)
    save_encoder(model, tmp_path / "source")
    for has_pooler, name in ((True, "whole"), (False, "short")):
        path = tmp_path / f"{name}.gguf"
        write_encoder_gguf(tmp_path / "source", path, 4, has_pooler=has_pooler)
        convert(path, tmp_path / name, quantize="f32")
    rdrr.export(tmp_path / "whole", tmp_path / "out")
    with pytest.raises(ConversionError, match="no class with this classification head"):
        rdrr.export(tmp_path / "short", tmp_path / "again")


def test_the_mean_of_the_tokens_can_be_classified(rng, tmp_path):
    options = {"classifier_pooling": "mean", "norm_bias": True, "num_labels": 2}
    model = make_encoder("modernbert", rng, "ForSequenceClassification", **options)
    with rdrr.load(converted(model, tmp_path), backend="cpu") as loaded:
        row = loaded.classify("some text")[0]
        wanted = torch.softmax(outputs_of(model, loaded.encode("some text")).logits[0], 0).numpy()
        assert np.abs(np.array(list(row.values())) - wanted).max() <= 1e-5


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_cross_encoder_ranks_pairs_with_their_types(kind, rng, tmp_path):
    model = make_encoder(kind, rng, "ForSequenceClassification", num_labels=1)
    with rdrr.load(converted(model, tmp_path), backend="cpu") as loaded:
        texts = ["A number with two divisors.", "A bird.", "x"]
        scores = loaded.rank("What is a prime?", texts)
        for text, score in zip(texts, scores, strict=True):
            (pair,) = loaded._codec.encode_texts([("What is a prime?", text)])
            assert set(pair.types) == {0, 1}
            logit = outputs_of(model, pair.ids, pair.types).logits[0]
            assert abs(score - float(torch.sigmoid(logit))) <= 1e-5


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_labels_of_tokens_are_those_of_transformers(kind, rng, tmp_path):
    model = make_encoder(kind, rng, "ForTokenClassification", num_labels=3)
    with rdrr.load(converted(model, tmp_path), backend="cpu") as loaded:
        (tokens,) = loaded.classify_tokens("go to Rome")
        logits = outputs_of(model, loaded.encode("go to Rome")).logits[0]
        wanted = torch.softmax(logits, -1).numpy()[1:-1]
        assert [(token.start, token.end) for token in tokens][:3] == [(0, 1), (1, 2), (3, 4)]
        for token, row in zip(tokens, wanted, strict=True):
            assert np.abs(np.array(list(token.probabilities.values())) - row).max() <= 1e-5
        with pytest.raises(ManifestError, match="none for a text"):
            loaded.classify("go to Rome")


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "xlm-roberta"])
def test_masks_are_filled_as_transformers_fills_them(kind, rng, tmp_path):
    model = make_encoder(kind, rng, "ForMaskedLM")
    package = converted(model, tmp_path)
    assert rdrr.open_package(package).manifest.mask_token_id == MASK
    with rdrr.load(package, backend="cpu") as loaded:
        text = "a [MASK] b [MASK] c"
        (masks,) = loaded.fill_masks(text, top=4)
        ids = loaded.encode(text)
        rows = torch.softmax(outputs_of(model, ids).logits[0], -1).numpy()
        for place, filled in zip([2, 4], masks, strict=True):
            best = np.sort(rows[place])[::-1][:4]
            assert np.abs(np.array(list(filled.values())) - best).max() <= 1e-5
        with pytest.raises(GenerationError, match="no mask"):
            loaded.fill_masks("a b c")
        with pytest.raises(ManifestError, match="none for a text"):
            loaded.embed("a b c")


def test_an_embedding_model_keeps_no_head_for_masks(rng, tmp_path):
    """all-mpnet-base-v2 states the class that it was trained as."""
    package = converted(make_encoder("mpnet", rng, "ForMaskedLM"), tmp_path, "mean")
    assert not any("lm_head" in name for name in rdrr.open_package(package).manifest.tensors)


def test_what_the_families_cannot_express_is_refused(rng, tmp_path):
    save_encoder(make_encoder("bert", rng), tmp_path / "source")
    file = tmp_path / "source/config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for key, value, error in (
        ("position_embedding_type", "relative_key", ConversionError),
        ("type_vocab_size", 3, SourceError),
        ("is_decoder", True, SourceError),
    ):
        file.write_text(json.dumps({**config, key: value}), encoding="utf-8")
        with pytest.raises(error):
            convert(tmp_path / "source", tmp_path / "package")
    file.write_text(json.dumps({**config, "position_embedding_type": "absolute"}), encoding="utf-8")
    convert(tmp_path / "source", tmp_path / "package")


def written_table(command, path):
    assert run_rdrr(*command, "--truncate", "--out", path).code == 0
    return path


def test_the_commands_read_texts_from_a_file_and_say_what_is_cut(rng, tmp_path, monkeypatch):
    package = converted(make_encoder("bert", rng), tmp_path)
    lines = ['"a text"', "", json.dumps({"text": "b " * 300, "id": 7}), '"a\u2028b"']
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    command = ["embed", package, "--input", file, "--backend", "cpu"]
    refused = run_rdrr(*command)
    assert refused.code == 1
    assert "or use --truncate" in refused.err
    done = run_rdrr(*command, "--truncate", "--json").json()
    assert (done["texts"], done["truncated"]) == (3, [1])
    saved = run_rdrr(*command, "--truncate", "--out", tmp_path / "v.npy")
    assert "the end of 1 texts was left out: 2" in saved.err
    assert np.array_equal(np.load(tmp_path / "v.npy"), np.array(done["embeddings"], np.float32))
    table = parquet.read_table(written_table(command, tmp_path / "v.parquet")).to_pydict()
    assert table["text"] == ["a text", "b " * 300, "a\u2028b"]
    assert np.array_equal(np.array(table["embedding"], np.float32), np.load(tmp_path / "v.npy"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = run_rdrr(*command, "--truncate", "--out", tmp_path / "w.parquet")
    assert (refused.code, "pip install 'pyarrow>=15'" in refused.err) == (2, True)
    assert run_rdrr(*command, "--truncate", "--out", tmp_path / "w.csv").code == 2
    assert run_rdrr(*command, "a text").code == 2
    assert run_rdrr("embed", package, "--backend", "cpu").code == 2
    for line, found in (("{", "not JSON"), ("[1]", "no text"), ('{"text": 1}', "no text")):
        file.write_text(f'"good"\n{line}\n', encoding="utf-8")
        wrong = run_rdrr(*command)
        assert wrong.code == 2
        assert f"line 2: {found}" in wrong.err


@pytest.mark.parametrize(
    ("task", "key", "text"),
    [
        ("ForSequenceClassification", "probabilities", "go"),
        ("ForTokenClassification", "tokens", "go"),
        ("ForMaskedLM", "masks", "go [MASK]"),
    ],
)
def test_the_command_classifies_what_the_head_of_the_model_has(task, key, text, rng, tmp_path):
    options = {} if task == "ForMaskedLM" else {"num_labels": 2}
    package = converted(make_encoder("bert", rng, task, **options), tmp_path)
    done = run_rdrr("classify", package, text, "--backend", "cpu", "--json").json()
    (result,) = done[key]
    assert len(result) == {"probabilities": 2, "tokens": 2, "masks": 1}[key]
    shown = run_rdrr("classify", package, text, "--backend", "cpu", code=0)
    assert "LABEL_0" in shown.out or key == "masks"


def test_what_a_type_costs_is_the_similarity_of_the_embeddings(rng, tmp_path):
    model = make_encoder("bert", rng)
    for kind in ("f32", "q8_0", "q4_k_m"):
        save_encoder(model, tmp_path / "source")
        convert(tmp_path / "source", tmp_path / kind, quantize=kind)
    command = ["diff", tmp_path / "f32", tmp_path / "q8_0", "--embeddings"]
    found = run_rdrr(*command, "--json").json()["embeddings"]
    assert 0.99 < found["least"] < found["mean"] < 1.0
    assert f"at least {found['least']:.6f}" in run_rdrr(*command).out
    with (
        rdrr.load(tmp_path / "f32", backend="cpu") as first,
        rdrr.load(tmp_path / "q4_k_m", backend="cpu") as second,
    ):
        assert compare_embeddings(first, first).least > 1 - 1e-6
        # Narrow rows are stored in the type that takes fewer bytes.
        assert compare_embeddings(first, second).least < found["least"]
        with pytest.raises(UsageError, match="cannot be compared"):
            compare_embeddings(first, second, [])


def test_layers_share_keys_and_values_where_no_pass_reads_those_of_another(rng, tmp_path):
    graph = rdrr.open_package(converted(make_encoder("bert", rng), tmp_path)).graph
    causal = replace(
        graph,
        ops=tuple(
            replace(op, causal=True) if isinstance(op, Attention) else op for op in graph.ops
        ),
    )
    cache, apart = (
        KvCache.allocate(DryRunArena(Capabilities()), some, 64, "f16") for some in (graph, causal)
    )
    assert len(cache.layers) == len(apart.layers) == len(graph.caches) > 1
    assert (len(set(cache.layers.values())), len(set(apart.layers.values()))) == (
        1,
        len(graph.caches),
    )
    assert apart.size == len(graph.caches) * cache.size


@pytest.mark.parametrize("rows", [16, pytest.param(256, marks=pytest.mark.thorough)])
def test_few_texts_run_in_a_shorter_pass_with_the_same_embeddings(rows, rng, tmp_path, monkeypatch):
    short = replace(SHORT_HIDDEN, rows=rows)
    package = converted(make_encoder("mpnet", rng), tmp_path, "mean")
    with rdrr.load(package, backend="wgpu", **EXACT["wgpu"]) as loaded:
        vectors = loaded.embed(TEXTS)
        monkeypatch.setattr(Plan, "hidden", (short, HIDDEN))
        again, few = loaded.embed(TEXTS), loaded.embed(TEXTS[:2])
        with loaded._engine.lend() as backend:
            passes = set(backend._prepared._passes)
    assert passes == {short, HIDDEN}
    assert np.abs(again - vectors).max() <= 1e-6
    assert np.abs(few - vectors[:2]).max() <= 1e-6


def test_a_gpu_has_a_pass_for_few_texts_and_a_software_adapter_has_not(rng, tmp_path):
    package = rdrr.open_package(converted(make_encoder("bert", rng), tmp_path))
    for software, rows in ((False, [256, 8192]), (True, [2048])):
        plan = dry_run_plan(package, Capabilities(software=software), Policy(), 256, "f32")
        assert [plan.rows(spec) for spec in plan.hidden] == rows
