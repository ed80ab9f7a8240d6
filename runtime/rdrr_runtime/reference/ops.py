"""Each op of the graph in plain torch, in the dtype of its inputs (tests use float64 as well).

The code is written to be read, not to be fast: it uses no fused torch functions, so that it follows
the formulas step by step. Shapes are those of the kernels, with token rows first. `compute` has a
case for each op of the graph; mypy reports a missing one.
"""

from __future__ import annotations

from itertools import groupby

import torch
from rdrr_manifests.graph import ops
from torch import Tensor

from rdrr_runtime.packing import Segments
from rdrr_runtime.reference import streams
from rdrr_runtime.reference.activations import (
    ACTIVATIONS,
    gated_activation,
    sigmoid_gate,
    silu,
    softcap,
    xielu,
)
from rdrr_runtime.reference.attention import (
    alibi_bias,
    attention,
    distance_bias,
    position_scale,
    rope,
)
from rdrr_runtime.reference.experts import Projection, experts
from rdrr_runtime.reference.latent import attend_to_latents
from rdrr_runtime.reference.recurrence import compute_convolution, compute_delta_rule
from rdrr_runtime.reference.routing import route
from rdrr_runtime.reference.rows import argmax, embed, layer_norm, linear, rms_norm
from rdrr_runtime.reference.run import ReferencePass
from rdrr_runtime.reference.state_space import compute_state_space

__all__ = [
    "argmax",
    "attention",
    "compute",
    "embed",
    "experts",
    "gated_activation",
    "linear",
    "position_scale",
    "rms_norm",
    "rope",
    "sigmoid_gate",
    "silu",
    "softcap",
]


def compute(run: ReferencePass, op: ops.Op) -> Tensor:
    """Compute an op from the values before it and return its value, [rows, width].

    The value of a router is [2, rows, top_k]: the experts of each row and their routing weights.
    """
    values, weight = run.values, run.weight
    match op:
        case ops.Embed():
            return embed(run.ids, weight(op.weight), op.scale)
        case ops.Recall():
            assert run.memory.hidden is not None, "only a draft head reads kept hidden states"
            return run.memory.hidden.read(run.slots)
        case ops.PositionEmbed():
            return values[op.x] + embed(_places(run, op) + op.offset, weight(op.weight))
        case ops.Norm():
            return _norm(run, op)
        case ops.Linear():
            run.observe(op.weight, values[op.x])
            return linear(values[op.x], weight(op.weight), run.optional(op.bias))
        case ops.Rope():
            x = values[op.x].unflatten(-1, (op.heads, -1))
            table = run.memory.ropes[op.table]
            return rope(x, run.positions, table, interleaved=op.interleaved).flatten(-2)
        case ops.PositionScale():
            return position_scale(values[op.x], run.positions, op.scale, op.length, op.offset)
        case ops.Attention():
            return _attend(run, op)
        case ops.LatentAttention():
            return attend_to_latents(run, op, rms_norm, rope, attention)
        case ops.GatedActivation():
            return _gate(run, op)
        case ops.Activation():
            return _activate(run, op)
        case ops.Router():
            return _route(run, op)
        case ops.Experts():
            return _mixture(run, op)
        case ops.SigmoidGate():
            return sigmoid_gate(values[op.x], values[op.branch], weight(op.weight))
        case ops.Slice():
            groups = values[op.x].unflatten(-1, (op.groups, op.size))
            return torch.narrow(groups, -1, op.first, op.width).flatten(-2)
        case ops.Concat():
            return torch.cat((values[op.x], values[op.y]), dim=-1)
        case ops.ShortConvolution():
            y, gate = compute_convolution(run, op)
            return y * gate if op.activation is None else gated_activation(y, gate, op.activation)
        case ops.DeltaRule():
            return compute_delta_rule(run, op)
        case ops.StateSpace():
            return compute_state_space(run, op)
        case ops.Residual():
            return values[op.x] + values[op.branch] * op.scale
        case ops.Scale():
            factor = 1.0 if op.weight is None else weight(op.weight)
            y = values[op.x] * factor * op.factor
            return y if op.bias is None else y + weight(op.bias)
        case ops.Sparsify():
            return streams.sparsify(values[op.x], op.multiplier)
        case ops.AppendStream():
            return streams.append_stream(values[op.x], values[op.y], op.floor)
        case ops.StreamCoefficients():
            router = weight(op.router)
            return streams.stream_coefficients(values[op.x], router, weight(op.weight), op.factor)
        case ops.CombineStreams():
            return streams.combine_streams(op, values)
        case ops.Head():
            return _head(run, op)


def _norm(run: ReferencePass, op: ops.Norm) -> Tensor:
    """Normalise each group of a value's rows."""
    x = run.values[op.x].unflatten(-1, (op.groups, op.width))
    gain = x.new_ones(op.width) if op.weight is None else run.weight(op.weight)
    gain = gain.reshape(-1, op.width)
    offset = 1.0 if op.unit_offset and op.weight is not None else 0.0
    y = (layer_norm if op.centred else rms_norm)(x, gain, op.eps, offset)
    return (y if op.bias is None else y + run.weight(op.bias).reshape(-1, op.width)).flatten(-2)


def _places(run: ReferencePass, op: ops.PositionEmbed) -> Tensor:
    """Return the type of the token of each row, or its position."""
    if not op.by_type:
        return run.positions
    if run.segments is None:
        return torch.zeros_like(run.ids)
    return torch.from_numpy(run.segments.types).to(run.ids.device)


