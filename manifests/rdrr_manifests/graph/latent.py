"""Translate the sizes of multi-head latent attention into its op."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import LatentAttention, Norm, RopeSpec, WeightKind, WeightUse
from rdrr_manifests.graph.rotary import rope_spec
from rdrr_manifests.models.manifest import Manifest


@dataclass(frozen=True)
class LatentSizes:
    """The sizes of the latents and of the parts of a head, in elements.

    Attributes:
        latent: Width of the latent of keys and values.
        queries: Width of the latent of queries; None if there is none.
        key_dim: Elements of a head's key that are made of the latent.
        rope_dim: Elements of a head's key that are rotated.
        value_dim: Elements of a head's value.
    """

    latent: int
    queries: int | None
    key_dim: int
    rope_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Elements of a head's query."""
        return self.key_dim + self.rope_dim


def latent_sizes(manifest: Manifest) -> LatentSizes | None:
    """Return the sizes of a model with latent attention; None for other attention."""
    sizes = manifest.architecture
    parts = (sizes.qk_nope_head_dim, sizes.qk_rope_head_dim, sizes.v_head_dim)
    if sizes.kv_lora_rank is None or None in parts:
        return None
    key_dim, rope_dim, value_dim = (part or 0 for part in parts)
    return LatentSizes(sizes.kv_lora_rank, sizes.q_lora_rank, key_dim, rope_dim, value_dim)


def latent_rope(manifest: Manifest, sizes: LatentSizes) -> RopeSpec:
    """Return the rotary embedding of the rotated part of each head."""
    spec = rope_spec(manifest, is_global=True)
    return replace(spec, head_dim=sizes.rope_dim, rotary_dim=sizes.rope_dim)


def latent_norm(manifest: Manifest, stem: str, width: int, x: str, out: str) -> Norm:
    """Return the norm of a latent of queries, given the name of its tensor without `.weight`."""
    weight = WeightUse(f"{stem}.weight", (width,), WeightKind.VECTOR)
    return Norm(x, out, weight, _eps(manifest), unit_offset=False)


def latent_attention(
    manifest: Manifest, names: TensorNames, layer: int, q: str, kv: str, table: int
) -> LatentAttention:
    """Return the attention of a layer.

    Args:
        manifest: Manifest of a model for which `latent_sizes` is not None.
        names: Names of the tensors.
        layer: Index of the layer.
        q: Value of the queries.
        kv: Value of the latents and shared keys.
        table: Index of the rotary embedding in the graph.
    """
    sizes, heads = latent_sizes(manifest), manifest.architecture.num_attention_heads
    assert sizes is not None
    norm = names.layer(layer, "self_attn.kv_a_layernorm.weight")
    up = names.layer(layer, "self_attn.kv_b_proj.weight")
    return LatentAttention(
        q=q,
        kv=kv,
        out=f"l{layer}.attn",
        norm=WeightUse(norm, (sizes.latent,), WeightKind.VECTOR),
        up=WeightUse(up, (heads * (sizes.key_dim + sizes.value_dim), sizes.latent)),
        layer=layer,
        heads=heads,
        key_dim=sizes.key_dim,
        rope_dim=sizes.rope_dim,
        value_dim=sizes.value_dim,
        table=table,
        interleaved=manifest.inference.rope.rope_interleaved,
        eps=_eps(manifest),
        scale=1.0 / sqrt(manifest.inference.attention.query_pre_attn_scalar),
    )


def _eps(manifest: Manifest) -> float:
    stated = manifest.inference.attention.latent_norm_eps
    return manifest.inference.normalization.rms_norm_eps if stated is None else stated
