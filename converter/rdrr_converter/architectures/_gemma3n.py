"""Rules of Gemma 3n: parallel residual streams, low-rank branches and sparse activations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures._gemma4 import (
    count,
    exported_inputs,
    uniform_types,
    without_usual_keys,
)
from rdrr_converter.architectures.base import Keys, StackRule, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.tensors import norm, projection

MOST_STREAMS = 4
"""Streams for which there are rules for the tensors; published models have this number."""

SPARSE_LAYERS, SPARSITY = 10, 0.95
"""Layers that are sparse by default, and the share of zeros in them."""


def streams(config: Config) -> int:
    """Rule: the number of parallel residual streams."""
    inputs = config.integer("altup_num_inputs")
    if not 2 <= inputs <= MOST_STREAMS:
        raise config.fault("altup_num_inputs", f"2 to {MOST_STREAMS}", inputs)
    config.get("altup_coef_clip")  # only training clips
    return inputs


def active_stream(config: Config) -> int:
    """Rule: the stream that the layers read."""
    active = count("altup_active_idx")(config)
    if active >= streams(config):
        raise config.fault("altup_active_idx", f"less than {streams(config)}", active)
    return active


def sparsity(config: Config) -> tuple[float, ...] | None:
    """Rule: the share of zeros in the gate of each layer; None if no layer is sparse."""
    stated, layers = config.get("activation_sparsity_pattern"), config.layers
    if stated is None:
        sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
        stated = [SPARSITY] * sparse + [0.0] * (layers - sparse)
    is_sound = isinstance(stated, list) and all(
        type(share) in (int, float) and 0 <= share < 1 for share in stated
    )
    if not is_sound or len(stated) < layers:
        raise config.fault("activation_sparsity_pattern", f"{layers} shares below 1", stated)
    shares = tuple(float(share) for share in stated[:layers])
    return shares if any(shares) else None


def inner(config: Config) -> int:
    """Return the width of the feed-forward networks, which must be the same in all layers."""
    stated = config.get("intermediate_size")
    if not isinstance(stated, list):
        return config.integer("intermediate_size")
    if not stated or any(size != stated[0] or type(size) is not int for size in stated):
        raise config.fault("intermediate_size", "the same size in all layers", stated)
    return int(stated[0])


def _stream_tensor(name: str, index: int) -> TensorRule:
    def required(config: Config) -> bool:
        return index + 1 < streams(config)

    return TensorRule(
        f"model.{name}.{index}.weight", "matmul", ("hidden", "hidden"), required=required
    )


STREAM_PROJECTIONS = tuple(
    _stream_tensor(name, index)
    for name in ("altup_projections", "altup_unembed_projections")
    for index in range(MOST_STREAMS - 1)
)
STREAM_STACKS = tuple(
    StackRule(
        f"model.{name}.weight",
        tuple(f"model.{name}.{index}.weight" for index in range(MOST_STREAMS - 1)),
        is_published=False,
    )
    for name in ("altup_projections", "altup_unembed_projections")
)
ALTUP = (
    TensorRule(
        "model.layers.{layer}.altup.correct_output_scale",
        "router",
        ("hidden",),
        aliases=("model.layers.{layer}.altup.correct_output_scale.weight",),
    ),
    TensorRule(
        "model.layers.{layer}.altup.correction_coefs.weight", "router", ("streams", "streams")
    ),
    TensorRule(
        "model.layers.{layer}.altup.prediction_coefs.weight", "router", ("mixtures", "streams")
    ),
    TensorRule(
        "model.layers.{layer}.altup.modality_router.weight", "router", ("streams", "hidden")
    ),
    norm("altup.router_norm"),
)
LAUREL = (
    projection("laurel.linear_left", "rank", "hidden"),
    projection("laurel.linear_right", "hidden", "rank"),
    norm("laurel.post_laurel_norm"),
)
DIMENSIONS: Mapping[str, Callable[[Config], int]] = MappingProxyType(
    {
        "streams": streams,
        "mixtures": lambda config: streams(config) ** 2,
        "rank": lambda config: config.integer("laurel_rank"),
    }
)
"""Dimensions of the tensors of the streams and of the low-rank branches."""


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the keys of Gemma 3n."""
    sizes, blocks = manifest.architecture, manifest.inference
    sparsity = blocks.ffn.activation_sparsity or (0.0,) * sizes.num_layers
    keys = config | {
        **exported_inputs(manifest),
        "activation_sparsity_pattern": list(sparsity),
        "altup_active_idx": sizes.altup_active_index,
        "altup_correct_scale": blocks.layer_pattern.altup_correct_scale,
        "altup_num_inputs": sizes.altup_num_inputs,
        "laurel_rank": sizes.laurel_rank,
        "layer_types": config.get("layer_types") or uniform_types(config),
    }
    return without_usual_keys(keys)
