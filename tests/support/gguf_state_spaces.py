"""Write checkpoints with state spaces as GGUF, the way llama.cpp's converter does.

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
    "falcon_h1": "falcon-h1",
    "granitemoehybrid": "granitehybrid",
    "mamba2": "mamba2",
    "nemotron_h": "nemotron_h",
}
LIKE_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "falcon_h1": {
        "attention_bias": False,
        "mamba_norm_before_gate": False,
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "num_hidden_layers": 2,
        "projectors_bias": False,
    },
    "granitemoehybrid": {"position_embedding_type": None, "num_hidden_layers": 2},
    "mamba2": {"use_bias": False, "num_hidden_layers": 2},
    "nemotron_h": {"use_bias": False},
}
"""Values that llama.cpp fixes for an architecture, without metadata keys."""


def write_state_space_gguf(checkpoint: Path, path: Path, dtype: str = "F32") -> Path:
    """Write a checkpoint in float32 as GGUF, with matrices of the given storage type."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = ARCHITECTURES[config["model_type"]]
    if name == "nemotron_h" and "moe" in config["layers_block_type"]:
        name = "nemotron_h_moe"
    kinds = layer_kinds(config)
    arch = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, len(kinds))
    writer = gguf.GGUFWriter(path, name)
    entries = {f"{name}.{key}": value for key, value in metadata(config, kinds).items()}
    for key, value in {**entries, **tokenizer_entries(checkpoint)}.items():
        if value is not None:
            add_entry(writer, key, value)
    for ours, values in with_joined_experts(load_file(checkpoint / "model.safetensors")).items():
        for part, tensor in stored(ours, values * factors(ours, config, values), config):
            suffixes = (".weight", ".bias")
            theirs = names.get_name(part, try_suffixes=suffixes)
            assert theirs is not None, part
            kind = (
                "F32"
                if tensor.ndim < 2 or re.search("conv1d|norm|A_log|router|mixer[.]gate|[.]D$", part)
                else dtype
            )
            add_tensor(writer, theirs, np.ascontiguousarray(tensor, np.float32), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def with_joined_experts(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a checkpoint, with those of all experts in one."""
    tensors: dict[str, np.ndarray] = {}
    experts: dict[str, list[tuple[int, np.ndarray]]] = {}
    for name, values in state.items():
        match = re.fullmatch(r"(.+\.mixer\.experts)\.(\d+)\.(.+)", name)
        if match is None:
            tensors[name] = values
        else:
            whole = f"{match[1].replace('backbone.', 'model.')}.{match[3]}"
            whole = whole.replace(".mixer.", ".mlp.")
            experts.setdefault(whole, []).append((int(match[2]), values))
    return tensors | {
        name: np.stack([matrix for _, matrix in sorted(expert, key=lambda pair: pair[0])])
        for name, expert in experts.items()
    }


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """Return the types of the layers."""
    if config["model_type"] == "nemotron_h":
        return config["layers_block_type"]
    return config.get("layer_types") or ["linear_attention"] * config["num_hidden_layers"]


def stored(
    ours: str, values: np.ndarray, config: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a tensor of transformers, or its parts, with names that gguf-py's tables know."""
    ours = re.sub(r"^model\.(?=layers\.\d+\.(norm|mixer)\.|embeddings|norm_f)", "backbone.", ours)
    groups = config.get("mamba_n_groups") or config.get("n_groups")
    if ours.endswith("dt_bias"):
        ours = ours.replace("dt_bias", "dt_proj.bias" if ".mamba." in ours else "dt.bias")
    elif ours.endswith("e_score_correction_bias"):
        ours = ours.replace("correction_bias", "correction.bias")
    elif ours.endswith(("A_log", ".D")):
        values = (-np.exp(values) if ours.endswith("A_log") else values)[:, None]
    elif "conv1d.weight" in ours:
        values = values[:, 0]
    elif ours.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        values = values.reshape(groups, -1)
    elif re.search("[qk]_proj.weight", ours) and config["model_type"] != "falcon_h1":
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        by_half = values.reshape(-1, 2, head // 2, values.shape[1])
        values = by_half.swapaxes(1, 2).reshape(values.shape)
    elif "input_linear" in ours:
        gate, up = np.split(values, 2, axis=-2)
        shared = "mlp.shared_expert" if config["num_local_experts"] else "mlp"
        stem = ours.replace("shared_mlp", shared) if "shared_mlp" in ours else ours
        experts = "mlp.experts" if "shared_mlp" not in ours else None
        for kind, matrix in (("gate", gate), ("up", up)):
            part = stem.replace("input_linear", f"{kind}_proj")
            yield part.replace("block_sparse_moe", experts or "block_sparse_moe"), matrix
        return
    elif "output_linear" in ours:
        shared = "mlp.shared_expert" if config["num_local_experts"] else "mlp"
        ours = ours.replace("shared_mlp.output_linear", f"{shared}.down_proj")
        ours = ours.replace("block_sparse_moe.output_linear", "mlp.experts.down_proj")
    yield ours, values


def factors(name: str, config: Mapping[str, Any], values: np.ndarray) -> Any:
    """Return the factors of Falcon-H1 on a tensor; 1 for others."""
    if config["model_type"] != "falcon_h1":
        return np.float32(1.0)
    whole = {
        "gate_proj.weight": config["mlp_multipliers"][0],
        "feed_forward.down_proj": config["mlp_multipliers"][1],
        "k_proj.weight": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj.weight": config["attention_in_multiplier"],
        "v_proj.weight": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    scale = next((factor for part, factor in whole.items() if part in name), None)
    if scale is not None:
        return np.float32(scale)
    if "gate_proj.bias" in name:
        return np.float32(config["mlp_multipliers"][0])
    if "in_proj" not in name:
        return np.float32(1.0)
    inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    counts = (inner, inner, shared, shared, config["mamba_n_heads"])
    rows = np.repeat(config["ssm_multipliers"], counts).astype(np.float32)
    rows = rows * np.float32(config["ssm_in_multiplier"])
    return rows.reshape(-1, *[1] * (values.ndim - 1))


def metadata(config: Mapping[str, Any], kinds: list[str]) -> dict[str, Any]:
    """Return the metadata without the name of the architecture."""
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads") or config.get("num_heads")
    width = config.get("mamba_d_head") or config.get("mamba_head_dim") or config.get("head_dim")
    is_falcon, is_alone = config["model_type"] == "falcon_h1", config["model_type"] == "mamba2"
    is_nemotron = config["model_type"] == "nemotron_h"
    entries = {
        "block_count": len(kinds),
        "context_length": config.get("max_position_embeddings") or 2**20,
        "embedding_length": config["hidden_size"],
        "vocab_size": config["vocab_size"],
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon")
        or config.get("rms_norm_eps"),
        "ssm.conv_kernel": config.get("mamba_d_conv") or config.get("conv_kernel"),
        "ssm.inner_size": heads * width,
        "ssm.state_size": config.get("mamba_d_state")
        or config.get("ssm_state_size")
        or config.get("state_size"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": config.get("mamba_n_groups") or config.get("n_groups"),
    }
    if is_alone:
        return entries | {"feed_forward_length": 0, "attention.head_count": 0}
    count, inner = config["num_key_value_heads"], config["intermediate_size"]
    by_layer = [count if kind == "full_attention" else 0 for kind in kinds]
    entries |= {
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": count if is_falcon else by_layer,
        "feed_forward_length": inner,
    }
    if is_nemotron and "moe" in kinds:
        inner = config["moe_intermediate_size"]
        entries |= {
            "expert_count": config["n_routed_experts"],
            "expert_feed_forward_length": inner,
            "expert_group_count": config["n_group"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": config["routed_scaling_factor"],
        }
        if config["moe_latent_size"] is not None:
            entries["moe_latent_size"] = config["moe_latent_size"]
    if is_nemotron:
        entries["feed_forward_length"] = [inner if kind in ("mlp", "moe") else 0 for kind in kinds]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    entries |= {"attention.key_length": head, "attention.value_length": head}
    if is_falcon:
        return entries | {"rope.freq_base": float(config["rope_parameters"]["rope_theta"])}
    if is_nemotron:
        return entries
    entries |= {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "logit_scale": config["logits_scaling"],
        "residual_scale": config["residual_multiplier"],
        "rope.scaling.finetuned": False,
    }
    if config["num_local_experts"]:
        entries |= {
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
        }
    else:
        entries["feed_forward_length"] = config["shared_intermediate_size"]
    return entries | {"expert_shared_feed_forward_length": config["shared_intermediate_size"]}
