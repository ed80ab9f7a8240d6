"""Each op of the graph in plain torch, in the dtype of its inputs (tests use float64 as well).

The code is written to be read, not to be fast: it uses no fused torch functions, so that it follows
the formulas step by step. Shapes are those of the kernels, with token rows first. `compute` has a
case for each op of the graph; mypy reports a missing one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from rdrr_manifests.graph.ops import (
    Activation,
    AddToStreams,
    AppendStream,
    Attention,
    Clamp,
    Concat,
    CorrectStreams,
    DeltaRule,
    Embed,
    Experts,
    GatedActivation,
    Head,
    LatentAttention,
    Linear,
    MeanOfStreams,
    MixStreams,
    Norm,
    Op,
    PositionEmbed,
    PositionScale,
    Recall,
    Residual,
    Rope,
    Router,
    Scale,
    ShortConvolution,
    SigmoidGate,
    Slice,
    Sparsify,
    StateSpace,
    StreamCoefficients,
    WeightUse,
)
from torch import Tensor

from rdrr_runtime.reference import streams
from rdrr_runtime.reference.latent import attend_to_latents
from rdrr_runtime.reference.recurrence import compute_convolution, compute_delta_rule
from rdrr_runtime.reference.routing import route
from rdrr_runtime.reference.run import ReferencePass
from rdrr_runtime.reference.state_space import compute_state_space


def compute(run: ReferencePass, op: Op) -> Tensor:
    """Compute an op from the values before it and return its value, [rows, width].

    The value of a router is [2, rows, top_k]: the experts of each row and their routing weights.
    """
    values, weight = run.values, run.weight
    match op:
        case Embed():
            return embed(run.ids, weight(op.weight), op.scale)
        case Recall():
            assert run.memory.hidden is not None, "only a draft head reads kept hidden states"
            return run.memory.hidden.read(run.slots)
        case PositionEmbed():
            return values[op.x] + embed(run.positions + op.offset, weight(op.weight))
        case Norm():
            return _norm(run, op)
        case Linear():
            run.observe(op.weight, values[op.x])
            bias = None if op.bias is None else weight(op.bias)
            return linear(values[op.x], weight(op.weight), bias)
        case Rope():
            x = values[op.x].unflatten(-1, (op.heads, -1))
            table = run.memory.ropes[op.table]
            return rope(x, run.positions, table, interleaved=op.interleaved).flatten(-2)
        case PositionScale():
            return position_scale(values[op.x], run.positions, op.scale, op.length, op.offset)
        case Attention():
            return _attend(run, op)
        case LatentAttention():
            return attend_to_latents(run, op, rms_norm, rope, attention)
        case GatedActivation():
            if op.up is None:
                gate, up = values[op.gate].split(op.width, dim=-1)
            else:
                gate, up = values[op.gate], values[op.up]
                up = up.unflatten(-1, (op.up_parts, op.width))[:, op.up_part]
            return gated_activation(gate * op.gate_scale, up, op.activation, op.clamp)
        case Activation():
            if op.limit is not None:
                return values[op.x].clamp(-op.limit, op.limit)
            if op.parameters:
                return xielu(values[op.x], *map(weight, op.parameters))
            return ACTIVATIONS[op.activation](values[op.x])
        case Router():
            bias = None if op.bias is None else weight(op.bias)
            added = None if op.selection_bias is None else weight(op.selection_bias)
            scale = None if op.expert_scale is None else weight(op.expert_scale)
            ids, factors = route(op, linear(values[op.x], weight(op.weight), bias), added, scale)
            return torch.stack((ids.to(factors.dtype), factors))
        case Experts():
            return _mixture(run, op)
        case SigmoidGate():
            return sigmoid_gate(values[op.x], values[op.branch], weight(op.weight))
        case Slice():
            groups = values[op.x].unflatten(-1, (op.groups, op.size))
            return torch.narrow(groups, -1, op.first, op.width).flatten(-2)
        case Concat():
            return torch.cat((values[op.x], values[op.y]), dim=-1)
        case ShortConvolution():
            y, gate = compute_convolution(run, op)
            return y * gate if op.activation is None else gated_activation(y, gate, op.activation)
        case DeltaRule():
            return compute_delta_rule(run, op)
        case StateSpace():
            return compute_state_space(run, op)
        case Residual():
            return values[op.x] + values[op.branch] * op.scale
        case Scale():
            factor = 1.0 if op.weight is None else weight(op.weight)
            return values[op.x] * factor * op.factor
        case Sparsify():
            return streams.sparsify(values[op.x], op.multiplier)
        case AppendStream():
            return streams.append_stream(values[op.x], values[op.y], op.floor)
        case MeanOfStreams():
            return streams.mean_of_streams(values[op.x], op.count)
        case StreamCoefficients():
            router = weight(op.router)
            return streams.stream_coefficients(values[op.x], router, weight(op.weight), op.factor)
        case MixStreams():
            return streams.mix_streams(values[op.x], values[op.coefficients], op.count)
        case CorrectStreams():
            x, update, factors = values[op.x], values[op.update], values[op.coefficients]
            return streams.correct_streams(x, update, factors, op.count, op.active)
        case AddToStreams():
            return streams.add_to_streams(values[op.x], values[op.update], op.count, op.first)
        case Head():
            x = values[op.x] if run.all_rows else values[op.x][-1:]
            bias = None if op.bias is None else weight(op.bias)
            logits = linear(x, weight(op.weight), bias) * op.scale
            return logits if op.softcap is None else softcap(logits, op.softcap)


def _norm(run: ReferencePass, op: Norm) -> Tensor:
    """Normalise each group of a value's rows."""
    x = run.values[op.x].unflatten(-1, (op.groups, op.width))
    gain = torch.ones(op.width, dtype=x.dtype) if op.weight is None else run.weight(op.weight)
    gain = gain.reshape(-1, op.width)
    offset = 1.0 if op.unit_offset and op.weight is not None else 0.0
    y = (layer_norm if op.centred else rms_norm)(x, gain, op.eps, offset)
    return (y if op.bias is None else y + run.weight(op.bias).reshape(-1, op.width)).flatten(-2)


