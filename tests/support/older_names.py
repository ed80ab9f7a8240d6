"""How transformers names and stores tensors of families with LayerNorm, and packages do.

This is written independently of the converter's tables, which it tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support.state_space_names import is_input_projection, joined_inputs, state_space_name

RENAMED = (
    (".operator_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    ("model.embedding_norm.", "model.norm."),
    ("q_layernorm.weight", "q_norm.weight"),
    ("k_layernorm.weight", "k_norm.weight"),
    ("transformer.h.", "model.layers."),
    ("transformer.wte", "model.embed_tokens"),
    ("transformer.wpe", "model.embed_positions"),
    ("transformer.ln_f", "model.norm"),
    ("transformer.word_embeddings", "model.embed_tokens"),
    (".self_attention.dense.", ".self_attn.o_proj."),
    (".ln_attn.", ".input_layernorm."),
    (".ln_mlp.", ".post_attention_layernorm."),
    ("gpt_neox.embed_in", "model.embed_tokens"),
    ("gpt_neox.final_layer_norm", "model.norm"),
    ("gpt_neox.", "model."),
    ("embed_out", "lm_head"),
    ("model.decoder.final_layer_norm", "model.norm"),
    ("model.decoder.", "model."),
    (".pre_ff_layernorm.", ".post_attention_layernorm."),
    ("model.final_layernorm", "model.norm"),
    (".ln_1.", ".input_layernorm."),
    (".ln_2.", ".post_attention_layernorm."),
    (".self_attn_layer_norm.", ".input_layernorm."),
    (".final_layer_norm.", ".post_attention_layernorm."),
    (".attn.c_proj.", ".self_attn.o_proj."),
    (".attention.dense.", ".self_attn.o_proj."),
    (".self_attn.dense.", ".self_attn.o_proj."),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".mlp.c_fc.", ".mlp.up_proj."),
    (".mlp.c_proj.", ".mlp.down_proj."),
    (".mlp.dense_h_to_4h.", ".mlp.up_proj."),
    (".mlp.dense_4h_to_h.", ".mlp.down_proj."),
    (".mlp.fc1.", ".mlp.up_proj."),
    (".mlp.fc2.", ".mlp.down_proj."),
    (".fc1.", ".mlp.up_proj."),
    (".fc2.", ".mlp.down_proj."),
    (".feed_forward.", ".mlp."),
    (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
)
"""Parts of names in checkpoints of transformers, and in packages."""


LFM2_FEED_FORWARD = (
    (".w1.", ".gate_proj."),
    (".w3.", ".up_proj."),
    (".w2.", ".down_proj."),
    ("feed_forward.expert_bias", "mlp.gate.e_score_correction_bias"),
    ("feed_forward.", "mlp."),
)


LFM3_NORMS = (
    (".post_operator_norm.", ".post_attention_layernorm."),
    (".ffn_norm.", ".pre_feedforward_layernorm."),
    (".post_ffn_norm.", ".post_feedforward_layernorm."),
)


def joined_gates(state: dict[str, np.ndarray], heads: int) -> dict[str, np.ndarray]:
    """Return the tensors of LFM3 with the gate of each head behind its rows of queries."""
    tensors = {}
    for name, values in state.items():
        for theirs, ours in LFM3_NORMS:
            name = name.replace(theirs, ours)
        tensors[name] = values
    for name in [name for name in tensors if name.endswith("self_attn.gate_proj.weight")]:
        gates, queries = tensors.pop(name), name.replace("gate_proj", "q_proj")
        by_head = tensors[queries].reshape(heads, -1, gates.shape[1])
        repeated = np.repeat(gates[:, None], by_head.shape[1], axis=1)
        tensors[queries] = np.concatenate([by_head, repeated], 1).reshape(-1, gates.shape[1])
    return tensors


def canonical_name(name: str) -> str:
    """Return the name in a package of a tensor that transformers saved."""
    if ".feed_forward." in name:  # LFM2, with or without experts
        for theirs, ours in LFM2_FEED_FORWARD:
            name = name.replace(theirs, ours)
    for theirs, ours in RENAMED:
        name = name.replace(theirs, ours)
    return state_space_name(name)


def is_conv1d(name: str) -> bool:
    """Return whether transformers stores a tensor as [inputs, outputs], as GPT-2 does."""
    return (
        ".h." in name and name.split(".")[-2] in ("c_attn", "c_fc", "c_proj") and "weight" in name
    )


def split_projections(name: str, whole: np.ndarray, heads: int) -> dict[str, np.ndarray]:
    """Return queries, keys and values of GPT-2, GPT-NeoX or Falcon by their names in a package."""
    if ".self_attention." in name:
        parts = falcon_projections(whole, heads)
    elif "c_attn" in name:
        parts = [np.ascontiguousarray(word.T) for word in np.split(whole, 3, axis=-1)]
    else:
        by_head = whole.reshape(heads, 3, -1, *whole.shape[1:])
        parts = [by_head[:, at].reshape(-1, *whole.shape[1:]) for at in range(3)]
    stem, ending = f"model.layers.{name.split('.')[2]}.self_attn", name.rpartition(".")[2]
    return {f"{stem}.{kind}_proj.{ending}": part for kind, part in zip("qkv", parts, strict=True)}


def falcon_projections(whole: np.ndarray, heads: int) -> list[np.ndarray]:
    """Return queries, keys and values of Falcon; each group of queries precedes its key and value.

    A bias does not tell the number of key-value heads, which is that of the queries then.
    """
    size = len(whole) // (3 * heads) if whole.ndim == 1 else whole.shape[1] // heads
    kv_heads = (len(whole) // size - heads) // 2
    grouped = whole.reshape(kv_heads, -1, size, *whole.shape[1:])
    parts = grouped[:, :-2], grouped[:, -2], grouped[:, -1]
    return [np.ascontiguousarray(part.reshape(-1, *whole.shape[1:])) for part in parts]


def joined_norms(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors with the norms of StableLM's heads joined, as a package has them."""
    norms: dict[str, list[np.ndarray]] = {}
    for name in sorted(state, key=lambda name: (len(name), name)):
        if ".norms." in name:
            stem = name.partition("_layernorm.norms.")[0]
            norms.setdefault(f"{stem}_norm.weight", []).append(state[name])
    others = {name: values for name, values in state.items() if ".norms." not in name}
    return others | {name: np.stack(parts) for name, parts in norms.items()}


