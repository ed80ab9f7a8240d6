"""Keys of a `config.json` that tell the decoders of Falcon from each other."""

from __future__ import annotations

from typing import Any

from rdrr_manifests.models.inference import Inference


def falcon_keys(blocks: Inference, kv_heads: int) -> dict[str, Any]:
    """Return the keys: of the newer decoder only where the older cannot express the model.

    Args:
        blocks: The manifest's blocks.
        kv_heads: Number of key-value heads.
    """
    is_parallel = blocks.layer_pattern.parallel_residual
    two_norms = blocks.normalization.post_attention_norm
    is_new = is_parallel and (two_norms or kv_heads > 1)
    return {
        "multi_query": kv_heads == 1 and not is_new,
        "new_decoder_architecture": is_new,
        "num_ln_in_parallel_attn": (2 if two_norms else 1) if is_new else None,
        "parallel_attn": is_parallel,
    }
