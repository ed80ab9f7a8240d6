"""Texts are truncated to any limit, and the tokenizer is opened once for texts of one limit."""

from __future__ import annotations

import pytest
from rdrr_runtime.text import tokenizer
from rdrr_runtime.text.tokenizer import TextCodec
from support import tiny_tokenizers as tiny

TEXT = "anabanabxy"


@pytest.fixture
def opened(monkeypatch) -> list[int | None]:
    """The limits of the tokenizers that are opened."""
    limits: list[int | None] = []
    bounded = tokenizer.BoundedTokenizer

    def counted(content: bytes, *, limit: int | None = None):
        limits.append(limit)
        return bounded(content, limit=limit)

    monkeypatch.setattr(tokenizer, "BoundedTokenizer", counted)
    return limits


def test_each_text_has_the_tokens_of_its_limit_in_any_order(opened):
    codec = TextCodec(tiny.content(tiny.byte_level()))
    (whole,) = codec.encode_texts([TEXT])
    for limit in (3, 1, 3, len(whole.ids), 2):
        (text,) = codec.encode_texts([TEXT], limit)
        assert text.ids == whole.ids[:limit]
        assert text.is_truncated == (limit < len(whole.ids))
    assert len(opened) == 6


def test_the_tokenizer_is_opened_once_for_texts_of_one_limit(opened):
    codec = TextCodec(tiny.content(tiny.byte_level()))
    assert [len(codec.encode_texts([TEXT], 3)[0].ids) for _ in range(4)] == [3] * 4
    assert opened == [None, 3]
