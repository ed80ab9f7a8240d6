"""A checkpoint whose most probable next token follows from the current one by a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HEAD, INNER = 32, 64


def write_scripted(
    folder: Path, tokenizer: Mapping[str, Any], ids: Sequence[int], *, end: int | None, **files: Any
) -> Path:
    """Write a checkpoint of a model that continues the first of some ids with the others.

    Args:
        folder: Where to write it.
        tokenizer: Content of tokenizer.json.
        ids: Different ids, each of which follows the one before; the last one follows itself.
        end: The end-of-text id; it follows all other ids. None for a model without one.
        files: Contents of further JSON files, by their names without the suffix.
    """
    known = [*tokenizer["model"]["vocab"], *tokenizer["added_tokens"]]
    rows = max(32, -(-len(known) // 32) * 32)
    follows = dict.fromkeys(range(rows), end or 0) | dict(pairwise(ids))
    follows[ids[-1]] = ids[-1] if end is None else end
    head = np.zeros((rows, rows), np.float32)
    for token_id, following in follows.items():
        head[following, token_id] = 1
    zeros = {
        "self_attn.q_proj": (HEAD, rows),
        "self_attn.k_proj": (HEAD, rows),
        "self_attn.v_proj": (HEAD, rows),
        "self_attn.o_proj": (rows, HEAD),
        "mlp.gate_proj": (INNER, rows),
        "mlp.up_proj": (INNER, rows),
        "mlp.down_proj": (rows, INNER),
    }
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": np.eye(rows, dtype=np.float32),
        "model.norm.weight": np.ones(rows, np.float32),
        "lm_head.weight": head,
        f"{layer}input_layernorm.weight": np.ones(rows, np.float32),
        f"{layer}post_attention_layernorm.weight": np.ones(rows, np.float32),
    }
    tensors |= {f"{layer}{name}.weight": np.zeros(zeros[name], np.float32) for name in zeros}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": rows,
        "hidden_size": rows,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "eos_token_id": end,
    }
    for name, value in {"config": config, "tokenizer": tokenizer, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder
