"""The bytes of tokens, which are those of a text whatever the tokens cut."""

from __future__ import annotations

import pytest
from rdrr_runtime.text.tokenizer import TextCodec
from support import tiny_tokenizers as tiny

UNIGRAM = tiny.sequence([{"type": "ByteFallback"}, tiny.metaspace("always")])
KINDS = {
    "byte-level": (tiny.byte_level(), ""),
    "SentencePiece": (tiny.sentencepiece(), " "),
    "SentencePiece without a prefix": (tiny.sentencepiece("never", strip=False), ""),
    "Unigram with bytes": (tiny.unigram(UNIGRAM), " "),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_all_tokens_are_those_of_the_text(kind, rng):
    description, space = KINDS[kind]
    codec = TextCodec(tiny.content(description))
    for _ in range(40):
        text = "a" + "".join(rng.choice(list("ab n.ñ語😀é"), size=rng.integers(0, 12)))
        raw = b"".join(map(codec.token_bytes, codec.encode_as_is(text)))
        assert raw == (space + text).encode()


def test_a_part_of_a_character_has_its_own_byte_and_a_special_token_has_none():
    codec = TextCodec(tiny.content(tiny.byte_level()))
    parts = [codec.token_bytes(token) for token in codec.encode_as_is("😀")]
    assert len(parts) > 1
    assert b"\xef\xbf\xbd" not in parts
    special = [token for text, token in special_tokens(codec) if codec.is_special(token)]
    assert {codec.token_bytes(token) for token in special} == {b""}


def special_tokens(codec: TextCodec) -> list[tuple[str, int]]:
    return [(text, codec.encode_as_is(text)[0]) for text in codec.added_tokens()]
