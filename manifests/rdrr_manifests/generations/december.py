"""Translate manifests of December 2025, whose sizes and settings are in a raw configuration.

There are no typed blocks. The configuration is that of Hugging Face, the metadata of a GGUF file,
or a hand-written one. What it does not state is inferred from the tensors, and the result is marked
as inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rdrr_manifests.generations.blocks import eos_of
from rdrr_manifests.generations.normalized import Draft, block, is_int, is_number

_SIZES: Mapping[str, tuple[str, ...]] = {
    "numLayers": ("numLayers", "num_hidden_layers", "num_layers", "n_layer", ".block_count"),
    "hiddenSize": ("hiddenSize", "hidden_size", "n_embd", ".embedding_length"),
    "intermediateSize": (
        "intermediateSize",
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        ".feed_forward_length",
    ),
    "numAttentionHeads": (
        "numAttentionHeads",
        "numHeads",
        "num_attention_heads",
        "n_head",
        ".attention.head_count",
    ),
    "numKeyValueHeads": (
        "numKeyValueHeads",
        "numKVHeads",
        "num_key_value_heads",
        ".attention.head_count_kv",
    ),
    "headDim": ("headDim", "head_dim", ".attention.key_length"),
    "vocabSize": ("vocabSize", "vocab_size", ".vocab_size"),
    "maxSeqLen": (
        "maxSeqLen",
        "contextLength",
        "max_position_embeddings",
        "max_seq_len",
        "n_positions",
        ".context_length",
    ),
}
"""The names of each size in configurations.

A name with a leading dot is the end of a GGUF key, which begins with the model family.
"""

_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
}


def translate(draft: Draft) -> None:
    """Build the typed blocks of a December manifest, in place."""
    data = draft.data
    config = dict(block(data, "config"))
    config.update(block(config, "text_config"))
    stated = data.get("architecture")
    if isinstance(stated, str):
        draft.note(f"architecture {stated!r} was moved to metadata; sizes were taken from config")
        data["metadata"] = {**block(data, "metadata"), "architectureName": stated}
    data["architecture"] = _sizes(draft, {**config, **block(data, "architecture")})
    draft.inferred = True
    data["inference"] = _inference(data, config)
    draft.note("inference was inferred from config and the tensors")
    eos = eos_of(data)
    if eos is not None:
        data["eos_token_id"] = eos
    if data.get("quantizationInfo") is None and isinstance(data.get("quantization"), str):
        layout = next(
            (
                value
                for value in (
                    config.get("q4kLayout"),
                    block(block(data, "conversion"), "quantization").get("layout"),
                )
                if isinstance(value, str)
            ),
            "row",
        )
        data["quantizationInfo"] = {
            "weights": data["quantization"].lower(),
            "layout": layout,
        }
        draft.note("quantizationInfo was derived from quantization and config")


def _sizes(draft: Draft, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block `architecture`: sizes of the configuration, or derived from others."""
    sizes = {key: _lookup(config, names, is_int) for key, names in _SIZES.items()}
    hidden, heads = sizes["hiddenSize"], sizes["numAttentionHeads"]
    if sizes["headDim"] is None and hidden and heads and heads > 0:
        sizes["headDim"] = hidden // heads
        draft.note("architecture.headDim was computed from hiddenSize and numAttentionHeads")
    if sizes["numKeyValueHeads"] is None and heads:
        sizes["numKeyValueHeads"] = heads
        draft.note("architecture.numKeyValueHeads was assumed to equal numAttentionHeads")
    if sizes["intermediateSize"] is None:
        sizes["intermediateSize"] = _feed_forward_width(block(draft.data, "tensors"))
        draft.note("architecture.intermediateSize was taken from the tensors")
    return {key: value for key, value in sizes.items() if value is not None}