def _attend_within_texts(run: ReferencePass, op: ops.Attention, segments: Segments) -> Tensor:
    """Attend to the rows of the same text; texts of one length are computed together."""
    assert op.k is not None, "layers of models that pack texts have keys of their own"
    assert op.v is not None, "and values"
    counts = (op.heads, op.kv_heads, op.kv_heads)
    values = [
        run.values[name].unflatten(-1, (count, op.head_dim))
        for name, count in zip((op.q, op.k, op.v), counts, strict=True)
    ]
    parts = []
    start = 0
    for length, texts in groupby(segments.lengths.tolist()):
        count = len(list(texts))
        q, k, v = (x[start : start + count * length].unflatten(0, (count, length)) for x in values)
        start += count * length
        attended = attention(
            q,
            k.transpose(1, 2),
            v.transpose(1, 2),
            op.scale,
            window=op.window or 0,
            softcap=op.softcap or 0.0,
            sinks=run.optional(op.sinks),
            chunk=op.chunk or 0,
            causal=False,
            bias=_bias(run, op, range(length)),
        )
        parts.append(attended.flatten(0, 1).flatten(-2))
    return torch.cat(parts)


def _bias(
    run: ReferencePass, op: ops.Attention, rows: range, slots: int | None = None
) -> Tensor | None:
    """Return the bias on the scores by distance, [heads, rows, slots]; None for none."""
    if op.alibi is not None:
        return alibi_bias(op.heads, op.alibi, rows, slots)
    weight = run.optional(op.bias)
    return None if weight is None else distance_bias(weight, op.bias_distance, rows, slots)


def _attend(run: ReferencePass, op: ops.Attention) -> Tensor:
    """Store the keys and values of the pass, if any, then attend to all valid slots."""
    if run.segments is not None and not op.causal:
        return _attend_within_texts(run, op, run.segments)
    seen, end = run.images, run.base + len(run.ids) // (run.texts or 1)

    def heads_of(name: str, heads: int) -> Tensor:
        vectors: Tensor = run.values[name].unflatten(-1, (heads, op.head_dim))
        if run.texts is not None:
            vectors = vectors.unflatten(0, (run.texts, -1))
        return vectors

    cache = run.memory.cache[op.layer]
    for index, name in enumerate((op.k, op.v)):
        if name is None:
            continue
        heads = heads_of(name, op.kv_heads)
        cache[index][..., run.base : end, :] = heads.transpose(-3, -2)
    return attention(
        heads_of(op.q, op.heads),
        cache[0][..., :end, :],
        cache[1][..., :end, :],
        op.scale,
        base=run.base,
        window=op.window or 0,
        softcap=op.softcap or 0.0,
        sinks=run.optional(op.sinks),
        chunk=op.chunk or 0,
        causal=op.causal,
        ends=torch.from_numpy(seen.ends)
        if seen is not None and seen.images.are_seen_whole(op.window)
        else None,
        bias=_bias(run, op, range(run.base, end), end),
    ).reshape(len(run.ids), -1)


def _gate(run: ReferencePass, op: ops.GatedActivation) -> Tensor:
    """Multiply a part of the ups by their activated gates, which may lie in the same rows."""
    gate = run.values[op.gate]
    if op.up is None:
        gate, up = gate.split(op.width, dim=-1)
    else:
        up = run.values[op.up].unflatten(-1, (op.up_parts, op.width))[:, op.up_part]
    return gated_activation(gate * op.gate_scale, up, op.activation, op.clamp)


def _activate(run: ReferencePass, op: ops.Activation) -> Tensor:
    """Limit a value, or apply an activation, which may have parameters."""
    x = run.values[op.x]
    if op.limit is not None:
        return x.clamp(-op.limit, op.limit)
    if op.parameters:
        return xielu(x, *map(run.weight, op.parameters))
    return ACTIVATIONS[op.activation](x)


def _route(run: ReferencePass, op: ops.Router) -> Tensor:
    """Select experts for each row; return them and their routing weights."""
    logits = linear(run.values[op.x], run.weight(op.weight), run.optional(op.bias))
    added, scale = run.optional(op.selection_bias), run.optional(op.expert_scale)
    ids, factors = route(op, logits, added, scale)
    return torch.stack((ids.to(factors.dtype), factors))


def _head(run: ReferencePass, op: ops.Head) -> Tensor:
    """Return the logits after the last row, or after each."""
    x = run.values[op.x] if run.all_rows else run.values[op.x][-1:]
    logits = linear(x, run.weight(op.weight), run.optional(op.bias)) * op.scale
    return logits if op.softcap is None else softcap(logits, op.softcap)


def _mixture(run: ReferencePass, op: ops.Experts) -> Tensor:
    """Apply the experts that the router selected for each row, and report their inputs."""

    def projection(
        part: tuple[ops.WeightUse, ...], bias: ops.WeightUse | None, number: int
    ) -> Projection:
        return run.weight(part[number]), None if bias is None else run.weight(bias)[number]

    def expert(number: int) -> tuple[Projection | None, Projection, Projection]:
        gate = projection(op.gates or op.ups, op.gate_bias, number) if op.is_gated else None
        up = projection(op.ups, op.up_bias, number)
        if op.fused and gate is not None:
            gate, up = (gate[0][: op.width], gate[1]), (up[0][op.width :], up[1])
        return gate, up, projection(op.downs, op.down_bias, number)

    def observe(number: int, outer: Tensor, inner: Tensor) -> None:
        for part, rows in ((op.gates, outer), (op.ups, outer), (op.downs, inner)):
            if part:
                run.observe(part[number], rows)

    def activate(gate: Tensor | None, up: Tensor) -> Tensor:
        if gate is None:
            return ACTIVATIONS[op.activation](up)
        return gated_activation(gate, up, op.activation, op.clamp)

    ids, factors = run.values[op.router]
    return experts(
        run.values[op.x],
        ids.long(),
        factors,
        expert,
        activate,
        observe,
        scales_inputs=op.scales_inputs,
    )
