"""Write checkpoints of Apertus, Hunyuan with experts, Llama 4, Gemma and Qwen VL as GGUF.

They are written the way llama.cpp's converter does. The names are those of gguf-py's own tables, so
that they do not come from the tables under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries

ARCHITECTURES = {
    "apertus": "apertus",
    "gemma": "gemma",
    "hunyuan_v1_moe": "hunyuan-moe",
    "llama4_text": "llama4",
    "qwen2_5_vl": "qwen2vl",
    "qwen3_vl": "qwen3vl",
}
LIKE_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "llama4_text": {
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "no_rope_layer_interval": 4,
        "num_hidden_layers": 4,
    },
}
"""Values that llama.cpp fixes for an architecture, without metadata keys."""

TEXT = ("model.language_model.", "language_model.model.", "model.")


def write_latest_gguf(
    checkpoint: Path, path: Path, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint in float32 as GGUF; `metadata` replaces parameters of activations."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = ARCHITECTURES[config["model_type"]]
    config = config.get("text_config", config)
    arch = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, name)
    entries = {f"{name}.{key}": value for key, value in _entries(config, name).items()}
    for key, value in {**entries, **tokenizer_entries(checkpoint)}.items():
        add_entry(writer, key, value)
    parameters: dict[str, dict[int, float]] = {}
    for ours, values in _stored(checkpoint):
        if ".act_fn." in ours:
            kind = f"xielu.{ours.rpartition('.')[2]}"
            parameters.setdefault(kind, {})[int(ours.split(".")[2])] = float(values.reshape(-1)[0])
            continue
        theirs = names.get_name(ours, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, ours
        shift = 1.0 if name == "gemma" and ours.endswith("norm.weight") else 0.0
        add_tensor(writer, theirs, np.ascontiguousarray(values) + np.float32(shift), "F32")
    for kind, by_layer in parameters.items():
        values = [by_layer[layer] for layer in range(len(by_layer))]
        add_entry(writer, kind, (metadata or {}).get(kind, values))
    if name == "apertus":
        divisors = _divisors(config)
        add_tensor(writer, "rope_freqs.weight", divisors, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored(checkpoint: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of the text model, with the experts of a layer in one tensor each."""
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for ours, values in load_file(checkpoint / "model.safetensors").items():
        if "visual." in ours:
            continue
        prefix = next((prefix_of for prefix_of in TEXT if ours.startswith(prefix_of)), "")
        ours = ours if not prefix else f"model.{ours.removeprefix(prefix)}"
        stem, _, part = ours.rpartition(".experts.")
        number, _, own = part.partition(".")
        if number.isdecimal():
            stacks.setdefault(f"{stem}.experts.{own}", {})[int(number)] = values
        elif part in ("gate_up_proj", "down_proj"):
            transposed = "feed_forward" in stem  # Llama 4 stores [inputs, outputs]
            matrices = values.swapaxes(1, 2) if transposed else values
            stem = stem.replace("feed_forward", "mlp")
            if part == "down_proj":
                yield f"{stem}.experts.down_proj.weight", matrices
                continue
            for kind, half in zip(("gate", "up"), np.split(matrices, 2, axis=1), strict=True):
                yield f"{stem}.experts.{kind}_proj.weight", half
        else:
            yield ours, values
    for ours, parts in stacks.items():
        yield ours, np.stack([parts[number] for number in range(len(parts))])


def _entries(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    theta = rope["rope_theta"]
    if "alpha" in rope:
        theta *= rope["alpha"] ** (head / (head - 2))
    entries: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(theta),
        "rope.dimension_count": head,
    }
    if name.endswith("vl"):
        entries["rope.dimension_sections"] = [*rope.get("mrope_section", [head // 2, 0, 0]), 0]
    if name == "hunyuan-moe":
        entries |= {
            "expert_count": config["num_experts"],
            "expert_used_count": config["moe_topk"],
            "expert_feed_forward_length": config["intermediate_size"],
            "expert_shared_feed_forward_length": config["intermediate_size"],
            "expert_shared_count": 1,
        }
    if name == "llama4":
        entries |= {
            "feed_forward_length": config["intermediate_size_mlp"],
            "expert_feed_forward_length": config["intermediate_size"],
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "interleave_moe_layer_step": config["interleave_moe_layer_step"],
        }
    return entries


def _divisors(config: Mapping[str, Any]) -> np.ndarray:
    """Return the divisors of llama3 scaling, as transformers computes the frequencies."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope, head = config["rope_parameters"], config["head_dim"]
    llama = LlamaConfig(
        hidden_size=4 * head,
        num_attention_heads=4,
        head_dim=head,
        rope_parameters=rope,
        max_position_embeddings=config["max_position_embeddings"],
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](llama, "cpu")
    steps = np.arange(0, head, 2, dtype=np.float64) / head
    return (rope["rope_theta"] ** -steps / scaled.double().numpy()).astype(np.float32)
