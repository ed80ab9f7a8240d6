"""Write Hugging Face checkpoints as GGUF with gguf-py, the way llama.cpp's converter does.

Query and key rows of Llama are permuted to llama.cpp's order, 1 is added to Gemma's norms, llama3
scaling becomes frequency divisors, vectors are F32, and the tokenizer becomes metadata entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from rdrr_converter.recipes import use_more_bits
from rdrr_converter.sources import open_source
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries

OLDER = {
    "starcoder2": "starcoder2",
    "phi": "phi2",
    "falcon": "falcon",
    "gpt_neox": "gptneox",
    "gpt2": "gpt2",
    "stablelm": "stablelm",
    "nemotron": "nemotron",
    "cohere": "command-r",
    "cohere2": "cohere2",
}
"""Families with LayerNorm, which `support.gguf_older` writes."""
ARCHITECTURES = {
    **OLDER,
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
    "olmoe": "olmoe",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "minimax_m2": "minimax-m2",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "glm": "chatglm",
    "glm4": "glm4",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "exaone4": "exaone4",
    "ernie4_5": "ernie4_5",
    "hunyuan_v1_dense": "hunyuan-dense",
    "ministral3": "mistral3",
    "olmo": "olmo",
    "arcee": "arcee",
}
LIKE_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "falcon": {"bias": False, "parallel_attn": True},
    "arcee": {"mlp_bias": False},
    "gemma2": {"query_pre_attn_scalar": 64},
    "gpt_oss": {"swiglu_limit": 7.0},
    "phimoe": {"router_jitter_noise": 0.01},
    "qwen2_moe": {"mlp_only_layers": []},
    "qwen3_moe": {"decoder_sparse_step": 1},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 4},
}
"""Configuration values that llama.cpp fixes for an architecture, without metadata keys."""
ALIKE = ("llama", "ministral3", "mixtral", "olmo", "phimoe")
"""Types of models whose layers differ in nothing, so that one shows the same as two."""
GEMMAS = ("gemma2", "gemma3")
WITH_POST_NORMS = (*GEMMAS, "seed_oss", "gpt-oss", "olmo2", "exaone4")
INTERLEAVED = ("llama", "smollm3", "granite", "granitemoe", "mistral3", "olmo", "arcee")
WITH_WINDOWS = ("olmo3", "exaone4")
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
EXPERT_PARTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
ROUTERS = ("ffn_gate_inp.", "ffn_gate_inp_shexp.")
OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}

EXPERT = re.compile(r"model\.layers\.(\d+)\..+\.experts\.(\d+)\.(\w+)\.weight")

Choose = Callable[[str], str]
"""A function from a matrix's GGUF name to its storage type."""


