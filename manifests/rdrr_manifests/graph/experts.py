"""Translate the blocks `moeConfig` and `ffn` into the experts of a layer."""

from __future__ import annotations

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import Clamp, Experts, WeightKind, WeightUse
from rdrr_manifests.models.experts import MoeConfig
from rdrr_manifests.models.inference import FeedForward
from rdrr_manifests.models.manifest import Manifest


def experts_of(
    manifest: Manifest,
    names: TensorNames,
    layer: int,
    x: str,
    router: str,
    out: str,
    activation: str,
) -> Experts:
    """Return the experts of a layer that has some.

    Args:
        manifest: The manifest, with a `moeConfig`.
        names: Names of the tensors, which say whether there are biases.
        layer: Index of the layer.
        x: Value that the experts read.
        router: Value of the router.
        out: Name of the experts' value.
        activation: Name of the activation in the graph.
    """
    moe, parts = manifest.moe_config, names.experts(layer)
    assert moe is not None, "the layer has experts"
    assert parts is not None, "the layer has experts"
    size, width = expert_size(manifest, moe), expert_width(manifest, moe)
    is_gated = manifest.inference.ffn.gated_activation

    def matrices(part: str, shape: tuple[int, int]) -> tuple[WeightUse, ...]:
        stems = (part.format(expert=number) for number in range(moe.num_experts))
        return tuple(
            WeightUse(names.layer(layer, f"{stem}.weight"), shape, WeightKind.EXPERT)
            for stem in stems
        )

    def bias(part: str, outputs: int) -> WeightUse | None:
        name = names.layer(layer, f"{part.replace('.{expert}', '')}.bias")
        shape = (moe.num_experts, outputs)
        return WeightUse(name, shape, WeightKind.VECTOR) if name in names else None

    fused = is_gated and names.layer(layer, f"{parts.gate_up.format(expert=0)}.weight") in names
    ups = matrices(parts.gate_up, (2 * width, size)) if fused else matrices(parts.up, (width, size))
    return Experts(
        x=x,
        router=router,
        out=out,
        gates=matrices(parts.gate, (width, size)) if is_gated and not fused else (),
        ups=ups,
        downs=matrices(parts.down, (size, width)),
        activation=activation,
        width=width,
        clamp=clamp_of(manifest.inference.ffn),
        gate_bias=bias(parts.gate, width) if is_gated else None,
        up_bias=bias(parts.up, width) if is_gated else None,
        down_bias=bias(parts.down, size),
        scales_inputs=bool(moe.weights_scale_inputs),
        fused=fused,
    )


def expert_width(manifest: Manifest, moe: MoeConfig) -> int:
    """Return the width of an expert's inner layer."""
    return moe.expert_intermediate_size or manifest.architecture.intermediate_size


def expert_size(manifest: Manifest, moe: MoeConfig) -> int:
    """Return the width of what an expert reads and writes."""
    return moe.expert_latent_size or manifest.architecture.hidden_size


def has_known_form_without_gates(manifest: Manifest, moe: MoeConfig, names: TensorNames) -> bool:
    """Return whether experts without gates have neither biases nor weighted inputs."""
    layers = ((at, names.experts(at)) for at in range(manifest.architecture.num_layers))
    biases = (
        names.layer(layer, f"{parts.up.replace('.{expert}', '')}.bias")
        for layer, parts in layers
        if parts is not None
    )
    return not moe.weights_scale_inputs and not any(name in names for name in biases)


def clamp_of(ffn: FeedForward) -> Clamp | None:
    """Return the constants of the clamped SwiGLU; None for the usual formula."""
    if ffn.swiglu_limit is None or ffn.swiglu_alpha is None:
        return None
    return Clamp(ffn.swiglu_limit, ffn.swiglu_alpha, ffn.swiglu_up_offset)


def has_known_clamp(ffn: FeedForward) -> bool:
    """Return whether the graph can express the limit that the block states, if it states one."""
    if ffn.swiglu_limit is None:
        return True
    # What other writers multiply the gate by within the sigmoid is not stated.
    is_swiglu = ffn.gated_activation and ffn.activation in ("silu", "swiglu")
    return is_swiglu and ffn.swiglu_alpha is not None
