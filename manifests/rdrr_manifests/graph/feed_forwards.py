"""Append the feed-forward of a layer: a dense one, experts, or both."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from rdrr_manifests.graph.builder import GraphBuilder
from rdrr_manifests.graph.experts import expert_width, experts_of
from rdrr_manifests.graph.names import EXPERT_LATENTS, GATE_UP, SUM_BIAS, ExpertNames
from rdrr_manifests.graph.ops import (
    Activation,
    GatedActivation,
    Norm,
    Residual,
    Scale,
    SigmoidGate,
    Slice,
    Sparsify,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.routing import router_of
from rdrr_manifests.models.experts import MoeConfig

XIELU_PARAMETERS = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""The tensors with the parameters of xIELU and their shapes, in the order of the op."""

BESIDE_DENSE = "dense_plus_moe"
"""Value of `ffn.branchMode` for experts beside a dense feed-forward."""


def append_feed_forward(build: GraphBuilder, layer: int, hidden: str) -> str:
    """Append the dense feed-forward or the experts of a layer; return the output's name."""
    experts = build.names.experts(layer)
    moe, is_beside = build.manifest.moe_config, build.blocks.ffn.branch_mode == BESIDE_DENSE
    if experts is not None and moe is not None and not is_beside:
        return _mixture(build, layer, hidden, experts, moe)
    inner, size, out = build.layer_sizes[layer].inner, build.sizes.hidden_size, f"l{layer}.act"
    if not build.blocks.ffn.gated_activation:
        x = build.linear(layer, "mlp.up_proj", hidden, inner)
        parameters = _activation_parameters(build, layer)
        build.add(Activation(x, out, build.activation, inner, parameters))
        return build.linear(layer, "mlp.down_proj", out, size, inner)
    gate, up = _gate_and_up(build, layer, hidden, inner)
    scale = build.blocks.ffn.gate_multiplier
    build.add(
        GatedActivation(gate, up, out, build.activation, inner, build.clamp, gate_scale=scale)
    )
    return build.linear(layer, "mlp.down_proj", out, size, inner)


def _gate_and_up(
    build: GraphBuilder, layer: int, hidden: str, inner: int
) -> tuple[str, str | None]:
    """Append gate and up; return both, or the value that holds both and None."""
    if build.names.layer(layer, f"mlp.{GATE_UP}.weight") not in build.names:
        gate = _sparsified(build, layer, build.linear(layer, "mlp.gate_proj", hidden, inner))
        return gate, build.linear(layer, "mlp.up_proj", hidden, inner)
    both = build.linear(layer, f"mlp.{GATE_UP}", hidden, 2 * inner)
    if not _cutoff(build, layer):
        return both, None
    # The cutoff follows from the gate alone.
    gate, up = (
        build.add(Slice(both, f"{both}.{half}", 1, 2 * inner, first, inner))
        for half, first in (("gate", 0), ("up", inner))
    )
    return _sparsified(build, layer, gate), up


def _sparsified(build: GraphBuilder, layer: int, gate: str) -> str:
    """Append the cutoff of a gate, if the layer has one."""
    share = _cutoff(build, layer)
    if not share:
        return gate
    # The cutoff in standard deviations above the mean below which this share of the elements of a
    # row lies if they are normally distributed.
    return build.add(Sparsify(gate, f"{gate}.sparse", NormalDist().inv_cdf(share)))


def _cutoff(build: GraphBuilder, layer: int) -> float:
    """Return the share of a gate's elements that a cutoff sets to zero; 0 for no cutoff."""
    shares = build.blocks.ffn.activation_sparsity
    return 0.0 if shares is None else shares[layer]


def _activation_parameters(build: GraphBuilder, layer: int) -> tuple[WeightUse, ...]:
    """Return the tensors that hold the parameters of the activation of a layer."""
    shapes = XIELU_PARAMETERS if build.activation == "xielu" else {}
    return tuple(
        WeightUse(build.names.layer(layer, f"mlp.act_fn.{name}"), shape, WeightKind.VECTOR)
        for name, shape in shapes.items()
    )


