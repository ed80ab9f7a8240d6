"""Reranking models of sentence-transformers whose module names the two tokens of the answers."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import rdrr
from rdrr_converter.convert import convert
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import SourceError
from rdrr_manifests.validation import validate
from safetensors.numpy import load_file
from support.checkpoints import make_checkpoint
from support.gguf_files import write_gguf
from support.tiny_models import TinyModel

QUERY, TEXTS = "which?", ["a", "The quick brown fox", "It was the best of times. " * 4]
TYPE = "sentence_transformers"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": f"{TYPE}.base.modules.transformer.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": f"{TYPE}.cross_encoder.modules.logit_score.LogitScore",
    },
]


def reranker(folder, rng, answers=("yes", "no"), *, tied=True, ids=None):
    """Write a language model with the module; return the rows of its output matrix for the answers.

    The tokens of three bytes that no text has become those of the answers and of a part of one.
    """
    tiny = TinyModel("qwen3", 256, (("tie_word_embeddings", tied),))
    make_checkpoint(tiny, folder, rng, dtype="float32", num_hidden_layers=2)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["ye"], *answer_ids = (vocab.pop(byte) for byte in ("ý", "þ", "ÿ"))
    vocab |= dict(zip(("yes", "no"), answer_ids, strict=True))
    tokenizer["model"]["merges"] = [["y", "e"], ["ye", "s"], ["n", "o"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    stated = [vocab[answer] for answer in answers] if ids is None else ids
    (folder / "modules.json").write_text(json.dumps(MODULES), encoding="utf-8")
    (folder / "1_LogitScore").mkdir()
    settings = dict(zip(("true_token_id", "false_token_id"), stated, strict=False))
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    tensors = load_file(folder / "model.safetensors")
    return tensors["model.embed_tokens.weight" if tied else "lm_head.weight"][answer_ids]


def ranked(package, **options):
    with rdrr.load(package, backend="cpu") as loaded:
        return loaded.rank(QUERY, TEXTS, **options)


@pytest.mark.parametrize("tied", [True, False])
def test_the_rows_of_the_two_answers_become_the_head(tied, rng, tmp_path):
    rows = reranker(tmp_path / "source", rng, tied=tied)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    assert validate(tmp_path / "package", deep=True).ok
    with rdrr.open_package(tmp_path / "package") as package:
        assert package.manifest.inference.output.classifier.labels == ("yes", "no")
        assert np.array_equal(package.dequantize("score.weight"), rows)
        assert "lm_head.weight" not in package.manifest.tensors


def test_it_ranks_and_is_exported_like_the_gguf_of_llama_cpp(rng, tmp_path):
    rows = reranker(tmp_path / "source", rng)
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    rdrr.export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    stated = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"]}
    further = {"cls.output.weight": rows}
    write_gguf(tmp_path / "source", tmp_path / "m.gguf", "F32", metadata=stated, further=further)
    tensors = [
        {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(tmp_path / name).tensors}
        for name in ("out.gguf", "m.gguf")
    ]
    assert tensors[0].keys() == tensors[1].keys()
    assert np.array_equal(tensors[0]["cls.output.weight"], rows)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert {key: metadata[key] for key in stated} == stated
    assert "tokenizer.chat_template.rerank" in metadata
    convert(tmp_path / "m.gguf", tmp_path / "theirs", quantize="f32")
    scores = ranked(tmp_path / "package")
    assert scores == ranked(tmp_path / "theirs")
    assert np.ptp(scores) > 1e-3


@pytest.mark.parametrize("answers", [("a", "b"), ("yes",)], ids=["other tokens", "one token"])
def test_a_model_with_other_answers_stays_a_language_model_and_says_so(answers, rng, tmp_path):
    reranker(tmp_path / "source", rng, answers)
    result = convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    named = " and ".join(repr(answer) for answer in answers)
    (note,) = (text for text in result.notes if "answers" in text)
    assert f"{named}: `rank` needs a prompt" in note
    prompt = rdrr.RankPrompt(before="[", yes="a", no="b")
    assert len(ranked(tmp_path / "package", prompt=prompt)) == len(TEXTS)


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["yes", "no"], "no token ids"), ([None, 3], "no token ids"), ([True, 3], "no token ids")],
    ids=["names", "no first id", "a flag"],
)
def test_invalid_answers_are_refused(ids, message, rng, tmp_path):
    reranker(tmp_path / "source", rng, ids=ids)
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "source", tmp_path / "package")


def test_an_answer_beyond_the_output_matrix_is_refused(rng, tmp_path):
    reranker(tmp_path / "source", rng, ids=(10_000, 3))
    path = tmp_path / "source" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"] |= {"yes": 10_000, "no": 3}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(SourceError, match="beyond the output matrix"):
        convert(tmp_path / "source", tmp_path / "package")


def test_a_checkpoint_without_the_folder_of_the_module_is_refused(rng, tmp_path):
    reranker(tmp_path / "source", rng)
    (tmp_path / "source" / "1_LogitScore" / "config.json").unlink()
    with pytest.raises(SourceError, match="configuration of a module is missing"):
        convert(tmp_path / "source", tmp_path / "package")
