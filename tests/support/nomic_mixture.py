"""A tiny NomicBERT with experts in the form of its publisher, and its formula in torch.

transformers reads such a checkpoint without its experts, so the formula is written out here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.encoders import write_word_tokenizer
from support.tiny_models import VOCAB

HIDDEN, INNER, LAYERS, HEADS, EXPERTS, CHOSEN = 96, 160, 4, 4, 4, 2
_EPS, _THETA = 1e-5, 10000.0

CONFIG: dict[str, Any] = {
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.1,
    "expert_choice_router": False,
    "ffn_div": 1,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": _EPS,
    "max_trained_positions": 256,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "model_type": "nomic_bert",
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": CHOSEN,
    "n_embd": HIDDEN,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_layer": LAYERS,
    "n_positions": 256,
    "num_experts": EXPERTS,
    "num_shared_experts": 0,
    "pad_token_id": 0,
    "pad_vocab_to_multiple_of": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": _THETA,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "router_aux_loss_coef": 0.1,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "type_vocab_size": 1,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": None,
    "use_xentropy": True,
    "vocab_size": VOCAB,
}


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (1, HIDDEN),
        "emb_ln.weight": (HIDDEN,),
        "emb_ln.bias": (HIDDEN,),
    }
    for layer in range(LAYERS):
        stem = f"encoder.layers.{layer}"
        dense = {
            "mlp.fc1.weight": (INNER, HIDDEN),
            "mlp.fc1.bias": (INNER,),
            "mlp.fc2.weight": (HIDDEN, INNER),
            "mlp.fc2.bias": (HIDDEN,),
        }
        mixture = {
            "mlp.router.layer.weight": (EXPERTS, HIDDEN),
            "mlp.experts.mlp.w1": (EXPERTS * INNER, HIDDEN),
            "mlp.experts.mlp.w2": (EXPERTS * INNER, HIDDEN),
            "mlp.experts.bias": (HIDDEN,),
        }
        parts = {
            "attn.Wqkv.weight": (3 * HIDDEN, HIDDEN),
            "attn.Wqkv.bias": (3 * HIDDEN,),
            "attn.out_proj.weight": (HIDDEN, HIDDEN),
            "attn.out_proj.bias": (HIDDEN,),
            **{f"norm{at}.{end}": (HIDDEN,) for at in (1, 2) for end in ("weight", "bias")},
            **(mixture if layer % 2 else dense),
        }
        shapes |= {f"{stem}.{part}": shape for part, shape in parts.items()}
    return shapes


def save_nomic_mixture(rng: np.random.Generator, folder: Path) -> dict[str, Any]:
    """Write a checkpoint with random weights and a tokenizer, and return its tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    tensors = {
        name: rng.normal(
            *((0.5, 0.3) if len(shape) == 1 else (0.0, 1.5 / np.sqrt(HIDDEN))), shape
        ).astype(np.float32)
        for name, shape in _shapes().items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_word_tokenizer(folder, lowercase=True)
    return tensors


def hidden_states(tensors: dict[str, Any], ids: list[int], *, sum_bias: bool = True) -> Any:
    """Return the hidden states of a text after the last layer, [tokens, HIDDEN].

    Args:
        tensors: The tensors of the checkpoint.
        ids: Token ids of the text.
        sum_bias: Whether the bias on the sum of the experts is added, which llama.cpp leaves out.
    """
    import torch
    from torch.nn import functional

    weights = {name: torch.from_numpy(values) for name, values in tensors.items()}

    def norm(x: Any, name: str) -> Any:
        pair = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.layer_norm(x, (HIDDEN,), *pair, _EPS)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    angles = torch.outer(
        torch.arange(len(ids)), _THETA ** (-torch.arange(0, 1, 2 * HEADS / HIDDEN)).double()
    )
    cos, sin = (torch.cat((part, part), 1).float() for part in (angles.cos(), angles.sin()))

    def rotated(x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def attended(x: Any, stem: str) -> Any:
        qkv = linear(x, f"{stem}.attn.Wqkv").view(len(ids), 3, HEADS, -1).permute(1, 2, 0, 3)
        mixed = functional.scaled_dot_product_attention(rotated(qkv[0]), rotated(qkv[1]), qkv[2])
        return linear(mixed.transpose(0, 1).reshape(len(ids), HIDDEN), f"{stem}.attn.out_proj")

    def mixture(x: Any, stem: str) -> Any:
        scores = torch.softmax(functional.linear(x, weights[f"{stem}.router.layer.weight"]), -1)
        factors, chosen = scores.topk(CHOSEN, -1)
        first, second = (
            weights[f"{stem}.experts.mlp.{part}"].view(EXPERTS, INNER, HIDDEN)
            for part in ("w1", "w2")
        )
        out = torch.zeros_like(x)
        for row in range(len(x)):
            for factor, expert in zip(factors[row], chosen[row], strict=True):
                inner = functional.gelu(first[expert] @ x[row])
                out[row] += factor * (inner @ second[expert])
        return out + weights[f"{stem}.experts.bias"] * sum_bias

    with torch.no_grad():
        x = weights["embeddings.word_embeddings.weight"][torch.tensor(ids)]
        x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "emb_ln")
        for layer in range(LAYERS):
            stem = f"encoder.layers.{layer}"
            x = norm(x + attended(x, stem), f"{stem}.norm1")
            if layer % 2:
                branch = mixture(x, f"{stem}.mlp")
            else:
                branch = linear(functional.gelu(linear(x, f"{stem}.mlp.fc1")), f"{stem}.mlp.fc2")
            x = norm(x + branch, f"{stem}.norm2")
    return x