def append_experts_beside(build: GraphBuilder, layer: int, stream: str, dense: str) -> str:
    """Append the experts beside the dense feed-forward, if the layer has both, and their sum.

    Both branches read the stream through norms of their own, and so does the router.
    """
    names, moe = build.names.experts(layer), build.manifest.moe_config
    if names is None or moe is None or build.blocks.ffn.branch_mode != BESIDE_DENSE:
        return dense
    size, stem = build.sizes.hidden_size, f"l{layer}.router"
    gain = WeightUse(build.names.layer(layer, "router.scale"), (size,), WeightKind.VECTOR)
    eps = build.blocks.normalization.rms_norm_eps
    normed = build.add(Norm(stream, f"{stem}_in", gain, eps, False))
    routed = build.add(Scale(normed, f"{stem}_scaled", 1.0 / sqrt(size)))
    hidden = build.norm(layer, "pre_feedforward_layernorm_2", stream, f"l{layer}.experts_in")
    mixed = _mixture(build, layer, hidden, names, moe, routed=routed)
    mixed = build.norm(layer, "post_feedforward_layernorm_2", mixed, f"l{layer}.experts_post")
    dense = build.norm(layer, "post_feedforward_layernorm_1", dense, f"l{layer}.dense_post")
    return build.add(Residual(dense, mixed, f"l{layer}.ffn"))


def _mixture(
    build: GraphBuilder,
    layer: int,
    hidden: str,
    names: ExpertNames,
    moe: MoeConfig,
    routed: str | None = None,
) -> str:
    """Append the experts of a layer, and the shared expert if there is one.

    The router reads `routed`, or what the experts read if it is None.
    """
    stem, latent, size = f"l{layer}", moe.expert_latent_size, build.sizes.hidden_size
    weight = build.use(layer, names.router, (moe.num_experts, size))
    router = build.add(
        router_of(moe, build.names, layer, routed or hidden, f"{stem}.router", weight)
    )
    read = hidden if latent is None else build.linear(layer, EXPERT_LATENTS[0], hidden, latent)
    values = (read, router, f"{stem}.experts")
    out = build.add(experts_of(build.manifest, build.names, layer, *values, build.activation))
    bias = WeightUse(build.names.layer(layer, SUM_BIAS), (size,), WeightKind.VECTOR)
    if bias.name in build.names:
        out = build.add(Scale(out, f"{out}.biased", bias=bias))
    if latent is not None:
        out = build.linear(layer, EXPERT_LATENTS[1], out, size, latent)
    part = build.names.shared_expert(layer)
    if part is None:
        return out
    width = moe.shared_expert_intermediate_size or expert_width(build.manifest, moe)
    shared = _shared_expert(build, layer, part, hidden, width)
    return build.add(Residual(out, shared, f"{stem}.ffn"))


def _shared_expert(build: GraphBuilder, layer: int, part: str, hidden: str, width: int) -> str:
    """Append the expert that every token uses, with its own gate if it has one."""
    size, act = build.sizes.hidden_size, f"l{layer}.act"
    up: str | None
    if build.names.layer(layer, f"{part}.{GATE_UP}.weight") in build.names:
        gate, up = build.linear(layer, f"{part}.{GATE_UP}", hidden, 2 * width), None
        build.add(GatedActivation(gate, up, act, build.activation, width, build.clamp))
    elif build.blocks.ffn.gated_activation:
        gate = build.linear(layer, f"{part}.gate_proj", hidden, width)
        up = build.linear(layer, f"{part}.up_proj", hidden, width)
        build.add(GatedActivation(gate, up, act, build.activation, width, build.clamp))
    else:
        up = build.linear(layer, f"{part}.up_proj", hidden, width)
        build.add(Activation(up, act, build.activation, width))
    branch = build.linear(layer, f"{part}.down_proj", act, size, width)
    weight = build.use(layer, "mlp.shared_expert_gate", (1, size), WeightKind.VECTOR)
    if weight.name not in build.names:
        return branch
    return build.add(SigmoidGate(hidden, branch, f"l{layer}.shared", weight))
