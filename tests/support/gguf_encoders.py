"""Write encoders as GGUF with gguf-py, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from support.gguf_entries import add_entry, add_tensor
from support.gguf_unigram import unigram_entries

NAMES = {
    "bert": "bert",
    "nomic_bert": "nomic-bert",
    "modernbert": "modern-bert",
    "jina_bert": "jina-bert-v2",
}
"""llama.cpp's names of the families, by the name of the architecture."""

XLM_ROBERTA = "xlm-roberta"
"""A family that llama.cpp writes as BERT."""

_HEADS = {
    "bert": {"classifier": "classifier.out_proj", "pooler.dense": "classifier.dense"},
    "modernbert": {"classifier": "classifier.out_proj"},
    "jina_bert": {"classifier": "classifier.dense"},
    "nomic_bert": {},
    XLM_ROBERTA: {},
}
"""Names under which gguf-py knows the layers of a head, by those of the checkpoint."""

_PREFIXES = {
    "bert": "bert.",
    "nomic_bert": "nomic_bert.",
    "modernbert": "model.",
    "jina_bert": "bert.",
    XLM_ROBERTA: "roberta.",
}


def write_encoder_gguf(
    checkpoint: Path,
    path: Path,
    pooling: int | None = 1,
    *,
    is_stacked: bool = True,
    has_pooler: bool = False,
) -> Path:
    """Write a saved encoder in float32.

    Args:
        checkpoint: Directory of the checkpoint.
        path: File to write.
        pooling: Number of the pooling: 1 for the mean, 2 for the first token, 4 for scores; None
            to state none, as llama.cpp's converter does for ranking models.
        is_stacked: Whether the gates and ups of Jina BERT are one tensor.
        has_pooler: Whether to write the first layer of BERT's head, which llama.cpp reads and its
            converter leaves out.
    """
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    is_jina = config.get("position_embedding_type") == "alibi"
    kind = "jina_bert" if is_jina else config["model_type"]
    name = NAMES.get(kind, "bert")
    before = config["pad_token_id"] + 1 if kind == XLM_ROBERTA else 0
    config["max_position_embeddings"] -= before
    arch = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, name)
    entries = {f"{name}.{key}": value for key, value in _entries(config, pooling).items()}
    tokens = unigram_entries(config["vocab_size"]) if before else word_entries(checkpoint, config)
    for key, value in {**entries, **tokens}.items():
        add_entry(writer, key, value)
    for ours, values in load_file(checkpoint / "model.safetensors").items():
        if "pooler" in ours and not has_pooler:
            continue
        module, _, ending = ours.removeprefix(_PREFIXES[kind]).rpartition(".")
        known = f"{_HEADS[kind].get(module, module)}.{ending}"
        theirs = names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, ours
        if theirs == "position_embd.weight":
            values = values[before:]
        if "gated_layers" in ours and not is_stacked:
            gates, values = np.split(values, 2)
            add_tensor(writer, theirs.replace("ffn_up", "ffn_gate"), gates, "F32")
        add_tensor(writer, theirs, values, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _entries(config: dict[str, Any], pooling: int | None) -> dict[str, Any]:
    eps = config.get("layer_norm_eps") or config.get("norm_eps")
    ropes = config.get("rope_parameters") or {}
    entries = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": float(eps),
        "attention.causal": False,
        "pooling_type": pooling,
    }
    if pooling in (None, 4):
        labels = config.get("id2label") or {}
        entries["classifier.output_labels"] = [labels[key] for key in sorted(labels)] or None
    if "full_attention" in ropes:
        entries |= {
            "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
            "attention.sliding_window": config["local_attention"],
            "attention.sliding_window_pattern": config["layer_types"].index("full_attention", 1),
        }
    elif ropes:
        entries["rope.freq_base"] = float(ropes["rope_theta"])
    return entries


def word_entries(checkpoint: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return a WordPiece tokenizer as metadata: first pieces marked, later ones without a mark."""
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    ids = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    tokens, kinds = [], []
    for index in range(config["vocab_size"]):
        token = ids.get(index, f"[PAD{index}]")
        is_later = token.startswith("##")
        marked = token[2:] if is_later else f"\u2581{token}"
        tokens.append(token if index in special else marked)
        kinds.append(3 if index in special else 1 if index in ids else 5)
    numbers = {token: index for index, token in special.items()}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.token_type_count": config.get("type_vocab_size"),
        "tokenizer.ggml.unknown_token_id": numbers["[UNK]"],
        "tokenizer.ggml.seperator_token_id": numbers["[SEP]"],
        "tokenizer.ggml.padding_token_id": numbers["[PAD]"],
        "tokenizer.ggml.cls_token_id": numbers["[CLS]"],
        "tokenizer.ggml.mask_token_id": numbers["[MASK]"],
    }
