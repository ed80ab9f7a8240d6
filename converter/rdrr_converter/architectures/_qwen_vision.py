"""The vision tower of Qwen 3 VL, 3.5 and later: patches of two frames, rope in two dimensions.

It is described like an architecture whose `sizes` are the fields of the manifest's block `vision`.
Taps (DeepStack) have the index of a tap in place of that of a layer.
"""

from __future__ import annotations

from math import isqrt

from rdrr_manifests.graph import vision

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._vision import BODY, CHANNELS, pair, patch_inputs
from rdrr_converter.architectures.base import ArchitectureRule, StackRule, TensorRule
from rdrr_converter.architectures.config import Config

_THETA = 10000.0
_MERGERS = {"norm": "norm", "up_proj": "linear_fc1", "down_proj": "linear_fc2"}
_LAYERS = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn.o_proj": "attn.proj",
    "mlp.up_proj": "mlp.linear_fc1",
    "mlp.down_proj": "mlp.linear_fc2",
}
_TAP = vision.TAP.replace("{tap}", "{layer}")


def _position_grid(config: Config) -> int:
    """Rule: the rows and columns of the position embedding."""
    count = config.integer("num_position_embeddings")
    if isqrt(count) ** 2 != count:
        raise config.fault("num_position_embeddings", "the square of a number", count)
    return isqrt(count)


def _rope_theta(config: Config) -> float:
    """Rule: the base of the frequencies."""
    stated = config.get("rope_parameters")
    if stated is None:
        return _THETA
    if not isinstance(stated, dict) or stated.get("rope_type", "axial") != "axial":
        raise config.fault("rope_parameters", "rope_type axial", stated)
    part = config.part("rope_parameters", stated)
    part.get("rope_type")
    return _THETA if part.get("rope_theta") is None else part.number("rope_theta")


def _taps(config: Config) -> tuple[int, ...]:
    """Rule: the layers that are tapped."""
    stated = config.get("deepstack_visual_indexes")
    layers = stated if isinstance(stated, (list, tuple)) else None
    if layers is None or any(type(layer) is not int or layer < 0 for layer in layers):
        raise config.fault("deepstack_visual_indexes", "a list of layers", stated)
    return tuple(layers)


def _of_taps(row: TensorRule) -> TensorRule:
    return TensorRule(row.name, row.role, row.shape, layers=lambda c: range(len(_taps(c))))


def _merger(stem: str, norm: str) -> tuple[TensorRule, ...]:
    return (
        *pair(f"{stem}norm", "norm", norm),
        *pair(f"{stem}up_proj", "matmul", "merged", "merged"),
        *pair(f"{stem}down_proj", "matmul", "output", "merged"),
    )


def _attention(kind: str) -> StackRule:
    parts = tuple(f"{vision.LAYER}self_attn.{part}_proj.{kind}" for part in "qkv")
    return StackRule(f"{vision.VISION}blocks.{{layer}}.attn.qkv.{kind}", parts)


def qwen_vision(name: str, taps: tuple[int, ...] = ()) -> ArchitectureRule:
    """Return the description of a tower.

    Args:
        name: `model_type` of its configuration.
        taps: The layers that are tapped if the configuration states none.
    """
    return ArchitectureRule(
        name=name,
        classes=(),
        defaults={
            "deepstack_visual_indexes": taps,
            "depth": 27,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "in_channels": CHANNELS,
            "intermediate_size": 4304,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 3584,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        sizes={
            "patch_inputs": patch_inputs,
            "hidden_size": read.integer("hidden_size"),
            "intermediate_size": read.integer("intermediate_size"),
            "num_layers": read.integer("depth"),
            "num_attention_heads": read.integer("num_heads"),
            "activation": read.activation("hidden_act"),
            "norm_eps": 1e-6,
            "position_grid": _position_grid,
            "rope_theta": _rope_theta,
            "merge_size": read.integer("spatial_merge_size"),
            "output_size": read.integer("out_hidden_size"),
            "taps": _taps,
        },
        tensors=(
            # The kernel of the convolution is as large as a patch, so its values are a matrix.
            TensorRule(
                f"{vision.PATCHES}.weight",
                "matmul",
                ("hidden", "channels", "frames", "patch", "patch"),
            ),
            *BODY,
            *map(_of_taps, _merger(_TAP, "merged")),
            *_merger(vision.MERGER, "hidden"),
        ),
        stacks=(_attention("weight"), _attention("bias")),
        body=vision.VISION,
        prefixes=("model.visual.", "visual."),
        names={
            "model.embed_tokens": f"{vision.VISION}patch_embed.proj",  # this tells the prefix
            vision.PATCHES: f"{vision.VISION}patch_embed.proj",
            vision.POSITIONS: f"{vision.VISION}pos_embed",
            **{
                f"{vision.LAYER}{ours}": f"{vision.VISION}blocks.{{layer}}.{theirs}"
                for ours, theirs in _LAYERS.items()
            },
            **{
                f"{_TAP}{ours}": f"{vision.VISION}deepstack_merger_list.{{layer}}.{theirs}"
                for ours, theirs in _MERGERS.items()
            },
            **{
                f"{vision.MERGER}{ours}": f"{vision.MERGER}{theirs}"
                for ours, theirs in _MERGERS.items()
            },
        },
    )