def published_value(name: str, state: dict[str, Any], heads: int) -> Any:
    """Remove from `state` what transformers stores under a name, and return it as it is stored.

    Args:
        name: Name of a tensor in transformers.
        state: Torch tensors by their names in a package.
        heads: Number of attention heads.

    Returns:
        The tensor, or None if the package has no such tensor.
    """
    import torch

    if is_input_projection(name):
        return joined_inputs(name, state)
    if name.split(".")[-2] in ("c_attn", "query_key_value"):
        stem, ending = f"model.layers.{name.split('.')[2]}.self_attn", name.rpartition(".")[2]
        parts = [state.pop(f"{stem}.{kind}_proj.{ending}") for kind in "qkv"]
        if "c_attn" in name:
            return torch.cat([part.T if part.dim() > 1 else part for part in parts], dim=-1)
        groups = heads * len(parts[1]) // len(parts[0])
        by_head = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(by_head, dim=1).reshape(-1, *parts[0].shape[1:])
    if ".norms." in name:  # one vector for each head
        stem, _, rest = name.partition("_layernorm.norms.")
        row = int(rest.split(".")[0])
        whole = state[f"{stem}_norm.weight"]
        if row == len(whole) - 1:
            state.pop(f"{stem}_norm.weight")
        return whole[row]
    known = canonical_name(name)
    if known not in state:  # the router of Phi-3.5 MoE
        known = known.replace(".mlp.router.", ".block_sparse_moe.gate.")
    values = state.pop(known, None)
    return values.T if values is not None and is_conv1d(name) else values
