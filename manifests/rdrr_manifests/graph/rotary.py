"""Translate the block `inference.rope` into the rotary embeddings of the graph."""

from __future__ import annotations

from rdrr_manifests.graph.layer_sizes import head_dim_of
from rdrr_manifests.graph.ops import RopeSpec
from rdrr_manifests.models.manifest import Manifest


def rope_spec(manifest: Manifest, *, is_global: bool) -> RopeSpec:
    """Return the rotary embedding of global layers, or of sliding-window layers.

    Sliding-window layers use that of global layers unless the block states a base of their own.
    """
    rope, head_dim = manifest.inference.rope, head_dim_of(manifest, is_global=is_global)
    is_local = not is_global and rope.rope_local_theta is not None
    partial = (
        rope.rope_local_partial_rotary_factor if is_local else None
    ) or rope.partial_rotary_factor
    base = rope.rope_frequency_base_dim
    if is_local and base:
        partial, base = rope.rope_local_partial_rotary_factor, rope.rope_local_frequency_base_dim
    # Proportional rope pairs the halves of the whole head; the pairs after the rotated ones rest.
    rotary_dim = int(head_dim * partial) if partial and not base else head_dim
    rotated = int(head_dim * partial) // 2 if partial and base else None
    if is_local:
        assert rope.rope_local_theta is not None
        return RopeSpec(
            theta=rope.rope_local_theta,
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            scaling=rope.rope_local_scaling_type,
            factor=rope.rope_local_scaling_factor,
            beta_fast=rope.rope_local_yarn_beta_fast,
            beta_slow=rope.rope_local_yarn_beta_slow,
            truncate=rope.yarn_truncate,
            original_max_pos=rope.rope_local_yarn_original_max_pos,
            rotated_pairs=rotated,
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
        rotated_pairs=rotated,
        attention_factor=rope.longrope_short_attention_factor or rope.yarn_attention_factor,
        long_attention_factor=rope.longrope_long_attention_factor,
    )
