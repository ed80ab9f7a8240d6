"""Write checkpoints of Qwen 3.5, Qwen 3 Next and LFM2 as GGUF, the way llama.cpp's converter does.

The names are those of gguf-py's own tables, so that they do not come from the tables under test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries

ARCHITECTURES = {
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
}
LIKE_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "lfm2": {"conv_bias": False, "num_hidden_layers": 4},
    "lfm2_moe": {"conv_bias": False},
    "qwen3_5_text": {"linear_value_head_dim": 24},
    "qwen3_5_moe_text": {"linear_value_head_dim": 24},
    "qwen3_next": {"linear_value_head_dim": 24, "decoder_sparse_step": 1},
}
"""Values that llama.cpp fixes for an architecture, without metadata keys."""
SMALL = r"conv1d|conv\.conv|(mlp|feed_forward)\.gate\.|shared_expert_gate"
"""Convolutions and routers, which llama.cpp needs in F32."""
NEXTN = {
    "mtp.fc": "nextn.eh_proj",
    "mtp.layers.0": "",
    "mtp.norm": "nextn.shared_head_norm",
    "mtp.pre_fc_norm_embedding": "nextn.enorm",
    "mtp.pre_fc_norm_hidden": "nextn.hnorm",
}
"""Modules of the head for multi-token prediction, which gguf-py's table lacks for Qwen 3.5."""


def write_state_gguf(
    checkpoint: Path, path: Path, dtype: str = "F32", *, further: int = 0, joined: bool = False
) -> Path:
    """Write a checkpoint in float32 as GGUF.

    Args:
        checkpoint: Directory of the checkpoint.
        path: File to write.
        dtype: Storage type of the matrices.
        further: Number of incomplete layers to add that predict further tokens (Qwen 3.5). The
            head of the checkpoint is written as such a layer.
        joined: Whether gate and up of all experts are in one tensor, and for Qwen 3 Next queries,
            keys, values and gates.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = ARCHITECTURES[config["model_type"]]
    layers = config["num_hidden_layers"]
    arch = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, layers + 1)
    tensors = load_file(checkpoint / "model.safetensors")
    has_head = any(ours.startswith("mtp.") for ours in tensors)
    writer = gguf.GGUFWriter(path, name)
    specific = _lfm2(config) if name.startswith("lfm2") else _linear(config, name)
    entries = {f"{name}.{key}": value for key, value in {**_common(config), **specific}.items()}
    if further or has_head:
        entries[f"{name}.block_count"] = layers + further + has_head
        entries[f"{name}.nextn_predict_layers"] = further + has_head
    for key, value in {**entries, **tokenizer_entries(checkpoint)}.items():
        add_entry(writer, key, value)
    tensors = {_as_a_layer(ours, layers): values for ours, values in tensors.items()}
    for ours, values in _stored(tensors, config, name, joined=joined):
        theirs = names.get_name(ours, try_suffixes=(".weight", ".bias"))
        if ".nextn." in ours:
            theirs = ours.replace("model.layers.", "blk.")
        assert theirs is not None, ours
        is_small = values.ndim < 2 or re.search(
            "conv1d|conv.conv|mlp.gate|shared_expert_gate", ours
        )
        kind = "F32" if is_small or "feed_forward.gate" in ours else dtype
        add_tensor(writer, theirs, np.ascontiguousarray(values), kind)
    for layer in range(layers + has_head, layers + has_head + further):
        for part in ("nextn.eh_proj", "nextn.enorm", "attn_norm", "attn_q"):
            add_tensor(writer, f"blk.{layer}.{part}.weight", np.ones(4, np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_a_layer(ours: str, layers: int) -> str:
    """Return the name of a tensor of the head as one of a layer after the last one."""
    module = next((prefix for prefix in NEXTN if ours.startswith(f"{prefix}.")), None)
    if module is None:
        return ours
    stem = f"model.layers.{layers}.{NEXTN[module]}".removesuffix(".")
    return stem + ours.removeprefix(module)


def _stored(
    tensors: Mapping[str, np.ndarray], config: Mapping[str, Any], name: str, *, joined: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors with the names that gguf-py's tables expect, in llama.cpp's order."""
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for ours, values in tensors.items():
        expert = re.fullmatch(r"(.+\.experts)\.(\d+)\.(w\d|\w+_proj)\.weight", ours)
        if expert:
            stack = stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})
            stack[int(expert[2])] = values
        elif ours.endswith("experts.gate_up_proj") and joined:
            yield f"{ours}.weight", values
        elif ours.endswith("experts.gate_up_proj"):
            stem = ours.removesuffix("gate_up_proj")
            gate, up = np.split(values, 2, axis=1)
            yield f"{stem}gate_proj.weight", gate
            yield f"{stem}up_proj.weight", up
        elif ours.endswith("experts.down_proj"):
            yield f"{ours}.weight", values
        elif name.startswith("lfm2"):
            yield from _of_lfm2(ours, values)
        else:
            yield from _of_qwen(ours, values, config, name, joined=joined)
    for ours, parts in stacks.items():
        stem = ours.replace("w1", "gate_proj").replace("w3", "up_proj").replace("w2", "down_proj")
        stem = stem.replace("feed_forward", "mlp")
        yield stem, np.stack([parts[number] for number in range(len(parts))])


