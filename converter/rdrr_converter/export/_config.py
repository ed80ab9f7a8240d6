"""Building a `config.json` from the manifest's typed blocks.

A package does not contain the configuration of its checkpoint, and a package of another writer may
not come from a checkpoint at all. The configuration is therefore rebuilt, in the older form that
all versions of transformers read, and checked (`_check.py`) before anything is exported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError
from rdrr_manifests.graph.ops import Attention
from rdrr_manifests.logical import HEAD, LogicalTensor
from rdrr_manifests.models import Manifest, MoeConfig
from rdrr_manifests.models.inference import Attention as AttentionBlock
from rdrr_manifests.models.inference import Inference, Rope
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ARCHITECTURES, ArchitectureRule, find_architecture
from rdrr_converter.architectures.base import Block
from rdrr_converter.architectures.config import STATED_ACTIVATIONS, Flag, KeyRule
from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.export._check import check_config, check_described
from rdrr_converter.export._latent import with_latents
from rdrr_converter.export._mixtures import further_keys

_SIZES: Mapping[str, str] = MappingProxyType(
    {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_attention_heads",
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "max_position_embeddings": "max_seq_len",
    }
)
_SCALINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "linear": {},
        "llama3": {
            "low_freq_factor": "llama3_low_freq_factor",
            "high_freq_factor": "llama3_high_freq_factor",
            "original_max_position_embeddings": "llama3_original_max_pos",
        },
        "yarn": {
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
            "attention_factor": "yarn_attention_factor",
            "original_max_position_embeddings": "yarn_original_max_pos",
        },
        "longrope": {
            "short_factor": "longrope_short_factor",
            "long_factor": "longrope_long_factor",
            "original_max_position_embeddings": "longrope_original_max_pos",
            "short_mscale": "longrope_short_attention_factor",
            "long_mscale": "longrope_long_attention_factor",
        },
    }
)
"""Keys of `rope_scaling`, and the fields of the block `inference.rope` with their values."""


def find_rule(
    package: Package, tensors: Sequence[LogicalTensor], arch: str | None
) -> tuple[ArchitectureRule, dict[str, Any]]:
    """Find the architecture of a package, and build a configuration of the package's model.

    Args:
        package: The package.
        tensors: Its tensors.
        arch: Name of the architecture to use; None for the one that the package names, else the
            first one whose configuration can describe the model.

    Raises:
        UsageError: `arch` names no supported architecture.
        ConversionError: The given architecture, or none of all, can describe the model.
        ManifestError: The model needs a feature that this version does not support.
    """
    if arch is not None:
        return _try(find_architecture({}, arch, package.where), package, tensors)
    named = package.manifest.metadata.get("sourceArchitecture")
    preferred = [rule for rule in ARCHITECTURES if rule.name == named]
    refusal: ConversionError | None = None
    for rule in (*preferred, *ARCHITECTURES):
        try:
            return _try(rule, package, tensors)
        except ConversionError as error:
            refusal = refusal or (error if preferred else None)
    raise refusal or ConversionError(
        "no supported architecture computes the same as this package",
        where=package.where,
        expected=", ".join(rule.name for rule in ARCHITECTURES),
    )


def _try(
    rule: ArchitectureRule, package: Package, tensors: Sequence[LogicalTensor]
) -> tuple[ArchitectureRule, dict[str, Any]]:
    config = rebuild_config(package, rule, tensors)
    model = check_config(config, package.manifest, rule, tensors, package.where)
    check_described(config, package, rule, tensors, model)
    return rule, config


def rebuild_config(
    package: Package, rule: ArchitectureRule, tensors: Sequence[LogicalTensor]
) -> dict[str, Any]:
    """Build the content of `config.json` for the package's model.

    Raises:
        ConversionError: The model has a factor that no configuration can express.
        ManifestError: The model needs a feature that this version does not support.
    """
    manifest, blocks = package.manifest, package.manifest.inference
    names = {tensor.name for tensor in tensors}
    windows = [op.window for op in package.graph.ops if isinstance(op, Attention)]
    activation = STATED_ACTIVATIONS.get(blocks.ffn.activation, blocks.ffn.activation)
    config: dict[str, Any] = {
        "architectures": [rule.classes[0]],
        "model_type": rule.text_type or rule.name,
        **{key: getattr(manifest.architecture, field) for key, field in _SIZES.items()},
        "rms_norm_eps": blocks.normalization.rms_norm_eps,
        "hidden_act": activation,
        **_tensor_flags(rule, names, manifest.architecture.num_layers),
        "tie_word_embeddings": HEAD not in names,
        **_rope(blocks.rope, blocks.attention),
        **_special_tokens(manifest),
    }
    known = rule.defaults
    if "hidden_activation" in known:
        config["hidden_activation"] = config.pop("hidden_act")
    config |= _window_keys(windows, blocks.attention, known)
    if "no_rope_layer_interval" in known:
        plain = blocks.rope.unrotated_layers or ()
        config["no_rope_layers"] = [int(layer not in plain) for layer in range(len(windows))]
    if "swiglu_limit" in known:
        config["swiglu_limit"] = blocks.ffn.swiglu_limit
        config["swiglu_alpha"] = blocks.ffn.swiglu_alpha
    if rule.mask_token is not None:
        config[rule.mask_token] = manifest.mask_token_id
    if manifest.moe_config is not None:
        config |= _experts(manifest.moe_config, known, names, manifest.architecture.num_layers)
    config |= _score_scale(blocks, manifest.architecture.head_dim, known)
    optional = {
        "clip_qkv": blocks.attention.clip_qkv,
        "attn_logit_softcapping": blocks.attention.attn_logit_softcapping,
        "final_logit_softcapping": blocks.output.final_logit_softcapping,
        "partial_rotary_factor": blocks.rope.partial_rotary_factor
        or (1.0 if "partial_rotary_factor" in known else None),
    }
    config |= {key: value for key, value in optional.items() if value is not None or key in known}
    if "rotary_dim" in known:  # what MiniMax publishes in place of a part of the head
        config["rotary_dim"] = round(config["head_dim"] * config["partial_rotary_factor"])
    config = with_latents(rule.exported(config, manifest, names), manifest, known)
    config = _of_older_families(config, blocks, known)
    stated = _stated_keys(rule, manifest)
    return config | {key: value for key, value in stated.items() if key not in config}


def _stated_keys(rule: ArchitectureRule, manifest: Manifest) -> dict[str, Any]:
    """Return the keys that the rules of an architecture read as fields of the manifest."""
    blocks = manifest.inference
    fields: tuple[tuple[Block, object], ...] = (
        (rule.attention, blocks.attention),
        (rule.normalization, blocks.normalization),
        (rule.ffn, blocks.ffn),
        (rule.output, blocks.output),
        (rule.pattern, blocks.layer_pattern),
        (rule.sizes, manifest.architecture),
        (rule.experts or {}, manifest.moe_config),
        (rule.state_space or {}, blocks.state_space),
    )
    return {
        key: read.stored(value)
        for block, values in fields
        for field, read in block.items()
        if isinstance(read, KeyRule) and (value := getattr(values, field, None)) is not None
        for key in read.keys
        if key in rule.defaults
    }


def _window_keys(
    windows: Sequence[int | None], attention: AttentionBlock, known: Mapping[str, object]
) -> dict[str, Any]:
    """Return the keys that say which layers have a sliding window, and how long it is.

    Args:
        windows: The window of each layer with attention; None for none.
        attention: The manifest's block.
        known: Keys of the architecture that have a default.
    """
    keys: dict[str, Any] = {}
    if any(windows) or "sliding_window" in known:
        keys["sliding_window"] = max((window or 0 for window in windows), default=0) or None
    if not attention.causal:  # readers derive the window of each side from this one
        keys["sliding_window"] = attention.sliding_window
        keys["use_bidirectional_attention"] = True
    if "use_sliding_window" in known:
        keys["use_sliding_window"] = any(windows)
    if len(set(windows)) > 1:
        keys["layer_types"] = [SLIDING if window else FULL for window in windows]
    return keys


def _score_scale(blocks: Inference, head_dim: int, known: Mapping[str, object]) -> dict[str, Any]:
    """Return the keys that state the scale of attention scores, none for the usual one.

    Args:
        blocks: The manifest's blocks.
        head_dim: The head dimension, whose root usually divides the scores.
        known: Keys of the architecture that have a default.
    """
    if "attention_multiplier" in known:
        return _multipliers(blocks)
    scalar = blocks.attention.query_pre_attn_scalar
    if "scale_attn_weights" in known and scalar == 1.0:
        return {"scale_attn_weights": False}
    if "query_pre_attn_scalar" in known or scalar != head_dim:
        return {"query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar}
    return {}


def _of_older_families(
    config: dict[str, Any], blocks: Inference, known: Mapping[str, object]
) -> dict[str, Any]:
    """Return a configuration with the keys of families with LayerNorm, and without those of Llama.

    Args:
        config: The configuration so far.
        blocks: The manifest's blocks.
        known: Keys of the architecture that have a default.
    """
    norms = blocks.normalization
    stated = {
        "_remove_final_layer_norm": not (norms.final_norm or norms.norm_after_residual),
        "do_layer_norm_before": not norms.norm_after_residual,
        "word_embed_proj_dim": blocks.output.embedding_size or config["hidden_size"],
        "use_parallel_residual": blocks.layer_pattern.parallel_residual,
        "logit_scale": blocks.output.logit_input_scale,
    }
    keys = config | {key: value for key, value in stated.items() if key in known}
    if blocks.output.position_embedding_offset is not None:
        keys.pop("rope_theta", None)
    if norms.layer_norm and "rms_norm_eps" not in known:
        keys.pop("rms_norm_eps", None)
    return keys


def published_keys(config: Mapping[str, Any], rule: ArchitectureRule) -> dict[str, Any]:
    """Return a configuration with the names of keys that transformers writes."""
    named = {rule.keys.get(key, key): value for key, value in config.items()}
    return {key: value for key, value in named.items() if key}


def _tensor_flags(rule: ArchitectureRule, names: Collection[str], layers: int) -> dict[str, bool]:
    """Return the flags that say which tensors exist, true if any layer has such a tensor."""
    flags: dict[str, bool] = {}
    for row in rule.tensors:
        if isinstance(row.required, Flag):
            is_there = any(row.name.format(layer=layer) in names for layer in range(layers))
            flags[row.required.key] = flags.get(row.required.key, False) or is_there
    return flags


def _multipliers(blocks: Inference) -> dict[str, Any]:
    """Return Granite's factors on embeddings, attention scores, branches and logits."""
    output = blocks.output
    if not output.logit_input_scale:
        raise ConversionError("a configuration cannot express a factor of 0 on the hidden state")
    return {
        "attention_multiplier": blocks.attention.query_pre_attn_scalar**-0.5,
        "embedding_multiplier": output.embedding_scale or 1.0,
        "logits_scaling": 1.0 / output.logit_input_scale,
        "residual_multiplier": blocks.layer_pattern.residual_branch_scale,
    }


