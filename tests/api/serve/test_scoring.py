"""Embeddings, ranking and classification over HTTP give what the model gives."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import openai
import pytest
import rdrr
from rdrr.serve.worker import Worker
from support.checkpoints import make_model, write_tokenizer
from support.classifiers import make_classifier
from support.sentence_checkpoints import add_modules
from support.serving import serving
from support.tiny_models import TinyModel

TINY = TinyModel("qwen3", 256)
TEXTS = ["a text", "another", "a third one"]


def embedder(folder, rng):
    make_model(TINY, rng).model.save_pretrained(folder)
    write_tokenizer(folder)
    add_modules(folder, 256, "mean")


def classifier(folder, rng):
    make_classifier(TINY, rng, folder, 3)


def ranker(folder, rng):
    make_classifier(TINY, rng, folder, 1)


@contextmanager
def served(make, folder, rng):
    make(folder / "source", rng)
    rdrr.convert(folder / "source", folder / "package", quantize="f32")
    worker = Worker(
        lambda: rdrr.load(folder / "package", backend="cpu", context=64), slots=1, queue=4
    )
    worker.start()
    try:
        with (
            serving(worker) as server,
            rdrr.load(folder / "package", backend="cpu", context=64) as model,
        ):
            yield server, model
    finally:
        worker.stop(60)


def post(server, path: str, body: dict) -> tuple[int, dict]:
    status, answer = server.ask("POST", path, json.dumps(body).encode())
    return status, json.loads(answer)


def test_embeddings_are_those_of_the_model(rng, tmp_path):
    with served(embedder, tmp_path, rng) as (server, model):
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            packed = client.embeddings.create(model="small-llama", input=TEXTS)
            plain = client.embeddings.create(
                model="small-llama", input=TEXTS[0], encoding_format="float", dimensions=64
            )
            assert post(server, "/v1/embeddings", {"input": "a", "dimensions": 999})[0] == 400
            assert post(server, "/v1/embeddings", {"input": []})[0] == 400
            with pytest.raises(openai.BadRequestError):
                client.completions.create(model="small-llama", prompt="a")
        wanted = model.embed(TEXTS)
        rows = np.array([entry.embedding for entry in packed.data], np.float32)
        assert np.array_equal(rows, wanted)
        cut = wanted[0, :64] / np.linalg.norm(wanted[0, :64])
        assert np.allclose(plain.data[0].embedding, cut, atol=1e-6)
        _, answer = post(server, "/api/embed", {"model": "small-llama", "input": TEXTS})
        assert np.array_equal(np.array(answer["embeddings"], np.float32), wanted)
        assert answer["prompt_eval_count"] == packed.usage.prompt_tokens
        _, older = post(server, "/api/embeddings", {"model": "small-llama", "prompt": TEXTS[0]})
        assert np.allclose(older["embedding"], wanted[0], atol=1e-6)
        _, shown = post(server, "/api/show", {"model": "small-llama"})
        assert "embedding" in shown["capabilities"]
        assert packed.usage.prompt_tokens == sum(len(model.encode(text)) for text in TEXTS)


def test_ids_are_those_of_a_text_or_refused(rng, tmp_path):
    with served(embedder, tmp_path, rng) as (server, model):
        (wanted,), ids, end = model.embed(["another"]), model.encode_as_is("another"), 2
        assert model.decode([end]) == ""
        for sent, status in ((ids, 200), ([end, *ids], 400), ([end], 400)):
            answered, answer = post(server, "/v1/embeddings", {"input": sent})
            assert answered == status
            if status == 200:
                assert np.allclose(answer["data"][0]["embedding"], wanted, atol=1e-6)


def test_documents_are_ranked_by_their_scores(rng, tmp_path):
    with served(ranker, tmp_path, rng) as (server, model):
        scores = model.rank("which?", TEXTS)
        asked = {"query": "which?", "documents": [TEXTS[0], *({"text": t} for t in TEXTS[1:])]}
        status, answer = post(server, "/v1/rerank", asked | {"return_documents": True})
        assert status == 200
        order = [result["index"] for result in answer["results"]]
        assert order == sorted(range(3), key=lambda index: -scores[index])
        for result in answer["results"]:
            assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-6)
            assert result["document"]["text"] == TEXTS[result["index"]]
        assert len(post(server, "/v1/rerank", asked | {"top_n": 2})[1]["results"]) == 2


def test_labels_come_with_their_probabilities(rng, tmp_path):
    with served(classifier, tmp_path, rng) as (server, model):
        (wanted,) = model.classify("a text")
        status, answer = post(server, "/v1/classify", {"input": "a text"})
        (entry,) = answer["data"]
        assert status == 200
        assert dict(zip(entry["labels"], entry["probs"], strict=True)) == pytest.approx(wanted)
        assert entry["label"] == max(wanted, key=wanted.__getitem__)
        status, answer = post(server, "/v1/embeddings", {"input": "a text"})
        assert (status, "classif" in answer["error"]["message"]) == (400, True)
