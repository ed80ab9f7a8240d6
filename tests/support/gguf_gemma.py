"""Write checkpoints of Gemma 4 and Gemma 3n as GGUF, the way llama.cpp's converter does.

The names are those of gguf-py's own tables, so that they do not come from the tables under test.
"""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries
from support.tiny_models import VOCAB

UNROTATED = 1e30
ARCHITECTURES = ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
LIKE_FILES: dict[str, dict[str, Any]] = {
    "gemma3n_text": {"laurel_rank": 64, "vocab_size_per_layer_input": VOCAB},
}
"""llama.cpp pads the table of the layers to the vocabulary, and knows one rank of LAuReL."""


def gemma3n_of(layers: int, with_keys: int = 20) -> dict[str, Any]:
    """Return a Gemma 3n as llama.cpp assumes it, layers after the 20th with shared keys."""
    sparse = min(10, layers)
    return {
        **LIKE_FILES["gemma3n_text"],
        "activation_sparsity_pattern": [0.95] * sparse + [0.0] * (layers - sparse),
        "altup_active_idx": 0,
        "head_dim": 32,
        "hidden_size": 64,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": [96] * layers,
        "layer_types": [
            "full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(layers)
        ],
        "num_hidden_layers": layers,
        "num_kv_shared_layers": max(0, layers - with_keys),
    }


LIKE_LLAMA_CPP: dict[str, dict[str, Any]] = {"gemma3n_text": gemma3n_of(5)}
"""Values that llama.cpp fixes for an architecture, without metadata keys."""


def write_gemma_gguf(checkpoint: Path, path: Path, config: Any) -> Path:
    """Write a checkpoint of transformers in float32 as GGUF, given its configuration."""
    name = "gemma4" if config.model_type.startswith("gemma4") else "gemma3n"
    arch = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    stored = load_file(checkpoint / "model.safetensors")
    writer = gguf.GGUFWriter(path, name)
    specific = _gemma4(config) if name == "gemma4" else _gemma3n(config)
    entries = {f"{name}.{key}": value for key, value in {**_common(config), **specific}.items()}
    for key, value in {**entries, **tokenizer_entries(checkpoint)}.items():
        add_entry(writer, key, value)
    for part in ("altup_projections", "altup_unembed_projections"):
        parts = [stored.pop(f"model.{part}.{i}.weight", None) for i in range(3)]
        if parts[0] is not None:
            stored[f"model.{part}.weight"] = np.stack(
                [part_values for part_values in parts if part_values is not None]
            )
    for ours, values in stored.items():
        if ours.endswith("router.scale"):
            theirs = f"blk.{ours.split('.')[2]}.ffn_gate_inp.scale"
        elif ours.endswith("per_expert_scale"):
            theirs = f"blk.{ours.split('.')[2]}.ffn_down_exps.scale"
        else:
            whole = ours if ours.endswith(".weight") else f"{ours}.weight"
            found = names.get_name(whole, try_suffixes=(".weight",))
            assert found is not None, ours
            theirs = found
        add_tensor(writer, theirs, values, "F32")
    if name == "gemma4":
        rotated = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * 48)
        divisors = np.full(48, UNROTATED, np.float32)
        divisors[:rotated] = 1.0
        add_tensor(writer, "rope_freqs.weight", divisors, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _common(config: Any) -> dict[str, Any]:
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "embedding_length_per_layer_input": getattr(config, "hidden_size_per_layer_input", 0),
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [
            layer_type == "sliding_attention" for layer_type in config.layer_types
        ],
        "final_logit_softcapping": config.final_logit_softcapping,
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }


def _gemma4(config: Any) -> dict[str, Any]:
    layers = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    types = list(config.layer_types)
    full = layers[types.index("full_attention")].head_dim
    first = config.num_hidden_layers - config.num_kv_shared_layers
    wide = [layer >= first and config.use_double_wide_mlp for layer in range(len(layers))]
    entries = {
        "attention.head_count_kv": [one.num_key_value_heads for one in layers],
        "attention.key_length": full,
        "attention.key_length_swa": layers[types.index("sliding_attention")].head_dim,
        "attention.value_length": full,
        "feed_forward_length": [config.intermediate_size * (1 + is_wide) for is_wide in wide],
        "rope.dimension_count": full,
    }
    if getattr(config, "enable_moe_block", False):
        entries |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.top_k_experts,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return entries


def _gemma3n(config: Any) -> dict[str, Any]:
    pattern = config.activation_sparsity_pattern
    scales = [NormalDist().inv_cdf(share) if share else float("-inf") for share in pattern]
    return {
        "activation_sparsity_scale": [float(np.float32(scale)) for scale in scales],
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "feed_forward_length": list(config.intermediate_size),
    }