def _experts(
    moe: MoeConfig, known: Mapping[str, object], names: Collection[str], layers: int
) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "num_local_experts": moe.num_experts,
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.num_experts_per_token,
        "moe_intermediate_size": moe.expert_intermediate_size,
        "shared_expert_intermediate_size": moe.shared_expert_intermediate_size,
        "norm_topk_prob": moe.normalize_weights,
        "router_jitter_noise": (moe.sparsemixer_margin or 0.0) / 2.0,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [
            layer
            for layer in range(layers)
            if f"model.layers.{layer}.mlp.gate_proj.weight" in names
        ],
    }
    stated |= further_keys(moe, names, layers)
    stated_with = {"mlp_only_layers": "decoder_sparse_step"}
    return {key: value for key, value in stated.items() if stated_with.get(key, key) in known}


def _rope(block: Rope, attention: AttentionBlock) -> dict[str, Any]:
    config: dict[str, Any] = {"rope_theta": block.rope_theta}
    if block.rope_local_theta is not None:
        config["rope_local_base_freq"] = block.rope_local_theta
    kind = block.rope_scaling_type
    if kind is not None:
        fields = _SCALINGS.get(kind, {})
        stated = {key: getattr(block, field) for key, field in fields.items()}
        config["rope_scaling"] = {
            "rope_type": kind,
            "factor": block.rope_scaling_factor,
            **{key: _as_list(value) for key, value in stated.items() if value is not None},
        }
        if attention.temperature_scale is not None:
            config["rope_scaling"]["llama_4_scaling_beta"] = attention.temperature_scale
        if not block.yarn_truncate:
            config["rope_scaling"]["truncate"] = False
        # Phi-3 states the original context length outside of rope_scaling.
        if kind == "longrope" and block.longrope_short_attention_factor is None:
            context = config["rope_scaling"].pop("original_max_position_embeddings", None)
            config["original_max_position_embeddings"] = context
    return config


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _special_tokens(manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.tokenizer
    ends = list(manifest.eos_token_ids)
    # A missing id is written as null, because transformers would assume a default otherwise.
    return {
        "bos_token_id": tokenizer and tokenizer.bos_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer and tokenizer.pad_token_id,
    }
