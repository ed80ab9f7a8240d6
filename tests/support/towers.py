"""Small vision towers for tests."""

from __future__ import annotations

from typing import Any

from rdrr_manifests.graph.vision import vision_graph
from rdrr_manifests.models import Vision
from support.images import QWEN
from support.manifests import HIDDEN, valid_manifest

VISION = Vision(
    patch_inputs=3 * QWEN.temporal_patch_size * QWEN.patch_size**2,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_attention_heads=2,
    activation="gelu",
    norm_eps=1e-6,
    position_grid=8,
    rope_theta=10000.0,
    merge_size=QWEN.merge_size,
    output_size=HIDDEN,
    taps=(0,),
)
"""A tower that fits `QWEN` and `valid_manifest`."""


def manifest_with_tower() -> dict[str, Any]:
    """Return a valid manifest of a package with a tower."""
    manifest = valid_manifest(more={use.name: use.shape for use in vision_graph(VISION).weights()})
    blocks = {"processor": QWEN, "vision": VISION}
    return manifest | {name: block.model_dump(mode="json") for name, block in blocks.items()}
