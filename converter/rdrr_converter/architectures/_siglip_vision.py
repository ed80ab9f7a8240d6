"""Vision towers with the body of SigLIP: learned positions, LayerNorms and full attention.

What makes tokens of its patches differs: a tower is this body with the tensors of a connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from rdrr_manifests.graph import vision

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._vision import BODY, CHANNELS, pair, patch_inputs
from rdrr_converter.architectures.base import ArchitectureRule, Block, TensorRule
from rdrr_converter.architectures.config import Config

_NAMES = {
    vision.PATCHES: "embeddings.patch_embedding",
    vision.POSITIONS: "embeddings.position_embedding",
    **{
        f"{vision.LAYER}{ours}": f"encoder.layers.{{layer}}.{theirs}"
        for ours, theirs in {
            vision.ATTENTION_NORM: "layer_norm1",
            **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"},
            "self_attn.o_proj": "self_attn.out_proj",
            vision.FEED_FORWARD_NORM: "layer_norm2",
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        }.items()
    },
    f"{vision.MERGER}norm": "post_layernorm",
}
"""Names of modules of the tower, within it."""

_WITHOUT_EFFECT = ("max_image_size", "size", "use_base_siglip", "vision_use_head")
"""Keys that published towers repeat from the image processor, and that transformers never reads;
and whether there is SigLIP's head, which models of text and images do not use."""


def _position_grid(config: Config) -> int:
    """Rule: the rows and columns of the position embedding."""
    return config.integer("image_size") // config.integer("patch_size")


def siglip_vision(
    name: str,
    prefixes: tuple[str, ...],
    connector: tuple[TensorRule, ...],
    names: Mapping[str, str],
    *,
    sizes: Block,
    defaults: Mapping[str, object],
    beside: Mapping[str, object],
    transposed: tuple[str, ...] = (),
) -> ArchitectureRule:
    """Return the description of a tower.

    Args:
        name: `model_type` of its configuration.
        prefixes: Prefixes of the tower in checkpoints, first that of transformers.
        connector: The tensors that make tokens of patches.
        names: Names in checkpoints of its modules or tensors.
        sizes: Further fields of the block `vision`.
        defaults: Sizes that configurations may omit.
        beside: Keys that stand beside `vision_config`, with their defaults.
        transposed: Modules of the connector whose matrix is stored as [inputs, outputs].
    """
    body = prefixes[0]
    return ArchitectureRule(
        name=name,
        classes=(),
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "image_size": 224,
            "in_channels": CHANNELS,
            "layer_norm_eps": 1e-6,
            "temporal_patch_size": 1,
            **defaults,
            **beside,
        },
        keys={"in_channels": "num_channels"},
        sizes={
            "patch_inputs": patch_inputs,
            "hidden_size": read.integer("hidden_size"),
            "intermediate_size": read.integer("intermediate_size"),
            "num_layers": read.integer("num_hidden_layers"),
            "num_attention_heads": read.integer("num_attention_heads"),
            "activation": read.activation("hidden_act"),
            "norm_eps": read.number("layer_norm_eps"),
            "position_grid": _position_grid,
            **sizes,
        },
        tensors=(
            TensorRule(
                f"{vision.PATCHES}.weight", "matmul", ("hidden", "channels", "patch", "patch")
            ),
            *BODY,
            *pair(f"{vision.MERGER}norm", "norm", "hidden"),
            *connector,
        ),
        stated_by_tensors=_WITHOUT_EFFECT,
        transposed=transposed,
        body=body,
        prefixes=prefixes,
        beside=tuple(beside),
        names={
            "model.embed_tokens": f"{body}{_NAMES[vision.PATCHES]}",  # this tells the prefix
            **{ours: f"{body}{theirs}" for ours, theirs in _NAMES.items()},
            **names,
        },
    )


def idefics_vision(name: str) -> ArchitectureRule:
    """Return the description of a tower of Idefics 3 or SmolVLM, see `siglip_vision`."""
    return siglip_vision(
        name,
        ("model.vision_model.", "vision_model."),
        (TensorRule(f"{vision.MERGER}proj.weight", "matmul", ("output", "merged")),),
        {f"{vision.MERGER}proj": "model.connector.modality_projection.proj"},
        sizes={
            "position_sampling": "nearest",
            "merge_size": read.integer("scale_factor"),
            "merger": "linear",
        },
        defaults={
            "hidden_size": 1152,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "patch_size": 32,
        },
        beside={"scale_factor": 2},
    )


def _mean_size(config: Config) -> int:
    """Rule: the height and width in patches of what becomes a token of an image."""
    patches, tokens = _position_grid(config), config.integer("mm_tokens_per_image")
    size = patches // max(isqrt(tokens), 1)
    if size < 1 or tokens * size**2 != patches**2:
        expected = f"the square of a divisor of {patches}, as each side has patches"
        raise config.fault("mm_tokens_per_image", expected, tokens)
    return size


def gemma_vision(name: str) -> ArchitectureRule:
    """Return the description of a tower of Gemma 3, see `siglip_vision`."""
    projector = "multi_modal_projector.mm_"
    return siglip_vision(
        name,
        ("vision_tower.", "vision_tower.vision_model."),
        (
            TensorRule(f"{vision.MERGER}mean_norm.weight", "norm", ("hidden",)),
            TensorRule(f"{vision.MERGER}proj.weight", "matmul", ("output", "hidden")),
        ),
        {
            f"{vision.MERGER}mean_norm": f"{projector}soft_emb_norm",
            f"{vision.MERGER}proj.weight": f"{projector}input_projection_weight",
        },
        sizes={"merge_size": _mean_size, "merger": "mean", "seen_whole": "all"},
        defaults={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "patch_size": 16,
        },
        beside={"mm_tokens_per_image": 256},
        transposed=(f"{vision.MERGER}proj",),
    )
