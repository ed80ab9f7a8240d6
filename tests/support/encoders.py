"""Tiny encoders with random weights, built by transformers, and saved with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.tiny_models import VOCAB

JINA_BERT = "jina_bert"
"""The encoder that transformers does not have."""

CLS, SEP, MASK = 1, 2, 3
"""Ids of `[CLS]`, `[SEP]` and `[MASK]`; 0 is `[PAD]`."""

_USUAL = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": CLS,
    "eos_token_id": SEP,
}
_OF_DISTILBERT = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {"pad_token_id": 3},
    "distilbert": {},
    "mpnet": {},
    "nomic_bert": {},
    "modernbert": {
        "local_attention": 24,
        "num_hidden_layers": 4,
        "cls_token_id": CLS,
        "sep_token_id": SEP,
    },
    JINA_BERT: {"num_attention_heads": 6},
}
"""The encoders by `model_type`, with the keys in which they differ from the usual ones."""


def make_encoder(kind: str, rng: np.random.Generator, task: str = "", **options: Any) -> Any:
    """Return an encoder, in float32, with random weights, norms and biases.

    Args:
        kind: One of `FAMILIES`.
        rng: Source of the weights.
        task: What transformers' class has in addition, such as `ForMaskedLM`; empty for nothing.
        options: Further keys of its configuration.
    """
    import torch
    import transformers
    from support import jina_bert

    settings = {**_USUAL, **FAMILIES[kind], **options}
    if kind == "distilbert":
        settings = {_OF_DISTILBERT.get(key, key): value for key, value in settings.items()}
    is_jina = kind == JINA_BERT
    config = transformers.AutoConfig.for_model("bert" if is_jina else kind, **settings)
    classes = {"": "AutoModel", "ForMaskedLM": "AutoModelForMaskedLM"}
    name = classes.get(task, f"AutoModel{task}")
    model = getattr(transformers, name).from_config(config, dtype=torch.float32)
    if is_jina:
        model = jina_bert.with_gates(model)
    with torch.no_grad():
        for parameter in model.parameters():
            is_vector = parameter.dim() == 1
            scale, mean = (0.3, 0.5) if is_vector else (1.5 / np.sqrt(parameter.shape[-1]), 0.0)
            values = rng.normal(mean, scale, tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
    if is_jina:
        jina_bert.remove_positions(model)
    return model.eval()


def is_jina_bert(model: Any) -> bool:
    """Return whether a model is a Jina BERT."""
    return getattr(model.config, "position_embedding_type", None) == "alibi"


def save_encoder(model: Any, folder: Path) -> None:
    """Save a model with a tokenizer of words that puts `[CLS]` and `[SEP]` around texts."""
    from support.jina_bert import save_as_jina_bert

    if is_jina_bert(model):
        save_as_jina_bert(model, folder)
    else:
        model.save_pretrained(folder)
    write_word_tokenizer(folder)


def write_word_tokenizer(folder: Path, *, lowercase: bool = False) -> None:
    """Write a WordPiece tokenizer of single letters, whose pairs have types."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(code) for code in range(33, 127)]
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *letters, *(f"##{x}" for x in letters)]
    tokenizer = Tokenizer(
        models.WordPiece(vocab={token: at for at, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(tokens[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    # Published files ask for both, which would change texts without a word.
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(16)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "mask_token": "[MASK]"}
    if lowercase:  # as published files have them
        settings |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        settings |= {"unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def outputs_of(model: Any, ids: list[int], types: list[int] | None = None) -> Any:
    """Return what transformers computes of the token ids of one text, none of which is padding."""
    import torch
    from support.jina_bert import alibi_mask

    mask = torch.ones(1, len(ids)).long()
    if is_jina_bert(model):
        mask = alibi_mask(model.config.num_attention_heads, len(ids))
    given = {"input_ids": torch.tensor([ids]), "attention_mask": mask}
    if types is not None and getattr(model.config, "type_vocab_size", 1) > 1:
        given["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        return model(**given)
