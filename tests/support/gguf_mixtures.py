"""Write checkpoints with shared experts (DeepSeek, GLM, Solar, dots, Ernie) as llama.cpp does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from rdrr_converter.sources import open_source
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries
from support.tiny_models import LATENT_YARN

ARCHITECTURES = {
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "dots1": "dots1",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone_moe": "exaone-moe",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "solar_open": "glm4moe",
}
LIKE_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        "attention_bias": False,
        "rope_parameters": {**LATENT_YARN, "mscale": 0.8, "mscale_all_dim": 0.8},
    },
    "dots1": {"sliding_window": None, "num_key_value_heads": 4},
    "ernie4_5_moe": {"tie_word_embeddings": True},
}
"""Values that llama.cpp fixes for an architecture, without metadata keys."""
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "mlp.gate": "ffn_gate_inp",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in ("q", "k", "v", "q_a", "q_b")},
    **{f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"},
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    **{part: f"nextn.{part}" for part in ("eh_proj", "embed_tokens", "enorm", "hnorm")},
    **{f"shared_head.{part}": f"nextn.shared_head_{part}" for part in ("head", "norm")},
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_mixture_gguf(
    checkpoint: Path, path: Path, *, split: bool = True, further: int = 0
) -> Path:
    """Write a checkpoint as GGUF in F32.

    Args:
        checkpoint: Directory of the checkpoint.
        path: File to write.
        split: Whether `kv_b_proj` is stored in two tensors, as files since 2025 have it.
        further: Number of incomplete layers to add that predict further tokens. The head of the
            checkpoint is written as such a layer.
    """
    source = open_source(checkpoint)
    config = dict(source.config)
    name = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, name)
    has_head = any(".eh_proj." in ours for ours in source.tensors)
    entries = _entries(config, further=further + has_head, split=split)
    entries = {f"{name}.{key}": value for key, value in entries.items()}
    for key, value in (entries | tokenizer_entries(checkpoint)).items():
        add_entry(writer, key, value)
    experts: dict[str, dict[int, np.ndarray]] = {}
    for ours, tensor in source.tensors.items():
        values = tensor.read().reshape(tensor.shape)
        stem, _, ending = ours.rpartition(".")
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        if match is None:
            add_tensor(writer, f"{OUTSIDE[stem]}.{ending}", values, "F32")
            continue
        block, part = f"blk.{match[1]}", match[2]
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(\w+)_proj", part)
        if expert:
            theirs = f"{block}.ffn_{expert[2]}_exps.weight"
            experts.setdefault(theirs, {})[int(expert[1])] = values
        elif ending == "e_score_correction_bias":
            add_tensor(writer, f"{block}.exp_probs_b.bias", values.reshape(-1), "F32")
        elif part == "self_attn.kv_b_proj" and split:
            heads = config["num_attention_heads"]
            rows = values.reshape(heads, -1, values.shape[1])
            key, value = np.split(rows, [config["qk_nope_head_dim"]], axis=1)
            keys = np.ascontiguousarray(key.swapaxes(1, 2))
            add_tensor(writer, f"{block}.attn_k_b.weight", keys, "F32")
            add_tensor(writer, f"{block}.attn_v_b.weight", np.ascontiguousarray(value), "F32")
        else:
            theirs = PARTS[part]
            if name == "glm4moe" and theirs == "ffn_norm":
                theirs = "post_attention_norm"
            add_tensor(writer, f"{block}.{theirs}.{ending}", values, "F32")
    for theirs, parts in experts.items():
        values = np.stack([parts[number] for number in range(len(parts))])
        add_tensor(writer, theirs, values, "F32")
    for layer in range(further):
        block = f"blk.{config['num_hidden_layers'] + has_head + layer}"
        for part in ("nextn.eh_proj", "nextn.enorm", "attn_norm"):
            add_tensor(writer, f"{block}.{part}.weight", np.ones(4, np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _entries(config: Mapping[str, Any], *, further: int, split: bool) -> dict[str, Any]:
    rope = config["rope_parameters"]
    entries: dict[str, Any] = {
        "block_count": config["num_hidden_layers"] + further,
        "nextn_predict_layers": further or None,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }
    if config["model_type"] == "ernie4_5_moe":
        count = config["moe_num_shared_experts"]
        entries |= {
            "expert_count": config["moe_num_experts"],
            "expert_used_count": config["moe_k"],
            "expert_shared_count": count,
            "expert_shared_feed_forward_length": count * config["moe_intermediate_size"],
            "leading_dense_block_count": config["moe_layer_start_index"],
            "interleave_moe_layer_step": config["moe_layer_interval"],
        }
    else:
        softmax = config["model_type"] == "deepseek_v2"
        entries |= {
            "expert_count": config.get("n_routed_experts") or config["num_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_shared_count": config.get("n_shared_experts") or config["num_shared_experts"],
            "leading_dense_block_count": _dense_layers(config),
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_gating_func": 1 if softmax else 2,
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
    if config["model_type"] == "exaone_moe":
        shared = config["num_shared_experts"] * config["moe_intermediate_size"]
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
        entries |= {
            "attention.sliding_window": config["sliding_window"],
            "attention.sliding_window_pattern": slides,
            "expert_shared_feed_forward_length": shared,
        }
    if "kv_lora_rank" in config:
        entries |= _latents(config, split=split)
    else:
        size = config["head_dim"]
        rotated = int(size * rope.get("partial_rotary_factor", 1.0))
        entries |= {
            "attention.key_length": size,
            "attention.value_length": size,
            "rope.dimension_count": rotated,
        }
    return entries | (_yarn(rope) if rope["rope_type"] == "yarn" else {})


def _dense_layers(config: Mapping[str, Any]) -> int:
    """Return the number of dense layers: GLM 4.7 Flash and Solar Open do not state it."""
    unstated = 0 if config["model_type"] == "solar_open" else 1
    return int(config.get("first_k_dense_replace", unstated))


def _yarn(scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
    }


def _latents(config: Mapping[str, Any], *, split: bool) -> dict[str, Any]:
    key, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    latent, value, scaling = config["kv_lora_rank"], config["v_head_dim"], config["rope_parameters"]
    entries = {
        "attention.kv_lora_rank": latent,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.key_length": latent + rope if split else key + rope,
        "attention.value_length": latent if split else value,
        "rope.dimension_count": rope,
    }
    if split:
        entries |= {
            "attention.head_count_kv": 1,
            "attention.key_length_mla": key + rope,
            "attention.value_length_mla": value,
        }
    if scaling["rope_type"] == "yarn":
        entries["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
    return entries
