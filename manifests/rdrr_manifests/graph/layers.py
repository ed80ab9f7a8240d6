"""Append the layers of a model: how the branches of each kind of layer follow each other."""

from __future__ import annotations

from math import sqrt

from rdrr_manifests.graph.altup import AltUp
from rdrr_manifests.graph.attention_layers import append_attention
from rdrr_manifests.graph.builder import GraphBuilder
from rdrr_manifests.graph.feed_forwards import append_experts_beside, append_feed_forward
from rdrr_manifests.graph.layer_norms import layer_norms
from rdrr_manifests.graph.ops import CombineStreams, Scale, Stateful, WeightKind, WeightUse
from rdrr_manifests.graph.per_layer_inputs import input_of_layer, layer_update
from rdrr_manifests.graph.recurrent_layers import has_both, is_recurrent, recurrent_ops
from rdrr_manifests.graph.support import FEED_FORWARD


def append_layer(build: GraphBuilder, layer: int, stream: str) -> str:
    """Append a decoder layer; take and return the name of the residual stream's value."""
    if build.blocks.layer_pattern.parallel_residual:
        return _parallel_layer(build, layer, stream)
    if build.blocks.layer_pattern.single_branch:
        return _single_branch(build, layer, stream)
    if build.blocks.normalization.norm_after_residual:
        return _layer_of_normed_sums(build, layer, stream)
    norms = layer_norms(build.blocks.normalization, build.names, layer)
    hidden = build.norm(layer, norms.attention, stream, f"l{layer}.attn_in")
    branch = _mixer(build, layer, hidden)
    if has_both(build.manifest, layer):
        scale = build.state_space.output_multiplier
        stream = build.residual(stream, branch, f"l{layer}.x_ssm", scale)
        branch = append_attention(build, layer, hidden)
    branch = build.norm(layer, norms.attention_output, branch, f"l{layer}.attn_post")
    scale = build.state_space.attention_multiplier
    stream = build.residual(stream, branch, f"l{layer}.x_attn", scale)
    hidden = build.norm(layer, norms.feed_forward, stream, f"l{layer}.ffn_in")
    branch = append_feed_forward(build, layer, hidden)
    branch = append_experts_beside(build, layer, stream, branch)
    branch = build.norm(layer, norms.feed_forward_output, branch, f"l{layer}.ffn_post")
    scale = build.blocks.ffn.output_multiplier
    stream = build.residual(stream, branch, f"l{layer}.x_ffn", scale)
    stream = build.add(
        *input_of_layer(build.manifest, build.names, layer, stream, build.activation)
    )
    return _scaled(build, layer, stream)


def _parallel_layer(build: GraphBuilder, layer: int, stream: str) -> str:
    """Append a layer whose attention and feed-forward both read the stream before it."""
    hidden = build.norm(layer, "input_layernorm", stream, f"l{layer}.attn_in")
    attended = append_attention(build, layer, hidden)
    if build.blocks.normalization.post_attention_norm:
        hidden = build.norm(layer, "post_attention_layernorm", stream, f"l{layer}.ffn_in")
    branch = append_feed_forward(build, layer, hidden)
    stream = build.residual(stream, branch, f"l{layer}.x_ffn")
    return build.residual(stream, attended, f"l{layer}.x_attn")


def _layer_of_normed_sums(build: GraphBuilder, layer: int, stream: str) -> str:
    """Append a layer whose norms read the sum of the stream and a branch."""
    branch = append_attention(build, layer, stream)
    stream = build.residual(stream, branch, f"l{layer}.x_attn")
    stream = build.norm(layer, "input_layernorm", stream, f"l{layer}.attn_post")
    branch = append_feed_forward(build, layer, stream)
    stream = build.residual(stream, branch, f"l{layer}.x_ffn")
    return build.norm(layer, "post_attention_layernorm", stream, f"l{layer}.ffn_post")


