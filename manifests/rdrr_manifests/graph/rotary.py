"""Translate the block `inference.rope` into the rotary embeddings of the graph."""

from __future__ import annotations

from rdrr_manifests.graph.layer_sizes import head_dim_of
from rdrr_manifests.graph.ops import RopeSpec
from rdrr_manifests.models.inference import Rope
from rdrr_manifests.models.manifest import Manifest


def rope_spec(manifest: Manifest, *, is_global: bool) -> RopeSpec:
    """Return the rotary embedding of global layers, or of sliding-window layers.

    Sliding-window layers use that of global layers unless the block states a base of their own.
    """
    rope, head_dim = manifest.inference.rope, head_dim_of(manifest, is_global=is_global)
    if manifest.vision is None:  # the three positions of text are equal
        rope = rope.model_copy(update={"mrope_section": None})
    if is_global or rope.rope_local_theta is None:
        return _global_spec(rope, head_dim)
    return _local_spec(rope, head_dim, rope.rope_local_theta)


def _global_spec(rope: Rope, head_dim: int) -> RopeSpec:
    rotary_dim, pairs = _rotation(
        head_dim, rope.partial_rotary_factor, rope.rope_frequency_base_dim
    )
    return RopeSpec(
        theta=rope.rope_theta,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        scaling=rope.rope_scaling_type,
        factor=rope.rope_scaling_factor,
        low_freq_factor=rope.llama3_low_freq_factor,
        high_freq_factor=rope.llama3_high_freq_factor,
        beta_fast=rope.yarn_beta_fast,
        beta_slow=rope.yarn_beta_slow,
        truncate=rope.yarn_truncate,
        original_max_pos=(
            rope.llama3_original_max_pos
            or rope.yarn_original_max_pos
            or rope.longrope_original_max_pos
        ),
        short_factor=rope.longrope_short_factor,
        long_factor=rope.longrope_long_factor,
        rotated_pairs=pairs,
        attention_factor=rope.longrope_short_attention_factor or rope.yarn_attention_factor,
        long_attention_factor=rope.longrope_long_attention_factor,
        sections=rope.mrope_section,
        sections_alternate=rope.mrope_section is not None and rope.mrope_interleaved,
    )


def _local_spec(rope: Rope, head_dim: int, theta: float) -> RopeSpec:
    partial, base = rope.rope_local_partial_rotary_factor, rope.rope_local_frequency_base_dim
    # Without proportional rope, local layers rotate the same part of a head unless they state one.
    if not rope.rope_frequency_base_dim:
        partial, base = partial or rope.partial_rotary_factor, None
    rotary_dim, pairs = _rotation(head_dim, partial, base)
    return RopeSpec(
        theta=theta,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        scaling=rope.rope_local_scaling_type,
        factor=rope.rope_local_scaling_factor,
        beta_fast=rope.rope_local_yarn_beta_fast,
        beta_slow=rope.rope_local_yarn_beta_slow,
        truncate=rope.yarn_truncate,
        original_max_pos=rope.rope_local_yarn_original_max_pos,
        rotated_pairs=pairs,
    )


def _rotation(head_dim: int, partial: float | None, base: int | None) -> tuple[int, int | None]:
    """Return the elements of a head with a rotary embedding, and its rotated pairs if not all are.

    Args:
        head_dim: Width of a head.
        partial: The part of a head that is rotated; all of it when None.
        base: Width that the frequencies refer to, which proportional rope states. It pairs the
            halves of the whole head, and the pairs after the rotated ones have the angle 0.
    """
    if not partial:
        return head_dim, None
    part = int(head_dim * partial)
    return (head_dim, part // 2) if base else (part, None)
