"""Tokenizers and models of XLM-RoBERTa as llama.cpp's converter writes them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from support.text_vectors import mapped


def unigram_of_pairs() -> dict[str, Any]:
    """Return a tokenizer as XLM-RoBERTa has it, with two separators between the texts of a pair."""
    start, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    file = mapped()
    processor = file["post_processor"]
    pair = [start, first, end, end, second, end]
    return {**file, "post_processor": {**processor, "pair": pair}}


def write_unigram(folder: Path) -> None:
    """Write such a tokenizer beside a checkpoint."""
    (folder / "tokenizer.json").write_text(json.dumps(unigram_of_pairs()), encoding="utf-8")
    special = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
    settings = {f"{name}_token": token for name, token in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def unigram_entries(vocab_size: int) -> dict[str, Any]:
    """Return such a tokenizer as metadata, with placeholders for rows without a token."""
    file = unigram_of_pairs()
    special = {token["id"] for token in file["added_tokens"] if token["special"]}
    scored = file["model"]["vocab"]
    names = {at: token for at, (token, _) in enumerate(scored)}
    names |= {token["id"]: token["content"] for token in file["added_tokens"]}
    scores = {at: score for at, (_, score) in enumerate(scored)}
    kinds = {index: 3 if index in special else 4 if index >= len(scored) else 1 for index in names}
    kinds[0] = 2
    (table,) = (
        step["precompiled_charsmap"]
        for step in file["normalizer"]["normalizers"]
        if step["type"] == "Precompiled"
    )
    rows = range(vocab_size)
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [names.get(index, f"[PAD{index}]") for index in rows],
        "tokenizer.ggml.scores": [float(scores.get(index, -10000.0)) for index in rows],
        "tokenizer.ggml.token_type": [kinds.get(index, 5) for index in rows],
        "tokenizer.ggml.precompiled_charsmap": list(base64.b64decode(table)),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_sep_token": True,
    }
