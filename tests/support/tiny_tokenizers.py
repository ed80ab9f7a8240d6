"""Small tokenizers of each kind, as the content of a `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

CONTROL = ("<unk>", "<s>", "</s>", "<|end|>")
"""The special tokens of all of these tokenizers; their ids are the first ones."""

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁", "▁a", "▁an", "▁▁", *"abn.ñ語😀", "ab", "▁.", "�"]
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
FALLBACK: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
WORD_PIECE = {"type": "WordPiece", "prefix": "##", "cleanup": False}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def added(content: str, token_id: int, *, special: bool = True) -> dict[str, Any]:
    """Return an entry of `added_tokens`."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def tokenizer(model: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    """Return a tokenizer.json with the special tokens of `CONTROL`."""
    tokens = [added(content, index) for index, content in enumerate(CONTROL)]
    return {"version": "1.0", "added_tokens": tokens, **parts, "model": model}


def metaspace(scheme: str) -> dict[str, Any]:
    """Return the pre-tokenizer or decoder of SentencePiece models."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def sequence(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a decoder of several steps."""
    return {"type": "Sequence", "decoders": list(steps)}


def byte_level(words: Sequence[str] = ("an", "ab"), **parts: Any) -> dict[str, Any]:
    """Return a byte-level BPE tokenizer with all bytes and some words."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocab = {token: index for index, token in enumerate([*CONTROL, *sorted(ByteLevel.alphabet())])}
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append([word[: end - 1], word[end - 1]])
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    return tokenizer(model, pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL, **parts)


def sentencepiece(
    scheme: str = "first", *, strip: bool = True, pieces: Sequence[str] = _PIECES
) -> dict[str, Any]:
    """Return a BPE tokenizer of SentencePiece's kind, with a token for every byte."""
    vocab = {token: index for index, token in enumerate([*CONTROL, *_BYTES, *pieces])}
    merges = [
        [piece[:cut], piece[cut:]]
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True}
    decoder = sequence([*FALLBACK, STRIP] if strip else FALLBACK)
    return tokenizer(
        {**model, "unk_token": "<unk>", "fuse_unk": True},
        pre_tokenizer=metaspace(scheme),
        decoder=decoder,
    )


def unigram(decoder: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a Unigram tokenizer, with the decoder of T5's unless another is given."""
    vocab = [[token, -float(index)] for index, token in enumerate([*CONTROL, *_BYTES, *_PIECES])]
    return tokenizer(
        {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True},
        pre_tokenizer=metaspace("always"),
        decoder=decoder or metaspace("always"),
    )


def words(decoder: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a tokenizer of whole words with a decoder of choice."""
    return _words(["a", "##b", ".", "an</w>", "n", "'m", "do", "not", "|", ""], decoder)


def text_words(text: str, decoder: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a tokenizer of the words of a text with a decoder of choice."""
    return _words(sorted(set(text.split())), decoder)


def _words(words: Sequence[str], decoder: Mapping[str, Any] | None) -> dict[str, Any]:
    tokens = [*CONTROL, *words]
    vocab = {token: index for index, token in enumerate(tokens)}
    return tokenizer(
        {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
        pre_tokenizer={"type": "WhitespaceSplit"},
        decoder=decoder,
    )


def content(value: Mapping[str, Any]) -> bytes:
    """Return a tokenizer as the bytes of its file."""
    return json.dumps(value).encode()