def _attend(run: ReferencePass, op: Attention) -> Tensor:
    """Store the keys and values of the pass, if any, then attend to all valid slots."""
    end = run.base + len(run.ids)
    cache = run.memory.cache[op.layer]
    for index, name in enumerate((op.k, op.v)):
        if name is None:
            continue
        heads = run.values[name].unflatten(-1, (op.kv_heads, op.head_dim))
        cache[index][:, run.base : end] = heads.transpose(0, 1)
    return attention(
        run.values[op.q].unflatten(-1, (op.heads, op.head_dim)),
        cache[0][:, :end],
        cache[1][:, :end],
        op.scale,
        base=run.base,
        window=op.window or 0,
        softcap=op.softcap or 0.0,
        sinks=None if op.sinks is None else run.weight(op.sinks),
        chunk=op.chunk or 0,
        causal=op.causal,
    ).flatten(-2)


def _mixture(run: ReferencePass, op: Experts) -> Tensor:
    """Apply the experts that the router selected for each row, and report their inputs."""

    def projection(part: tuple[WeightUse, ...], bias: WeightUse | None, number: int) -> Projection:
        return run.weight(part[number]), None if bias is None else run.weight(bias)[number]

    def expert(number: int) -> tuple[Projection, Projection, Projection]:
        return (
            projection(op.gates, op.gate_bias, number),
            projection(op.ups, op.up_bias, number),
            projection(op.downs, op.down_bias, number),
        )

    def observe(number: int, outer: Tensor, inner: Tensor) -> None:
        for part, rows in ((op.gates, outer), (op.ups, outer), (op.downs, inner)):
            run.observe(part[number], rows)

    def activate(gate: Tensor, up: Tensor) -> Tensor:
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


