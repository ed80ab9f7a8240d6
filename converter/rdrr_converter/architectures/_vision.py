"""What the descriptions of vision towers share: their patches, and the tensors of their layers."""

from __future__ import annotations

from rdrr_manifests.graph import vision

from rdrr_converter.architectures.base import TensorRule
from rdrr_converter.architectures.config import Config

CHANNELS = 3


def patch_inputs(config: Config) -> int:
    """Rule: the values of a patch."""
    if config.get("in_channels") != CHANNELS:
        raise config.fault("in_channels", str(CHANNELS), config.get("in_channels"))
    size, frames = config.integer("patch_size"), config.integer("temporal_patch_size")
    return CHANNELS * frames * size**2


def pair(stem: str, role: str, *shape: str) -> tuple[TensorRule, TensorRule]:
    """Return the rules of a weight and of its bias."""
    return (
        TensorRule(f"{stem}.weight", role, shape),
        TensorRule(f"{stem}.bias", "bias", shape[:1]),
    )


BODY = (
    TensorRule(f"{vision.PATCHES}.bias", "bias", ("hidden",)),
    TensorRule(f"{vision.POSITIONS}.weight", "other", ("positions", "hidden")),
    *pair(f"{vision.LAYER}{vision.ATTENTION_NORM}", "norm", "hidden"),
    *(
        row
        for part in "qkvo"
        for row in pair(f"{vision.LAYER}self_attn.{part}_proj", "matmul", "hidden", "hidden")
    ),
    *pair(f"{vision.LAYER}{vision.FEED_FORWARD_NORM}", "norm", "hidden"),
    *pair(f"{vision.LAYER}mlp.up_proj", "matmul", "inner", "hidden"),
    *pair(f"{vision.LAYER}mlp.down_proj", "matmul", "hidden", "inner"),
)
"""The tensors after the weight of the patches, up to what makes tokens of them."""
