"""Layers whose tokens are mixed by a recurrent state instead of attention over a cache.

Each function returns the ops between the norm before such a layer's branch and the residual after
it; the value of the last op is the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.layer_parts import LayerParts, needed_sizes
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    DeltaRule,
    GatedActivation,
    Norm,
    Op,
    ShortConvolution,
)
from rdrr_manifests.graph.state_space import STATE_SPACE, WITH_ATTENTION, state_space
from rdrr_manifests.models.architecture import Architecture
from rdrr_manifests.models.manifest import Manifest

LINEAR_ATTENTION, CONVOLUTION = "linear_attention", "conv"

_LINEAR_SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


def linear_attention(
    manifest: Manifest, names: TensorNames, layer: int, hidden: str, state: int
) -> tuple[Op, ...]:
    """Return a gated delta rule behind a short convolution, with a gated norm of its output.

    Args:
        manifest: The manifest.
        names: Names of the tensors.
        layer: Index of the layer.
        hidden: The normed residual stream.
        state: Index of the layer's first state.

    Raises:
        ManifestError: A size of the layer is missing or impossible.
    """
    sizes, parts = manifest.architecture, LayerParts(manifest, names, layer)
    key_heads, heads, key_dim, value_dim, kernel = _linear_sizes(sizes)
    width, stem = sizes.hidden_size, parts.stem
    keys, values = key_heads * key_dim, heads * value_dim
    channels = 2 * keys + values
    qkv = parts.linear("linear_attn.in_proj_qkv", hidden, channels, width)
    gate = parts.linear("linear_attn.in_proj_z", hidden, values, width)
    strength = parts.linear("linear_attn.in_proj_b", hidden, heads, width)
    decay = parts.linear("linear_attn.in_proj_a", hidden, heads, width)
    mixed, normed, gated = f"{stem}.conv", f"{stem}.delta.norm", f"{stem}.gated"
    return (
        qkv,
        gate,
        strength,
        decay,
        ShortConvolution(
            qkv.out,
            mixed,
            parts.vector("linear_attn.conv1d.weight", channels, 1, kernel),
            parts.optional("linear_attn.conv1d.bias", channels),
            state,
            "silu",
        ),
        DeltaRule(
            qkv=mixed,
            decay=decay.out,
            strength=strength.out,
            out=f"{stem}.delta",
            rate=parts.vector("linear_attn.A_log", heads),
            decay_bias=parts.vector("linear_attn.dt_bias", heads),
            state=state + 1,
            key_heads=key_heads,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
        ),
        Norm(
            f"{stem}.delta",
            normed,
            parts.vector("linear_attn.norm.weight", value_dim),
            manifest.inference.normalization.rms_norm_eps,
            unit_offset=False,
            groups=heads,
        ),
        GatedActivation(gate.out, normed, gated, "silu", values),
        parts.linear("linear_attn.out_proj", gated, width, values),
    )


def gated_convolution(
    manifest: Manifest, names: TensorNames, layer: int, hidden: str, state: int
) -> tuple[Op, ...]:
    """Return a short convolution between two gates (LFM2); the arguments are as above.

    Raises:
        ManifestError: Neither the tensors nor the sizes say how many taps it has.
    """
    parts, width = LayerParts(manifest, names, layer), manifest.architecture.hidden_size
    projected = parts.linear("conv.in_proj", hidden, 3 * width, width)
    name = names.layer(layer, "conv.conv.weight")
    stored = manifest.tensors.get(name)
    if stored is not None and stored.shape:
        kernel = stored.shape[-1]
    else:
        stated = ("linear_conv_kernel_dim",)
        (kernel,) = needed_sizes(manifest.architecture, stated, "a convolution")
    return (
        projected,
        ShortConvolution(
            projected.out,
            f"{parts.stem}.conv",
            parts.vector("conv.conv.weight", width, 1, kernel),
            parts.optional("conv.conv.bias", width),
            state,
            None,
            3,
        ),
        parts.linear("conv.out_proj", f"{parts.stem}.conv", width, width),
    )


RecurrentLayer = Callable[[Manifest, TensorNames, int, str, int], tuple[Op, ...]]

RECURRENT_LAYERS: Mapping[str, RecurrentLayer] = MappingProxyType(
    {
        LINEAR_ATTENTION: linear_attention,
        CONVOLUTION: gated_convolution,
        STATE_SPACE: state_space,
        WITH_ATTENTION: state_space,
    }
)
"""The ops of each layer type that has a state, see `linear_attention`."""


def has_both(manifest: Manifest, layer: int) -> bool:
    """Return whether a layer has attention and a recurrent state beside it."""
    kinds = manifest.inference.layer_pattern.layer_types
    return kinds is not None and kinds[layer] == WITH_ATTENTION


def is_recurrent(manifest: Manifest, layer: int) -> bool:
    """Return whether a layer has a recurrent state, alone or beside its attention."""
    kinds = manifest.inference.layer_pattern.layer_types
    return kinds is not None and kinds[layer] in RECURRENT_LAYERS


def recurrent_ops(
    manifest: Manifest, names: TensorNames, layer: int, hidden: str, state: int
) -> tuple[Op, ...]:
    """Return the ops of a layer with a state, see `linear_attention`."""
    kinds = manifest.inference.layer_pattern.layer_types
    assert kinds is not None, "only stated layer types are recurrent"
    return RECURRENT_LAYERS[kinds[layer]](manifest, names, layer, hidden, state)


def _linear_sizes(sizes: Architecture) -> tuple[int, ...]:
    needed = needed_sizes(sizes, _LINEAR_SIZES, "linear attention")
    key_heads, heads = needed[:2]
    if heads % key_heads:
        raise ManifestError(
            "the value heads of linear attention do not share its key heads evenly",
            where="architecture.linearNumValueHeads",
            expected=f"a multiple of {key_heads}",
            found=heads,
        )
    return needed