def write_gguf(
    checkpoint: Path,
    path: Path,
    dtype: str | Choose = "BF16",
    *,
    metadata: Mapping[str, Any] | None = None,
    split: int = 0,
    stack: bool = True,
    further: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a checkpoint as GGUF.

    Args:
        checkpoint: Directory of the checkpoint.
        path: File to write.
        dtype: Storage type of matrices, or a function that chooses it.
        metadata: Entries to override: strings, numbers, lists; None omits an entry.
        split: Number of tensors per part; 0 writes one file.
        stack: Store all experts of a layer in one tensor, as files since 2024 do.
        further: Further matrices, by llama.cpp's names.
    """
    source = open_source(checkpoint)
    config = source.config
    if config["model_type"] in OLDER:
        from support.gguf_older import write_older_gguf

        assert isinstance(dtype, str), "these are written with one type"
        return write_older_gguf(checkpoint, path, dtype)
    name = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, name, split_max_tensors=split)
    entries = _entries(config, name)
    if (checkpoint / "tokenizer_config.json").is_file():
        entries |= tokenizer_entries(checkpoint)
    for key, value in {**entries, **(metadata or {})}.items():
        add_entry(writer, key, value)
    choose = dtype if callable(dtype) else lambda _: dtype
    experts: dict[str, dict[int, np.ndarray]] = {}
    for ours, tensor in source.tensors.items():
        values = tensor.read().reshape(tensor.shape)
        parts = gpt_oss_parts(ours, values) or granite_parts(ours, values)
        for theirs, part in parts.items():
            is_small = part.ndim < 2 or "bias" in theirs or "ffn_gate_inp" in theirs
            add_tensor(writer, theirs, part, "F32" if is_small else choose(theirs))
        if parts:
            continue
        expert = EXPERT.fullmatch(ours)
        if expert and not stack:
            part = EXPERT_PARTS[expert[3]].removesuffix("_exps")
            theirs = f"blk.{expert[1]}.{part}.{expert[2]}.weight"
            add_tensor(writer, theirs, values, choose(theirs))
            continue
        if expert:
            theirs = f"blk.{expert[1]}.{EXPERT_PARTS[expert[3]]}.weight"
            experts.setdefault(theirs, {})[int(expert[2])] = values
            continue
        theirs = gguf_name(ours, post_norms=name in WITH_POST_NORMS)
        if name in GEMMAS and ours.endswith("norm.weight"):
            values = values + np.float32(1.0)
        if name in INTERLEAVED and ("q_proj" in ours or "k_proj" in ours):
            values = interleave(values, _head_dim(config))
        if theirs.endswith("ffn_gate_inp_shexp.weight"):
            values = values[0]
        is_small = values.ndim == 1 or any(router in theirs for router in ROUTERS)
        add_tensor(writer, theirs, values, "F32" if is_small else choose(theirs))
    for theirs, parts in experts.items():
        values = np.stack([parts[number] for number in range(len(parts))])
        add_tensor(writer, theirs, values, choose(theirs))
    for theirs, divisors in _divisors(config).items():
        add_tensor(writer, theirs, divisors, "F32")
    for theirs, values in (further or {}).items():
        add_tensor(writer, theirs, values, choose(theirs))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def q4_k_m(name: str, layers: int = 2) -> str:
    """Return the type that the mix Q4_K_M assigns to a tensor, by its GGUF name."""
    if name == "output.weight":
        return "Q6_K"
    if any(part in name for part in ("attn_v", "ffn_down")):
        return "Q6_K" if use_more_bits(int(name.split(".")[1]), layers) else "Q4_K"
    return "Q4_K"


def gguf_name(name: str, *, post_norms: bool) -> str:
    """Return llama.cpp's name of a tensor, given whether the architecture has post-norms."""
    stem, _, ending = name.removeprefix("model.").rpartition(".")
    if ending == "e_score_correction_bias":
        return f"blk.{stem.split('.')[1]}.exp_probs_b.bias"
    if not stem.startswith("layers."):
        return f"{OUTSIDE[stem]}.{ending}"
    _, layer, part = stem.split(".", 2)
    if part == "post_attention_layernorm":
        theirs = "post_attention_norm" if post_norms else "ffn_norm"
    else:
        theirs = PARTS[part]
    return f"blk.{layer}.{theirs}.{ending}"


def gpt_oss_parts(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return llama.cpp's tensors of what gpt-oss stores in another form; none for other tensors."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(?:self_attn|mlp\.experts)\.(\w+)", name)
    if match is None:
        return {}
    block, kind = f"blk.{match[1]}", match[2]
    if kind == "sinks":
        return {f"{block}.attn_sinks.weight": values}
    ending = "bias" if kind.endswith("_bias") else "weight"
    if ending == "weight":
        values = values.swapaxes(1, 2)
    if kind.startswith("down"):
        return {f"{block}.ffn_down_exps.{ending}": np.ascontiguousarray(values)}
    return {
        f"{block}.ffn_{part}_exps.{ending}": np.ascontiguousarray(values[:, first::2])
        for first, part in enumerate(("gate", "up"))
    }


def granite_parts(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return llama.cpp's tensors of the parts of Granite's mixtures; none for other tensors."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(block_sparse_moe|shared_mlp)\.(.+)\.weight", name)
    if match is None or match[3] not in ("input_linear", "output_linear", "router.layer"):
        return {}
    block, ending = f"blk.{match[1]}", "exps" if match[2] == "block_sparse_moe" else "shexp"
    if match[3] == "router.layer":
        return {f"{block}.ffn_gate_inp.weight": values}
    if match[3] == "output_linear":
        return {f"{block}.ffn_down_{ending}.weight": values}
    gate, up = np.split(values, 2, axis=-2)
    return {
        f"{block}.ffn_gate_{ending}.weight": np.ascontiguousarray(gate),
        f"{block}.ffn_up_{ending}.weight": np.ascontiguousarray(up),
    }


def interleave(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Permute the rows of each head to llama.cpp's order: 0, d/2, 1, d/2 + 1, ..."""
    heads = values.shape[0] // head_dim
    halves = values.reshape(heads, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _head_dim(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return parameters.get("full_attention", parameters)


def _entries(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    rope = _rope(config)
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    if "alpha" in rope:
        theta *= rope["alpha"] ** (_head_dim(config) / (_head_dim(config) - 2))
    entries: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": _head_dim(config),
        "attention.value_length": _head_dim(config),
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-5)),
        "rope.freq_base": float(theta),
        "rope.dimension_count": int(_head_dim(config) * rope.get("partial_rotary_factor", 1.0)),
    }
    if name in (*GEMMAS, "phi3", "phimoe") or config["model_type"] in ("mistral", "mixtral"):
        entries["attention.sliding_window"] = config["sliding_window"] or 0
    if config.get("clip_qkv"):
        entries["attention.clamp_kqv"] = config["clip_qkv"]
    if config["model_type"] in WITH_WINDOWS:
        types = config["layer_types"]
        entries["attention.sliding_window"] = config["sliding_window"]
        entries["attention.sliding_window_pattern"] = [kind != "full_attention" for kind in types]
    for key, theirs in EXPERT_KEYS.items():
        if key in config:
            entries[theirs] = config[key]
    if name.startswith("granite"):
        for key, theirs in GRANITE_KEYS.items():
            entries[theirs] = float(config[key])
        if config.get("shared_intermediate_size"):
            shared = config["shared_intermediate_size"]
            entries["expert_shared_feed_forward_length"] = shared
    if name == "olmo":
        eps = entries.pop("attention.layer_norm_rms_epsilon")
        entries["attention.layer_norm_epsilon"] = eps
    if name == "mistral3":
        length = rope["original_max_position_embeddings"]
        entries["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
        entries["attention.temperature_length"] = length
        entries["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
    if name == "gpt-oss":
        entries["attention.sliding_window"] = config["sliding_window"]
        entries["expert_feed_forward_length"] = config["intermediate_size"]
    if name == "minimax-m2":
        entries["expert_feed_forward_length"] = config["intermediate_size"]
        entries["expert_gating_func"] = int(gguf.ExpertGatingFuncType.SIGMOID)
    if name == "gemma2":
        entries["attn_logit_softcapping"] = config["attn_logit_softcapping"]
        entries["final_logit_softcapping"] = config["final_logit_softcapping"]
    if name == "phimoe":
        entries["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        entries["rope.scaling.attn_factor"] = rope["short_mscale"]
    if name == "phi3":
        original = config["original_max_position_embeddings"]
        entries["rope.scaling.original_context_length"] = original
        factor = config["max_position_embeddings"] / original
        entries["rope.scaling.attn_factor"] = (1 + np.log(factor) / np.log(original)).item() ** 0.5
    if name == "gemma3":
        types = config["layer_types"]
        entries["attention.sliding_window_pattern"] = [kind != "full_attention" for kind in types]
        entries["attention.scale"] = float(config["query_pre_attn_scalar"]) ** -0.5
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        entries["rope.scaling.type"] = kind
        entries["rope.scaling.factor"] = float(rope["factor"])
        context = rope.get("original_max_position_embeddings")
        if context:
            entries["rope.scaling.original_context_length"] = context
    return {f"{name}.{key}": value for key, value in entries.items()}


GRANITE_KEYS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "logits_scaling": "logit_scale",
    "residual_multiplier": "residual_scale",
}
EXPERT_KEYS = {
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}


def _divisors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the divisors of the rope frequencies; those of llama3 as transformers computes."""
    rope = _rope(config)
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.float32(rope[f"{kind}_factor"])
            for kind in ("long", "short")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain = {"rope_theta": rope["rope_theta"], "rope_type": "default"}
    size = _head_dim(config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](
        LlamaConfig(**{**config, "rope_parameters": rope}), "cpu"
    )
    steps = np.arange(0, size, 2, dtype=np.float64) / size
    divisors = plain["rope_theta"] ** -steps / scaled.double().numpy()
    return {"rope_freqs.weight": divisors.astype(np.float32)}


def decoded_tensors(path: Path) -> dict[str, Any]:
    """Return every tensor of a file as gguf-py decodes it, by name."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            tensor.shape[::-1]
        )
        for tensor in gguf.GGUFReader(path).tensors
    }
