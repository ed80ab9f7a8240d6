"""Embeddings in the forms of sentence-transformers, LangChain and LlamaIndex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdrr.embeddings import SentenceEncoder
from rdrr_converter.convert import convert
from rdrr_format.errors import GenerationError
from support.encoders import make_encoder, save_encoder
from support.sentence_checkpoints import PROMPTS, add_modules

TEXTS = ["first text", "second"]
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "embed.md"


@pytest.fixture
def package(rng, tmp_path) -> Path:
    model = make_encoder("bert", rng)
    save_encoder(model, tmp_path / "source")
    add_modules(tmp_path / "source", model.config.hidden_size, "mean")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    return tmp_path / "package"


def test_an_encoder_has_the_methods_of_sentence_transformers(package):
    with SentenceEncoder(package, backend="cpu") as encoder:
        vectors = encoder.encode(TEXTS)
        assert type(vectors) is np.ndarray
        assert vectors.shape == (2, encoder.get_sentence_embedding_dimension())
        assert np.abs(encoder.encode(TEXTS[0]) - vectors[0]).max() <= 1e-6
        query = encoder.model.embed(PROMPTS["query"] + TEXTS[0])[0]
        assert np.abs(encoder.encode_query(TEXTS[0]) - query).max() <= 1e-6
        similar = encoder.similarity(vectors, vectors * 3)
        assert np.abs(similar - vectors @ vectors.T).max() <= 1e-6
        unit = encoder.encode(TEXTS, normalize_embeddings=True)
        assert np.abs(np.linalg.norm(unit, axis=1) - 1).max() <= 1e-6
        with pytest.raises(GenerationError, match="does not fit"):
            encoder.encode("b " * 300)
    with SentenceEncoder(package, truncate=16, backend="cpu") as encoder:
        assert encoder.encode("b " * 300).shape == vectors[0].shape


def snippet(first_line: str) -> dict[str, Any]:
    """Run the snippet of the page that begins with a line, and return its names."""
    blocks = PAGE.read_text(encoding="utf-8").split("```py\n")[1:]
    code = next(block for block in blocks if first_line in block).partition("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.thorough
def test_the_snippet_for_langchain_works(package):
    pytest.importorskip("langchain_core")
    embeddings = snippet("from langchain_core")["RdrrEmbeddings"](str(package))
    documents = np.array(embeddings.embed_documents(TEXTS))
    assert np.abs(documents - embeddings.encoder.encode(TEXTS)).max() <= 1e-6
    assert len(embeddings.embed_query("a")) == documents.shape[1]


@pytest.mark.thorough
def test_the_snippet_for_llama_index_works(package):
    pytest.importorskip("llama_index.core")
    embedding = snippet("from llama_index")["RdrrEmbedding"](str(package))
    documents = np.array(embedding.get_text_embedding_batch(TEXTS))
    assert np.abs(documents - embedding._encoder.encode(TEXTS)).max() <= 1e-6
    assert len(embedding.get_query_embedding("a")) == documents.shape[1]