def _lookup(
    config: Mapping[str, Any], names: tuple[str, ...], is_valid: Callable[[object], bool]
) -> Any:
    """Return the first valid value under any of these names, in their order; None if none."""
    for name in names:
        if name.startswith("."):
            matches = (value for key, value in config.items() if key.endswith(name))
        else:
            matches = (value for key, value in config.items() if key == name)
        for value in matches:
            if is_valid(value):
                return value
    return None


def _feed_forward_width(tensors: Mapping[str, Any]) -> int | None:
    """Return the output width of the first up projection; None if no name matches."""
    for name, entry in tensors.items():
        parts = name.split(".")
        is_up = parts[-1] == "weight" and parts[-2:-1] in (
            ["up"],
            ["up_proj"],
            ["ffn_up"],
            ["w3"],
        )
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if is_up and isinstance(shape, list) and len(shape) == 2 and is_int(shape[0]):
            return int(shape[0])
    return None


def _inference(data: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block `inference`, inferred from the configuration and the tensor names."""
    names = list(block(data, "tensors"))
    sizes = block(data, "architecture")

    def number(*keys: str) -> Any:
        return _lookup(config, keys, is_number)

    def has(suffix: str) -> bool:
        return any(name.endswith(suffix) for name in names)

    period = number("sliding_window_pattern")
    kinds = config.get("layer_types")
    pattern: dict[str, Any] = {"type": "uniform"}
    if isinstance(kinds, list):
        pattern = {"type": "custom", "layerTypes": kinds}
    elif is_int(period) and period > 0:
        pattern = {"type": "every_n", "period": period, "offset": period - 1}
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    return {
        "schema": None,
        "attention": {
            "queryPreAttnScalar": number("query_pre_attn_scalar") or sizes.get("headDim") or 1,
            "attnLogitSoftcapping": number("attn_logit_softcapping"),
            "slidingWindow": (
                None if config.get("use_sliding_window") is False else number("sliding_window")
            ),
            "queryKeyNorm": has(".q_norm.weight"),
            "attentionBias": has(".q_proj.bias"),
        },
        "normalization": {
            "rmsNormEps": number("rms_norm_eps", ".attention.layer_norm_rms_epsilon") or 1e-5,
            "rmsNormWeightOffset": config.get("rms_norm_weight_offset") is True,
            "postAttentionNorm": has(".post_attention_layernorm.weight"),
            "preFeedforwardNorm": has(".pre_feedforward_layernorm.weight"),
            "postFeedforwardNorm": has(".post_feedforward_layernorm.weight"),
        },
        "ffn": {"activation": _ACTIVATIONS.get(str(activation), str(activation))},
        "rope": _rope(config, number),
        "output": {
            "finalLogitSoftcapping": number("final_logit_softcapping"),
            "tieWordEmbeddings": not has("lm_head.weight"),
            "scaleEmbeddings": config.get("scale_embeddings") is True,
        },
        "layerPattern": pattern,
    }


def _rope(config: Mapping[str, Any], number: Callable[..., Any]) -> dict[str, Any]:
    """Return the block `inference.rope`, inferred from the configuration."""
    scaling = block(config, "rope_scaling")
    kind = scaling.get("rope_type") or scaling.get("type")
    rope = {
        "ropeTheta": number("rope_theta", ".rope.freq_base") or 10000.0,
        "ropeLocalTheta": number("rope_local_base_freq"),
        "partialRotaryFactor": number("partial_rotary_factor"),
        "ropeScalingType": None if kind in (None, "default") else str(kind),
    }
    fields = {
        "factor": "ropeScalingFactor",
        "low_freq_factor": "llama3LowFreqFactor",
        "high_freq_factor": "llama3HighFreqFactor",
        "beta_fast": "yarnBetaFast",
        "beta_slow": "yarnBetaSlow",
        "original_max_position_embeddings": (
            "llama3OriginalMaxPos" if kind == "llama3" else "yarnOriginalMaxPos"
        ),
    }
    rope.update({name: scaling[key] for key, name in fields.items() if is_number(scaling.get(key))})
    return rope