def embed(tokens: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale * table[tokens], with row 0 for tokens beyond the table.

    Args:
        tokens: int [rows].
        table: [vocab, hidden].
        scale: Factor on every value.

    Returns:
        [rows, hidden].
    """
    return table[torch.where(tokens < len(table), tokens, 0)] * scale


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias: [rows, K], [N, K] -> [rows, N]."""
    y = x @ weight.T
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis."""
    mean_square = x.square().mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps) * (offset + weight)


def layer_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return (x - mean(x)) / sqrt(var(x) + eps) * (offset + weight) over the last axis."""
    return rms_norm(x - x.mean(dim=-1, keepdim=True), weight, eps, offset)


def rope(x: Tensor, positions: Tensor, table: Tensor, *, interleaved: bool = False) -> Tensor:
    """Apply the rotary embedding to the first 2 * pairs elements of each head.

    Elements i and i + pairs of a head form a pair, or 2i and 2i + 1 if `interleaved`.

    Args:
        x: [rows, heads, head_dim].
        positions: int [rows].
        table: [context, pairs, 2], cosine and sine of each position and pair.
        interleaved: Whether neighbours form a pair.
    """
    pairs = table.shape[1]
    cos, sin = table[positions].to(x.dtype).unsqueeze(1).unbind(-1)
    if interleaved:
        a, b = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    else:
        a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    made = (a * cos - b * sin, b * cos + a * sin)
    rotated = torch.stack(made, -1).flatten(-2) if interleaved else torch.cat(made, -1)
    return torch.cat([rotated, x[..., 2 * pairs :]], dim=-1)


def position_scale(
    x: Tensor, positions: Tensor, scale: float, length: int, offset: int = 0
) -> Tensor:
    """Return x * (1 + scale * ln(1 + floor((position + offset) / length))), row by row.

    Args:
        x: [rows, width].
        positions: int [rows].
        scale: Factor on the logarithm.
        length: Positions that share one factor.
        offset: Added to the position.
    """
    steps = torch.div(positions + offset, length, rounding_mode="floor")
    return x * (1.0 + scale * torch.log1p(steps.to(x.dtype))).unsqueeze(1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    base: int = 0,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    chunk: int = 0,
    causal: bool = True,
) -> Tensor:
    """Compute attention with grouped queries.

    Args:
        q: Queries, [rows, heads, head_dim]; row r is in slot base + r.
        k: Keys, [kv_heads, slots, head_dim]; at least base + rows slots.
        v: Values, of the shape of k.
        scale: Factor on the scores q.k.
        base: Slot of row 0.
        window: Number of slots that a row attends to, including its own; 0 for all up to its own.
        softcap: Scores become softcap * tanh(score / softcap); 0 for no cap.
        sinks: [heads], a logit for each head that takes part in the softmax without a value.
        chunk: Slots of a chunk, to which a row's keys are limited; 0 for no chunks.
        causal: Whether a row attends only to slots up to its own. If not, it attends to all, and a
            window limits the distance on both sides to less than its size.

    Returns:
        [rows, heads, head_dim].
    """
    rows, heads, _ = q.shape
    group = heads // k.shape[0]
    keys = k.repeat_interleave(group, dim=0)
    values = v.repeat_interleave(group, dim=0)
    scores = torch.einsum("rhd,hjd->hrj", q, keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    slots = torch.arange(k.shape[1])
    own = base + torch.arange(rows).unsqueeze(1)
    visible = (slots <= own) | (not causal)
    if window:
        visible = visible & ((slots - own).abs() < window)
    if chunk:
        visible = visible & (slots // chunk == own // chunk)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(-1, rows, 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[1]]
    return torch.einsum("hrj,hjd->rhd", weights, values)


def gated_activation(
    gate: Tensor, up: Tensor, activation: str, clamp: Clamp | None = None
) -> Tensor:
    """Return activation(gate) * up, where the activation is one of `ACTIVATIONS`.

    Args:
        gate: The gate.
        up: What is multiplied by it.
        activation: Name of the activation.
        clamp: Return the clamped SwiGLU instead.

    Raises:
        KeyError: The activation has another name.
    """
    if clamp is not None:
        gate = gate.clamp(max=clamp.limit)
        up = up.clamp(-clamp.limit, clamp.limit)
        return gate * torch.sigmoid(clamp.alpha * gate) * (up + clamp.up_offset)
    return ACTIVATIONS[activation](gate) * up


def silu(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-x))."""
    return x * torch.sigmoid(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + torch.tanh(inner))


def gelu_erf(x: Tensor) -> Tensor:
    """Return GELU, x times the normal distribution function (arXiv 1606.08415)."""
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0)."""
    return x.clamp(min=0.0)


def relu2(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (So et al. 2021, arXiv 2109.08668)."""
    return relu(x).square()


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """Return xIELU (Huang and Schlag 2024, arXiv 2411.13010), whose parameters are trained.

    With a = softplus(alpha_p) and b = beta + softplus(alpha_n), it is a x^2 + beta x for x > 0, and
    b (e^min(x, eps) - 1 - x) + beta x otherwise.
    """
    above = torch.nn.functional.softplus(alpha_p) * x * x
    below = (beta + torch.nn.functional.softplus(alpha_n)) * (
        torch.expm1(torch.minimum(x, eps)) - x
    )
    return torch.where(x > 0, above, below) + beta * x


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": silu,
        "gelu_tanh": gelu_tanh,
        "gelu_erf": gelu_erf,
        "relu": relu,
        "relu2": relu2,
        "sigmoid": torch.sigmoid,
    }
)
"""The activations of the graph's ops, by name."""


Projection = tuple[Tensor, Tensor | None]
"""The weight of a projection and its bias, if there is one."""


def experts(
    x: Tensor,
    ids: Tensor,
    factors: Tensor,
    expert: Callable[[int], tuple[Projection, Projection, Projection]],
    activate: Callable[[Tensor, Tensor], Tensor],
    observe: Callable[[int, Tensor, Tensor], None] | None = None,
    *,
    scales_inputs: bool = False,
) -> Tensor:
    """Return the weighted sum of the outputs of each row's experts: [rows, K] -> [rows, K].

    Args:
        x: [rows, K].
        ids: Experts of each row, int [rows, top_k].
        factors: Routing weights of these experts, [rows, top_k].
        expert: Returns the gate and up projections [width, K] and the down projection [K, width]
            of an expert, given its number.
        activate: Returns the inner activations of some rows, given their gates and ups.
        observe: Called with the number of each expert that is used, the rows that enter its gate
            and up projections, and the rows that enter its down projection.
        scales_inputs: Multiply the inputs of an expert by the routing weight, not its outputs.
    """
    out = torch.zeros_like(x)
    for number in ids.unique().tolist():
        gate, up, down = expert(number)
        rows, rank = (ids == number).nonzero(as_tuple=True)
        weight = factors[rows, rank].unsqueeze(1)
        outer = x[rows] * weight if scales_inputs else x[rows]
        inner = activate(linear(outer, *gate), linear(outer, *up))
        if observe is not None:
            observe(number, outer, inner)
        result = linear(inner, *down)
        out[rows] += result if scales_inputs else result * weight
    return out


def sigmoid_gate(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
    """Return branch * sigmoid(x w): [rows, K], [rows, N], [1, K] -> [rows, N]."""
    return branch * torch.sigmoid(linear(x, weight))


def softcap(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap)."""
    return cap * torch.tanh(x / cap)


def argmax(logits: Tensor) -> int:
    """Return the index of the largest logit of [vocab], ties to the lower index."""
    return int((logits == logits.max()).nonzero()[0])
