"""The steps of a `tokenizer.json`: normalizer, pre-tokenizer, decoder and model.

They are those of the tokenizers that transformers makes from the same files, for SentencePiece
models like those of Llama and Gemma and for byte-level BPE. Other SentencePiece models are
normalized as SentencePiece itself does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.gguf.pretokenizers import Pretokenizer, sentencepiece_parts
from rdrr_converter.tokenizer.sentencepiece import UNIGRAM, SentencePieceModel

_META = "▁"


def sentencepiece_steps(model: SentencePieceModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return normalizer, pre-tokenizer, decoder and model of a SentencePiece vocabulary.

    Args:
        model: The vocabulary.
        settings: Content of tokenizer_config.json.
    """
    if model.type == UNIGRAM:
        return _unigram_steps(model)
    tokens = {piece.text: index for index, piece in enumerate(model.pieces)}
    unknown = None
    if 0 <= model.unknown_id < len(model.pieces):
        unknown = model.pieces[model.unknown_id].text
    bpe = _bpe(
        tokens,
        _implied_merges(tokens),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )
    stated = settings.get("add_prefix_space")
    has_prefix = stated if isinstance(stated, bool) else model.adds_prefix
    if model.charsmap or model.removes_spaces:
        return _normalized_steps(replace(model, adds_prefix=has_prefix)) | {"model": bpe}
    scheme = "always" if settings.get("legacy") is True else "first"
    return metaspace_steps(scheme if has_prefix else "never") | {"model": bpe}


def metaspace_steps(scheme: str) -> dict[str, Any]:
    """Return normalizer, pre-tokenizer and decoder of models like those of Llama and Gemma.

    Transformers repeats the prefix after special tokens if the settings say `legacy`, and adds none
    to a text that begins with a space.

    Args:
        scheme: Where a space is put in front: `always`, at the beginning of each text between
            special tokens; `first`, at that of a whole text; or `never`.
    """
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _META,
            "prepend_scheme": scheme,
            "split": False,
        },
        "decoder": sentencepiece_parts(prefix=scheme != "never")[1],
    }


def byte_level_steps(
    vocabulary: Mapping[str, Any], merges: bytes, how: Pretokenizer, where: Path
) -> dict[str, Any]:
    """Return normalizer, pre-tokenizer, decoder and model of a byte-level vocabulary.

    Args:
        vocabulary: Content of vocab.json: ids by token.
        merges: Content of merges.txt.
        how: How text is split.
        where: Folder of the files, for messages.

    Raises:
        SourceError: A token has no id, or a merge makes no token.
    """
    tokens = {word: index for word, index in vocabulary.items() if type(index) is int}
    if len(tokens) != len(vocabulary):
        raise SourceError("a token has no id", where=where / "vocab.json", expected="integers")
    pairs = _stated_merges(merges, tokens, where / "merges.txt")
    return {
        "normalizer": how.normalizer,
        "pre_tokenizer": how.steps,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": _bpe(tokens, pairs, ignore_merges=how.ignores_merges),
    }


def wordpiece_steps(
    content: bytes, unknown: str, settings: Mapping[str, Any], where: Path
) -> dict[str, Any]:
    """Return normalizer, pre-tokenizer, decoder and model of a WordPiece vocabulary.

    Args:
        content: Content of vocab.txt: a token in each line.
        unknown: The token for words that no tokens make up.
        settings: Content of tokenizer_config.json. Without `do_lower_case` in it, texts are written
            in small letters if the vocabulary has no others.
        where: The file, for messages.

    Raises:
        SourceError: The file is not text, or does not have the unknown token.
    """
    vocab = {token: index for index, token in enumerate(_whole_lines(content, where))}
    if unknown not in vocab:
        raise SourceError("a token is missing", where=where, expected=unknown)
    words = (token for token in vocab if not (token.startswith("[") or token.startswith("<")))
    is_small = not any(word != word.lower() for word in words)
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars") is not False,
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", is_small) is True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def _unigram_steps(model: SentencePieceModel) -> dict[str, Any]:
    return {
        **_normalized_steps(model),
        "model": {
            "type": "Unigram",
            "unk_id": model.unknown_id,
            "vocab": [[piece.text, piece.score] for piece in model.pieces],
            "byte_fallback": model.byte_fallback,
        },
    }


def _normalized_steps(model: SentencePieceModel) -> dict[str, Any]:
    """Return the steps of a text that is normalized as SentencePiece does it."""
    normalizer, decoder = sentencepiece_parts(
        prefix=model.adds_prefix, charsmap=model.charsmap, removes_spaces=model.removes_spaces
    )
    return {"normalizer": normalizer, "pre_tokenizer": None, "decoder": decoder}


def _bpe(tokens: Mapping[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": dict(tokens),
        "merges": merges,
    }


def _implied_merges(tokens: Mapping[str, int]) -> list[list[str]]:
    """Return the merges of a vocabulary: every pair that makes a token, in the order of the tokens.

    The order of a token's pairs, by the length of the left one, is that of transformers.
    """
    return [
        [text[:cut], text[cut:]]
        for text, _ in sorted(tokens.items(), key=lambda item: item[1])
        for cut in range(1, len(text))
        if text[:cut] in tokens and text[cut:] in tokens
    ]


def _stated_merges(content: bytes, tokens: Mapping[str, int], where: Path) -> list[list[str]]:
    """Return the merges of `merges.txt`, without its heading.

    Raises:
        SourceError: A line is not a pair of tokens that make a token.
    """
    merges = []
    for line in _lines(content, where):
        pair = line.split(" ")
        if len(pair) != 2 or "".join(pair) not in tokens:
            raise SourceError(
                "a merge makes no token", where=where, expected="two tokens", found=line
            )
        merges.append(pair)
    return merges


def _whole_lines(content: bytes, where: Path) -> list[str]:
    """Return the lines of a file, of which the last may be empty."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise SourceError("not a text in UTF-8", where=where, found=error) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _lines(content: bytes, where: Path) -> Iterator[str]:
    for number, line in enumerate(_whole_lines(content, where)):
        # The first line may state a version; a merge of "#version:" is no token of any vocabulary.
        if line.strip() and not (number == 0 and line.startswith("#version")):
            yield line