def _single_branch(build: GraphBuilder, layer: int, stream: str) -> str:
    """Append a layer that only mixes the tokens, or only has a feed-forward."""
    hidden = build.norm(layer, "input_layernorm", stream, f"l{layer}.in")
    kinds = build.blocks.layer_pattern.layer_types
    if kinds is not None and kinds[layer] == FEED_FORWARD:
        branch = append_feed_forward(build, layer, hidden)
    else:
        branch = _mixer(build, layer, hidden)
    return build.residual(stream, branch, f"l{layer}.x")


def _mixer(build: GraphBuilder, layer: int, hidden: str) -> str:
    """Append what mixes the tokens of a layer: attention, or ops with recurrent states."""
    if not is_recurrent(build.manifest, layer):
        return append_attention(build, layer, hidden)
    # States are numbered through the model, in the order of the ops.
    states = sum(isinstance(op, Stateful) for op in build.ops)
    return build.add(*recurrent_ops(build.manifest, build.names, layer, hidden, states))


def append_layer_of_streams(build: GraphBuilder, layer: int, streams: str, altup: AltUp) -> str:
    """Append a layer with parallel residual streams; return the name of their new value."""
    stem, norms = f"l{layer}", layer_norms(build.blocks.normalization, build.names, layer)
    predicted = build.add(*altup.predict(layer, streams))
    active = build.add(altup.activate(predicted, f"{stem}.active"))
    hidden = build.norm(layer, norms.attention, active, f"{stem}.attn_in")
    branch = append_attention(build, layer, hidden)
    branch = build.norm(layer, norms.attention_output, branch, f"{stem}.attn_post")
    stream = build.residual(active, branch, f"{stem}.x_attn")
    stream = _add_low_rank(build, layer, hidden, stream)
    hidden = build.norm(layer, norms.feed_forward, stream, f"{stem}.ffn_in")
    branch = append_feed_forward(build, layer, hidden)
    branch = build.norm(layer, norms.feed_forward_output, branch, f"{stem}.ffn_post")
    stream = build.residual(stream, branch, f"{stem}.x_ffn")
    corrected = build.add(*altup.correct(layer, predicted, stream))
    gated = build.add(altup.activate(corrected, f"{stem}.first"))
    if build.blocks.layer_pattern.altup_correct_scale:
        name = build.names.layer(layer, "altup.correct_output_scale")
        weight = WeightUse(name, (build.sizes.hidden_size,), WeightKind.VECTOR)
        gated = build.add(Scale(gated, f"{gated}.scaled", 1.0, weight))
    update = build.add(*layer_update(build.manifest, build.names, layer, gated, build.activation))
    # All streams but the first take the update.
    return build.add(CombineStreams(corrected, f"{stem}.x", "add", altup.count, 1, update))


def _add_low_rank(build: GraphBuilder, layer: int, hidden: str, stream: str) -> str:
    """Append the low-rank branch beside the attention, if there is one, and the mean of both.

    The branch adds a normed product of two small matrices to its input. The sum of stream and
    branch is divided by the square root of 2.
    """
    rank = build.sizes.laurel_rank
    if rank is None:
        return stream
    low = build.linear(layer, "laurel.linear_left", hidden, rank)
    branch = build.linear(layer, "laurel.linear_right", low, build.sizes.hidden_size, rank)
    branch = build.norm(layer, "laurel.post_laurel_norm", branch, f"l{layer}.laurel_post")
    branch = build.residual(branch, hidden, f"l{layer}.laurel")
    stream = build.residual(stream, branch, f"l{layer}.x_laurel")
    return build.add(Scale(stream, f"l{layer}.x_both", sqrt(0.5)))


def _scaled(build: GraphBuilder, layer: int, stream: str) -> str:
    """Append the factor on the stream after the layer, if there is one."""
    weight = WeightUse(build.names.layer(layer, "layer_scalar"), (1,), WeightKind.VECTOR)
    if weight.name not in build.names:
        return stream
    return build.add(Scale(stream, f"l{layer}.x", 1.0, weight))
