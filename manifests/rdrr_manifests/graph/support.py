"""Refuse manifests whose blocks need something that no op of the graph computes."""

from __future__ import annotations

from typing import Any

from rdrr_format.errors import ManifestError

from rdrr_manifests.faults import Fault, shown
from rdrr_manifests.graph.experts import has_known_clamp, has_known_form_without_gates
from rdrr_manifests.graph.layer_sizes import head_dim_of, layer_sizes
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.recurrent_layers import RECURRENT_LAYERS
from rdrr_manifests.graph.routing import has_known_router
from rdrr_manifests.models.experts import MoeConfig
from rdrr_manifests.models.inference import Attention
from rdrr_manifests.models.manifest import Manifest

_SCALINGS = (None, "linear", "llama3", "yarn", "longrope")
FEED_FORWARD = "feed_forward"
"""The type of layers without attention or state, if each layer has a single branch."""

NEEDS_NEWER = "this package needs a newer rdrr: no op computes what this field asks for"


def check_supported(manifest: Manifest, names: TensorNames) -> None:
    """Check that the set of ops can compute what the blocks state.

    Raises:
        ManifestError: It cannot ("needs a newer rdrr"; `faults` has every field with its value), or
            the layer pattern omits layers.
    """
    kinds = manifest.inference.layer_pattern.layer_types
    if kinds is not None and len(kinds) < manifest.architecture.num_layers:
        raise ManifestError(
            "the layer pattern does not cover every layer",
            where="inference.layerPattern.layerTypes",
            expected=f"{manifest.architecture.num_layers} layer types",
            found=len(kinds),
        )
    unsupported = [where for where, is_not in _unsupported(manifest, names).items() if is_not]
    if unsupported:
        faults = [_unsupported_field(manifest, where) for where in unsupported]
        raise ManifestError(NEEDS_NEWER, where=unsupported[0], found=faults[0].found, faults=faults)


def _unsupported_field(manifest: Manifest, where: str) -> Fault:
    """Return the fault of a field that no op serves, with its value."""
    value: Any = manifest.model_dump(by_alias=True, exclude={"tensors", "shards", "groups"})
    for key in where.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, (list, tuple)):
        value = ", ".join(sorted({str(item) for item in value}))
    return Fault("graph-support", "warning", where, NEEDS_NEWER, found=shown(value))


def _unsupported(manifest: Manifest, names: TensorNames) -> dict[str, bool]:
    """Return, for each field that can need an unsupported op, whether it does."""
    blocks, moe = manifest.inference, manifest.moe_config
    scaling = (blocks.rope.rope_scaling_type, blocks.rope.rope_local_scaling_type)
    bases = (
        (blocks.rope.rope_frequency_base_dim, head_dim_of(manifest, is_global=True)),
        (blocks.rope.rope_local_frequency_base_dim, manifest.architecture.head_dim),
    )
    return {
        "modelType": manifest.model_type not in ("transformer", "embedding", "gemma4"),
        "moeConfig": moe is not None and not _has_known_experts(manifest, moe, names),
        "inference.attention.causal": not blocks.attention.causal
        and (blocks.output.embedding_postprocessor is None or not _is_plain(manifest)),
        "inference.attention.relativeBiasBuckets": not _has_sound_bias(blocks.attention),
        "inference.attention.maxAlibiBias": blocks.attention.max_alibi_bias is not None
        and blocks.attention.causal,
        "inference.output.tokenTypes": blocks.output.token_types is not None
        and blocks.attention.causal,
        "inference.normalization.normAfterResidual": not _has_known_norms(manifest),
        "inference.ffn.gatedActivation": moe is not None
        and not blocks.ffn.gated_activation
        and not has_known_form_without_gates(manifest, moe, names),
        "inference.ffn.swigluLimit": not has_known_clamp(blocks.ffn),
        "inference.ffn.activationSparsity": not _has_sound_sparsity(manifest),
        "architecture.altupActiveIndex": (manifest.architecture.altup_active_index or 0)
        >= (manifest.architecture.altup_num_inputs or 1),
        "architecture.altupNumInputs": bool(manifest.architecture.altup_num_inputs)
        and not manifest.architecture.hidden_size_per_layer_input,
        "inference.rope.ropeFrequencyBaseDim": any(base not in (None, dim) for base, dim in bases),
        "architecture.numKvSharedLayers": any(
            layer.cache is None for layer in layer_sizes(manifest)
        ),
        "inference.rope.ropeScalingType": any(kind not in _SCALINGS for kind in scaling),
        "architecture.linearNormMode": manifest.architecture.linear_norm_mode
        not in (None, "shared"),
        "inference.output.embeddingTranspose": blocks.output.embedding_transpose,
        "inference.layerPattern.layerTypes": any(
            kind not in _known_types(manifest) for kind in blocks.layer_pattern.layer_types or ()
        ),
    }


def _has_sound_bias(attention: Attention) -> bool:
    """Return whether a bias by distance, if there is one, has buckets, and reads later tokens."""
    buckets, distance = attention.relative_bias_buckets, attention.relative_bias_distance
    # The first distance of the last bucket comes after those that have buckets of their own.
    return buckets is None or (not attention.causal and (distance or 0) > buckets // 4)


def _known_types(manifest: Manifest) -> tuple[str, ...]:
    """Return the layer types that the layers of a model may have."""
    alone = (FEED_FORWARD,) if manifest.inference.layer_pattern.single_branch else ()
    return ("full_attention", "sliding_attention", *RECURRENT_LAYERS, *alone)


def _is_plain(manifest: Manifest) -> bool:
    """Return whether every layer has attention with keys of each head."""
    kinds = manifest.inference.layer_pattern.layer_types or ()
    has_latents = manifest.architecture.kv_lora_rank is not None
    return not has_latents and not any(kind in RECURRENT_LAYERS for kind in kinds)


def _has_known_norms(manifest: Manifest) -> bool:
    """Return whether the norms of sums, if there are any, stand in layers of the usual form."""
    norms, pattern = manifest.inference.normalization, manifest.inference.layer_pattern
    further = (
        pattern.parallel_residual,
        pattern.single_branch,
        norms.pre_feedforward_norm,
        norms.post_feedforward_norm,
        manifest.architecture.altup_num_inputs,
        manifest.architecture.hidden_size_per_layer_input,
        any(kind in RECURRENT_LAYERS for kind in pattern.layer_types or ()),
    )
    return not norms.norm_after_residual or not any(further)


def _has_sound_sparsity(manifest: Manifest) -> bool:
    """Return whether every layer has a share of zeros for which a cutoff exists, or none has."""
    shares = manifest.inference.ffn.activation_sparsity
    layers = manifest.architecture.num_layers
    return shares is None or (len(shares) == layers and all(0 <= share < 1 for share in shares))


def _has_known_experts(manifest: Manifest, moe: MoeConfig, names: TensorNames) -> bool:
    """Return whether the experts are stored as separate matrices under known names."""
    layers = range(manifest.architecture.num_layers)
    with_experts = sum(names.experts(layer) is not None for layer in layers)
    # Deriving a graph takes time for every expert, and a hostile manifest may state millions.
    is_stored = with_experts * moe.num_experts <= len(names)
    is_sound = 1 <= moe.num_experts_per_token <= moe.num_experts and has_known_router(moe)
    return bool(with_experts) and is_stored and is_sound and moe.expert_format == "mixtral"