def _of_lfm2(ours: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if ours.endswith("expert_bias"):
        yield f"{ours}.bias", values
    else:
        yield ours, values[:, 0] if "conv.conv" in ours else values


def _of_qwen(
    ours: str, values: np.ndarray, config: Mapping[str, Any], name: str, *, joined: bool
) -> Iterator[tuple[str, np.ndarray]]:
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if name != "qwen3next" and ".linear_attn." in ours:
        values = _with_alternating_heads(ours, values, keys, heads, 2 * keys * key, value)
    if ours.endswith("A_log"):
        values = -np.exp(values)
    elif ours.endswith("dt_bias"):
        ours = ours.replace("dt_bias", "dt_proj.bias")
    elif "conv1d" in ours:
        values = values[:, 0]
    elif ours.endswith("norm.weight") and not ours.endswith("linear_attn.norm.weight"):
        values = values + np.float32(1.0)
    elif ours.endswith("shared_expert_gate.weight"):
        values = values[0]
    if "in_proj_qkvz" not in ours or joined:
        yield ours, values
        return
    groups = values.reshape(keys, -1, values.shape[1])
    wide = heads // keys * value
    q, k, v, z = np.split(groups, [key, 2 * key, 2 * key + wide], axis=1)
    qkv = np.concatenate([array.reshape(-1, values.shape[1]) for array in (q, k, v)])
    yield ours.replace("in_proj_qkvz", "in_proj_qkv"), qkv
    yield ours.replace("in_proj_qkvz", "in_proj_z"), z.reshape(-1, values.shape[1])


def _with_alternating_heads(
    ours: str, values: np.ndarray, keys: int, heads: int, before: int, width: int
) -> np.ndarray:
    """Move value head v of key head k to head v * keys + k."""

    def moved(part: np.ndarray, size: int) -> np.ndarray:
        by_key = part.reshape(keys, heads // keys, size, *part.shape[1:])
        return by_key.swapaxes(0, 1).reshape(part.shape)

    if "in_proj_qkv" in ours or "conv1d" in ours:
        return np.concatenate([values[:before], moved(values[before:], width)])
    if "in_proj_z" in ours:
        return moved(values, width)
    if "out_proj" in ours:
        return moved(values.T, width).T
    return values if ours.endswith("norm.weight") else moved(values, 1)


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    entries = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
    }
    experts = {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    }
    return entries | {theirs: config[ours] for ours, theirs in experts.items() if ours in config}


def _linear(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    types = config["layer_types"]
    entries = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": types.index("full_attention") + 1,
    }
    if name.startswith("qwen35"):
        entries["rope.dimension_sections"] = [11, 11, 10, 0]
    return entries


def _lfm2(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    entries: dict[str, Any] = {
        "attention.head_count_kv": [
            heads if kind == "full_attention" else 0 for kind in config["layer_types"]
        ],
        "shortconv.l_cache": config["conv_L_cache"],
    }
    if "num_dense_layers" in config:
        entries |= {
            "leading_dense_block_count": config["num_dense_layers"],
            "expert_gating_func": 2,
        }
    elif config["block_auto_adjust_ff_dim"]:
        width, multiple = int(2 * config["intermediate_size"] / 3), config["block_multiple_of"]
        width = int(config["block_ffn_dim_multiplier"] * width)
        entries["feed_forward_length"] = -(-width // multiple) * multiple
    return entries
