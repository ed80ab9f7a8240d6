"""Embedding models against hidden states of transformers, pooled as sentence-transformers does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rdrr
import torch
from rdrr_converter.convert import convert
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, ManifestError, SourceError, UsageError
from rdrr_manifests.validation import validate
from support.checkpoints import make_checkpoint, make_model, write_tokenizer
from support.commands import rdrr as run_rdrr
from support.gguf_embedding import write_embedding_gemma_gguf
from support.gguf_files import write_gguf
from support.gguf_older import payloads
from support.selected_tests import is_covering
from support.sentence_checkpoints import PROMPTS, add_modules, expected_embedding
from support.tiny_models import TinyModel
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

TEXTS = [
    "a",
    "The quick brown fox",
    "It was the best of times, it was the worst of times. " * (2 if is_covering() else 12),
]
BOUNDS = {"cpu": 1e-4, "wgpu": 1e-3}
END = 2


def make_source(folder, rng, pooling, **options):
    """Save a tiny Qwen 3 as Qwen3-Embedding is saved: the body alone, with an untied head stated.

    Its tokenizer ends each text with `</s>`.
    """
    model = make_model(
        TinyModel("qwen3", 256), rng, num_hidden_layers=2, head_dim=48, max_position_embeddings=1024
    )
    model.model.save_pretrained(folder)
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    add_modules(folder, 256, pooling, **options)
    return model


def hidden_states(model, ids):
    with torch.no_grad():
        return model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]


# The test with a window has a mean on the GPU, where the rows come from in every case.
@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("pooling", "normalize", "include_prompt"),
    [("last", True, True), ("mean", True, False), ("cls", False, True)],
)
def test_embeddings_are_those_of_the_formula(
    backend, pooling, normalize, include_prompt, rng, tmp_path
):
    options = {"normalize": normalize, "include_prompt": include_prompt}
    model = make_source(tmp_path / "source", rng, pooling, **options)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    hints = {"computePrecision": "f32"} if backend == "wgpu" else {}
    with rdrr.load(tmp_path / "package", backend=backend, kernel_hints=hints) as loaded:
        for prompt in (None, "query"):
            before = PROMPTS[prompt] if prompt else ""
            vectors = loaded.embed(TEXTS, prompt=prompt)
            assert vectors.dtype == np.float32
            assert vectors.shape == (len(TEXTS), 256)
            skipped = 0 if include_prompt else len(before.encode())
            for text, row in zip(TEXTS, vectors, strict=True):
                ids = loaded.encode(before + text)
                assert ids[-1] == END
                wanted = expected_embedding(
                    hidden_states(model, ids), pooling, normalize=normalize, skipped=skipped
                )
                assert np.abs(row - wanted).max() <= BOUNDS[backend] * np.abs(wanted).max()
            alone = loaded.embed(TEXTS[1], prompt=prompt)
            assert np.abs(alone[0] - vectors[1]).max() <= 1e-6


@pytest.mark.thorough
def test_a_quantized_embedding_model_runs_on_the_gpu(rng, tmp_path):
    model = make_source(tmp_path / "source", rng, "last", default="query")
    convert(tmp_path / "source", tmp_path / "package", quantize="q4_k_m")
    package = rdrr.open_package(tmp_path / "package")
    assert package.manifest.model_type == "embedding"
    assert validate(tmp_path / "package").ok
    stored = {
        name: torch.from_numpy(np.array(package.dequantize(name)))
        for name in package.manifest.tensors
    }
    assert not model.load_state_dict(stored, strict=False).unexpected_keys
    with rdrr.load(tmp_path / "package", backend="wgpu") as loaded:
        vectors = loaded.embed(TEXTS)
        for text, row in zip(TEXTS, vectors, strict=True):
            ids = loaded.encode(PROMPTS["query"] + text)
            wanted = expected_embedding(hidden_states(model, ids), "last")
            assert float(row @ wanted) > 0.998


def bidirectional(rng, folder):
    """Convert a model whose tokens see later ones; return it and its linear layers."""
    tiny = TinyModel("gemma3_text", 256, (("sliding_window", 24), ("sliding_window_pattern", 2)))
    options = {"num_hidden_layers": 3, "use_bidirectional_attention": True}
    model = make_model(tiny, rng, max_position_embeddings=1024, **options)
    model.model.save_pretrained(folder / "source")
    write_tokenizer(folder / "source")
    layers = [rng.normal(0, 0.1, (320, 256)), rng.normal(0, 0.1, (96, 320))]
    linear = {"layers": layers, "biases": [rng.normal(0, 0.1, 320), None]}
    add_modules(folder / "source", 256, "mean", **linear)
    convert(folder / "source", folder / "package", quantize="f32")
    return model, linear


@pytest.mark.parametrize(("backend", "bound"), [("cpu", 1e-4), ("wgpu", 1e-3)])
def test_bidirectional_attention_sees_later_tokens_within_the_window(backend, bound, rng, tmp_path):
    model, linear = bidirectional(rng, tmp_path)
    hints = {"computePrecision": "f32"} if backend == "wgpu" else {}
    with rdrr.load(tmp_path / "package", backend=backend, kernel_hints=hints) as loaded:
        vectors = loaded.embed(TEXTS)
        for text, row in zip(TEXTS, vectors, strict=True):
            states = hidden_states(model, loaded.encode(text))
            wanted = expected_embedding(states, "mean", **linear)
            assert row.shape == (96,)
            assert np.abs(row - wanted).max() <= bound * np.abs(wanted).max()
        with pytest.raises(ManifestError, match="no causal attention"):
            loaded.generate("text")


def embedded(package, texts=TEXTS, **options):
    with rdrr.load(package, backend="cpu") as loaded:
        return loaded.embed(texts, **options)


def described(package):
    return rdrr.open_package(package).manifest.inference.output.embedding_postprocessor


@pytest.mark.parametrize(
    ("pooling", "options"),
    [("last", {"default": "query"}), ("mean", {"normalize": False, "include_prompt": False})],
)
def test_an_exported_embedding_model_gives_the_same_embeddings(pooling, options, rng, tmp_path):
    from transformers import AutoModel

    model = make_source(tmp_path / "source", rng, pooling, **options)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    rdrr.export(tmp_path / "package", tmp_path / "out", lossless=True)
    convert(tmp_path / "out", tmp_path / "again", quantize="f32")
    assert described(tmp_path / "again") == described(tmp_path / "package")
    wanted = embedded(tmp_path / "package", prompt="query")
    assert np.array_equal(embedded(tmp_path / "again", prompt="query"), wanted)
    read, info = AutoModel.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert type(read) is type(model.model)
    assert not any(info.values())
    with torch.no_grad():
        states = read.eval()(torch.tensor([[5, 6, 7]]), use_cache=False).last_hidden_state[0]
    assert torch.equal(states, hidden_states(model, [5, 6, 7]))


def test_linear_layers_and_attention_to_later_tokens_are_exported(rng, tmp_path):
    from transformers import AutoModel

    model, _ = bidirectional(rng, tmp_path)
    rdrr.export(tmp_path / "package", tmp_path / "out", lossless=True)
    convert(tmp_path / "out", tmp_path / "again", quantize="f32")
    assert described(tmp_path / "again") == described(tmp_path / "package")
    assert np.array_equal(embedded(tmp_path / "again"), embedded(tmp_path / "package"))
    read = AutoModel.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = rng.integers(3, 259, 80).tolist()
    with torch.no_grad():
        states = read(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    assert torch.equal(states, hidden_states(model, ids))
    with pytest.raises(ConversionError, match="no such linear layers after the pooling"):
        rdrr.export(tmp_path / "package", tmp_path / "m.gguf", to="gguf")


@pytest.mark.parametrize("count", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_a_gguf_of_embedding_gemma_is_read_and_written(count, rng, tmp_path):
    tiny = TinyModel("gemma3_text", 256, (("sliding_window", 24), ("query_pre_attn_scalar", 64)))
    options = {"num_hidden_layers": 6, "use_bidirectional_attention": True, "head_dim": 64}
    sizes = {"max_position_embeddings": 1024, "intermediate_size": 96}
    model = make_model(tiny, rng, **options, **sizes)
    model.model.save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source")
    layers = [rng.normal(0, 0.1, (320, 256)), rng.normal(0, 0.1, (96, 320))][:count]
    add_modules(tmp_path / "source", 256, "mean", layers=layers, biases=[None] * count)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    gguf_path = tmp_path / "own.gguf"
    write_embedding_gemma_gguf(model.model, tmp_path / "source", gguf_path, layers)
    rdrr.export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    ours, theirs = payloads(tmp_path / "out.gguf"), payloads(gguf_path)
    assert set(ours) == set(theirs)
    for name, (shape, kind, data) in theirs.items():
        assert ours[name][:2] == (shape, kind), name
        result, wanted = (np.frombuffer(payload, np.float32) for payload in (ours[name][2], data))
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2**-22, err_msg=name)
    mine, other = (read_gguf(path).metadata for path in (tmp_path / "out.gguf", gguf_path))
    assert {key: mine.get(key) for key in other} == other
    convert(gguf_path, tmp_path / "again", quantize="f32")
    first, second = (rdrr.open_package(tmp_path / one) for one in ("package", "again"))
    assert second.graph == first.graph
    assert [projection.output_size for projection in described(tmp_path / "again").projections] == (
        [320, 96] if count else []
    )
    assert np.abs(embedded(tmp_path / "again") - embedded(tmp_path / "package")).max() < 1e-5


@pytest.mark.parametrize(
    "pooling", ["last", pytest.param("mean", marks=pytest.mark.thorough), "cls"]
)
def test_a_gguf_states_the_pooling(pooling, rng, tmp_path):
    make_source(tmp_path / "source", rng, pooling)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    result = rdrr.export(tmp_path / "package", tmp_path / "m.gguf", to="gguf", lossless=True)
    assert any("no place for the prompts document, query" in note for note in result.notes)
    kinds = {"mean": 1, "cls": 2, "last": 3}
    assert read_gguf(tmp_path / "m.gguf").metadata["qwen3.pooling_type"] == kinds[pooling]
    done = convert(tmp_path / "m.gguf", tmp_path / "again", quantize="f32")
    assert any("embeddings are normalized" in note for note in done.notes)
    package = rdrr.open_package(tmp_path / "again")
    assert package.manifest.model_type == "embedding"
    text = PROMPTS["query"] + TEXTS[1]
    assert np.array_equal(embedded(tmp_path / "again", text), embedded(tmp_path / "package", text))


@pytest.mark.parametrize(
    ("kind", "error", "why"),
    [
        (9, ConversionError, "pooling cannot be converted"),
        ("mean", ConversionError, "pooling cannot be converted"),
        (4, SourceError, "head of a ranking model is missing"),
    ],
)
def test_another_pooling_of_a_gguf_is_refused(kind, error, why, rng, tmp_path):
    make_checkpoint(TinyModel("qwen3"), tmp_path / "source", rng, num_hidden_layers=1)
    write_gguf(tmp_path / "source", tmp_path / "m.gguf", metadata={"qwen3.pooling_type": kind})
    with pytest.raises(error, match=why):
        convert(tmp_path / "m.gguf", tmp_path / "package")
    write_gguf(tmp_path / "source", tmp_path / "n.gguf", metadata={"qwen3.pooling_type": 0})
    convert(tmp_path / "n.gguf", tmp_path / "package")
    assert rdrr.open_package(tmp_path / "package").manifest.model_type == "transformer"


def test_the_command_prints_and_saves_them(rng, tmp_path):
    make_source(tmp_path / "source", rng, "last")
    convert(tmp_path / "source", tmp_path / "package", quantize="f16")
    command = ["embed", tmp_path / "package", "one", "two", "--backend", "cpu", "--prompt", "query"]
    printed = json.loads(run_rdrr(*command, "--json").out)
    run_rdrr(*command, "--out", tmp_path / "found.npy")
    saved = np.load(tmp_path / "found.npy")
    assert saved.shape == (2, 256)
    assert np.array_equal(saved, np.array(printed["embeddings"], np.float32))


def test_what_is_no_embedding_model_or_cannot_be_one_says_so(shallow_checkpoint, rng, tmp_path):
    convert(shallow_checkpoint, tmp_path / "plain")
    with (
        rdrr.load(tmp_path / "plain", backend="cpu") as loaded,
        pytest.raises(ManifestError, match="no embedding model"),
    ):
        loaded.embed("text")
    make_source(tmp_path / "source", rng, "last")
    convert(tmp_path / "source", tmp_path / "package")
    with rdrr.load(tmp_path / "package", backend="cpu") as loaded:
        with pytest.raises(UsageError, match="no such prompt"):
            loaded.embed("text", prompt="title")
        with pytest.raises(ManifestError, match="has no output head"):
            loaded.generate("text")
    pooling = tmp_path / "source" / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text(encoding="utf-8"))
    pooling.write_text(json.dumps(settings | {"pooling_mode_max_tokens": True}), encoding="utf-8")
    with pytest.raises(ConversionError, match="pooling cannot be converted"):
        convert(tmp_path / "source", tmp_path / "other")
    pooling.unlink()
    with pytest.raises(SourceError, match="configuration of a module is missing"):
        convert(tmp_path / "source", tmp_path / "other")
