"""Translate the blocks of a state space into the ops of a layer that has one (Mamba 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.layer_parts import LayerParts, needed_sizes
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    ChannelFactors,
    GatedActivation,
    Norm,
    Op,
    ShortConvolution,
    StateSpace,
)
from rdrr_manifests.models.architecture import Architecture
from rdrr_manifests.models.manifest import Manifest
from rdrr_manifests.models.state_space import StateSpace as StateSpaceBlock

STATE_SPACE, WITH_ATTENTION = "state_space", "attention_and_state_space"

_SIZES = (
    "ssm_num_heads",
    "ssm_head_dim",
    "ssm_num_groups",
    "ssm_state_size",
    "ssm_conv_kernel_dim",
)


@dataclass(frozen=True)
class StateSpaceSizes:
    """The sizes of a layer's state space.

    Attributes:
        heads: Heads, a multiple of the groups.
        head_dim: Inputs and outputs of a head.
        groups: Groups of heads that share B and C.
        state_dim: Elements of B and C.
        kernel: Taps of the convolution.
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    kernel: int

    @property
    def inner(self) -> int:
        """Elements of the output of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Elements of x, B and C of a token, which the convolution mixes."""
        return self.inner + 2 * self.groups * self.state_dim


def state_space(
    manifest: Manifest, names: TensorNames, layer: int, hidden: str, state: int
) -> tuple[Op, ...]:
    """Return a state space behind a short convolution, with a gate and a norm of its output.

    Args:
        manifest: The manifest.
        names: Names of the tensors.
        layer: Index of the layer.
        hidden: The normed residual stream.
        state: Index of the layer's first state.

    Raises:
        ManifestError: A size of the layer is missing or impossible.
    """
    sizes, parts = state_space_sizes(manifest.architecture), LayerParts(manifest, names, layer)
    block, width = _block(manifest), manifest.architecture.hidden_size
    gate = parts.linear("mamba.in_proj_z", hidden, sizes.inner, width)
    inputs = parts.linear("mamba.in_proj_xbc", hidden, sizes.channels, width)
    step = parts.linear("mamba.in_proj_dt", hidden, sizes.heads, width)
    mixed, scanned = f"{parts.stem}.conv", f"{parts.stem}.ssm"
    convolution = ShortConvolution(
        inputs.out,
        mixed,
        parts.vector("mamba.conv1d.weight", sizes.channels, 1, sizes.kernel),
        parts.optional("mamba.conv1d.bias", sizes.channels),
        state,
        "silu",
        factors=_input_factors(block, sizes),
    )
    scan = StateSpace(
        xbc=mixed,
        step=step.out,
        out=scanned,
        rate=parts.vector("mamba.A_log", sizes.heads),
        step_bias=parts.vector("mamba.dt_bias", sizes.heads),
        skip=parts.vector("mamba.D", sizes.heads),
        state=state + 1,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        groups=sizes.groups,
        state_dim=sizes.state_dim,
        least_step=block.least_step,
        most_step=block.most_step,
        step_scale=block.step_multiplier,
    )
    gated = tuple(_gated(manifest, parts, sizes, scanned, gate.out))
    out = parts.linear("mamba.out_proj", gated[-1].out, width, sizes.inner)
    return gate, inputs, step, convolution, scan, *gated, out


def _gated(
    manifest: Manifest, parts: LayerParts, sizes: StateSpaceSizes, value: str, gate: str
) -> Iterator[Norm | GatedActivation]:
    """Yield the gate of the output and its norm, in the order of the block."""
    block, eps = _block(manifest), manifest.inference.normalization.rms_norm_eps
    weight = parts.vector("mamba.norm.weight", sizes.inner)

    def norm(x: str) -> Norm:
        width = sizes.inner // sizes.groups
        return Norm(x, f"{x}.norm", weight, eps, False, sizes.groups, elements=width)

    if block.gated_norm and block.norm_before_gate:
        yield norm(value)
        value = f"{value}.norm"
    scale = block.gate_multiplier
    yield GatedActivation(gate, value, f"{value}.gated", "silu", sizes.inner, gate_scale=scale)
    if block.gated_norm and not block.norm_before_gate:
        yield norm(f"{value}.gated")


def _input_factors(block: StateSpaceBlock, sizes: StateSpaceSizes) -> ChannelFactors | None:
    """Return the factors on x, B and C, if there are any."""
    if block.input_multipliers is None:
        return None
    shared = sizes.groups * sizes.state_dim
    return ChannelFactors((sizes.inner, shared, shared), block.input_multipliers)


def _block(manifest: Manifest) -> StateSpaceBlock:
    return manifest.inference.state_space or StateSpaceBlock()


def state_space_sizes(sizes: Architecture) -> StateSpaceSizes:
    """Return the sizes of the state space of a model whose layers have one.

    Raises:
        ManifestError: One is missing, or the groups do not share the heads evenly.
    """
    space = StateSpaceSizes(*needed_sizes(sizes, _SIZES, "a state space"))
    if space.heads % space.groups:
        raise ManifestError(
            "the groups of the state space do not share its heads evenly",
            where="architecture.ssmNumHeads",
            expected=f"a multiple of {space.groups}",
            found=space.heads,
        )
    return space
