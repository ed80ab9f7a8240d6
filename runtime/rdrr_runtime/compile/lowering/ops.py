"""Lowering of single ops: the table `LOWERINGS` has one row for each op of the graph.

An op may be lowered together with the residual after it if it can add to the stream in place. Runs
of ops that fused kernels serve are matched in `rdrr_runtime.compile.patterns`; all other ops are
lowered here, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from rdrr_format.errors import FormatError
from rdrr_manifests.graph import ops

from rdrr_runtime.compile.lowering import streams as of_streams
from rdrr_runtime.compile.lowering.attention import lower_attention
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.down import cleared_sums
from rdrr_runtime.compile.lowering.experts import lower_experts, lower_router, lower_sigmoid_gate
from rdrr_runtime.compile.lowering.latent import lower_latent_attention
from rdrr_runtime.compile.lowering.mtp import lower_concat, lower_recall
from rdrr_runtime.compile.lowering.norms import lower_norm, lower_residual
from rdrr_runtime.compile.lowering.products import lower_linear
from rdrr_runtime.compile.lowering.states import (
    lower_delta_rule,
    lower_short_convolution,
    lower_slice,
    lower_state_space,
)
from rdrr_runtime.phases.attention.position_scale import position_scale
from rdrr_runtime.phases.attention.rope import rope
from rdrr_runtime.phases.rows.activation import activate
from rdrr_runtime.phases.rows.elementwise import add_bias, gain, scale
from rdrr_runtime.phases.rows.embed import embed
from rdrr_runtime.phases.rows.gated_activation import gated_activation
from rdrr_runtime.phases.rows.position_embed import position_embed
from rdrr_runtime.phases.rows.slice import Part, copy_part


@dataclass(frozen=True)
class Lowering:
    """The lowering of one kind of op.

    Attributes:
        lower: Emits the op. For the ops of `patterns.Branch` it also takes the residual after it.
        names: The fields of the op that patterns and lowering take into account.
    """

    lower: Callable[..., None]
    names: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields one by one."""
        return tuple(self.names.split())


def lower_op(build: PassBuilder, op: ops.Op, residual: ops.Residual | None = None) -> None:
    """Emit one op, and with a linear, a norm or a mixture of experts the residual after it."""
    added = () if residual is None else (residual,)
    LOWERINGS[type(op)].lower(build, op, *added)


def check_fields(graph_ops: Sequence[ops.Op]) -> None:
    """Check that the lowering knows every op and all its fields.

    Raises:
        FormatError: An op, or a field of one, is unknown and would be ignored.
    """
    for kind in {type(op) for op in graph_ops}:
        known = LOWERINGS[kind].fields if kind in LOWERINGS else ()
        stated = tuple(field.name for field in fields(kind))
        if known != stated:
            raise FormatError(
                f"the runtime cannot compute the op {kind.__name__}",
                expected=", ".join(known) or "an op that this runtime knows",
                found=", ".join(stated),
                hint="use a newer rdrr",
            )


def _embed(build: PassBuilder, op: ops.Embed) -> None:
    width = op.weight.shape[1]
    out, rows = build.values.allocate(op.out, width), build.model.host_rows.get(op.weight.name)
    if rows is not None:
        build.emit(copy_part(build.ctx, rows, out, Part(1, width, 0, width), label=op.out))
        return
    table, cleared = build.matrix(op.weight), cleared_sums(build, width)
    build.emit(embed(build.ctx, table, out, scale=op.scale, cleared=cleared, label="embed"))


def _position_embed(build: PassBuilder, op: ops.PositionEmbed) -> None:
    x, table = build.values.get(op.x), build.matrix(op.weight)
    label = "type embed" if op.by_type else "position embed"
    phases = position_embed(build.ctx, table, x, offset=op.offset, by_type=op.by_type, label=label)
    build.emit(phases)
    build.values.rename(op.x, op.out)


def _rope(build: PassBuilder, op: ops.Rope) -> None:
    spec, table = build.model.graph.ropes[op.table], build.model.ropes[op.table]
    phases = rope(
        build.ctx,
        build.values.get(op.x),
        table,
        heads=op.heads,
        head_dim=spec.head_dim,
        rotary_dim=spec.rotary_dim,
        interleaved=op.interleaved,
        label=op.out,
    )
    build.emit(phases)
    build.values.rename(op.x, op.out)


def _position_scale(build: PassBuilder, op: ops.PositionScale) -> None:
    values = build.values
    x, width = values.get(op.x), values.live[op.x][0]
    phases = position_scale(
        build.ctx,
        x,
        width=width,
        scale=op.scale,
        length=op.length,
        offset=op.offset,
        label=op.out,
    )
    build.emit(phases)
    values.rename(op.x, op.out)


def _activation(build: PassBuilder, op: ops.GatedActivation) -> None:
    values = build.values
    out, gate = values.allocate(op.out, op.width), values.get(op.gate)
    up = None if op.up is None else values.get(op.up)
    phases = gated_activation(
        build.ctx,
        gate,
        up,
        out,
        width=op.width,
        activation=op.activation,
        clamp=op.clamp,
        up_parts=op.up_parts,
        up_part=op.up_part,
        gate_scale=op.gate_scale,
        label=op.out,
    )
    build.emit(phases)
    values.mark_read(op.gate, op.up)


def _scale(build: PassBuilder, op: ops.Scale) -> None:
    """Emit the product and the sum, in place unless another op still has to read the old value."""
    ctx, (x, width) = build.ctx, build.changed(op.x, op.out)
    if op.weight is not None:
        count, weight = op.weight.shape[0], build.vector(op.weight)
        build.emit(gain(ctx, x, weight, width=width, count=count, factor=op.factor, label=op.out))
    elif op.factor != 1.0 or op.bias is None:
        build.emit(scale(ctx, x, width=width, factor=op.factor, label=op.out))
    if op.bias is not None:
        build.emit(add_bias(ctx, x, build.vector(op.bias), width=width, label=f"{op.out}.bias"))


def _ungated_activation(build: PassBuilder, op: ops.Activation) -> None:
    x = build.values.get(op.x)
    names = [parameter.name for parameter in op.parameters]
    phases = activate(
        build.ctx,
        x,
        width=op.width,
        activation=op.activation,
        parameters=build.model.weights.concatenated(names) if names else None,
        limit=op.limit,
        label=op.out,
    )
    build.emit(phases)
    build.values.rename(op.x, op.out)


def _head(build: PassBuilder, op: ops.Head) -> None:
    del build, op
    raise AssertionError("`lower_head` emits the head, together with the norm before it")


LOWERINGS: Mapping[type, Lowering] = MappingProxyType(
    {
        ops.Embed: Lowering(_embed, "out weight scale"),
        ops.Recall: Lowering(lower_recall, "out width"),
        ops.PositionEmbed: Lowering(_position_embed, "x out weight offset by_type"),
        ops.Norm: Lowering(lower_norm, "x out weight eps unit_offset groups centred bias elements"),
        ops.Linear: Lowering(lower_linear, "x out weight bias"),
        ops.Rope: Lowering(_rope, "x out heads table interleaved"),
        ops.PositionScale: Lowering(_position_scale, "x out scale length offset"),
        ops.Attention: Lowering(
            lower_attention,
            "q k v out layer heads kv_heads head_dim scale window softcap sinks chunk causal"
            " bias bias_distance alibi",
        ),
        ops.LatentAttention: Lowering(
            lower_latent_attention,
            "q kv out norm up layer heads key_dim rope_dim value_dim table interleaved eps scale",
        ),
        ops.GatedActivation: Lowering(
            _activation,
            "gate up out activation width clamp up_parts up_part gate_scale",
        ),
        ops.Router: Lowering(
            lower_router,
            "x out weight top_k normalize bias scoring selection_bias groups top_groups "
            "group_score scale expert_scale margin",
        ),
        ops.Experts: Lowering(
            lower_experts,
            "x router out gates ups downs activation width clamp gate_bias up_bias down_bias "
            "scales_inputs fused",
        ),
        ops.Activation: Lowering(_ungated_activation, "x out activation width parameters limit"),
        ops.SigmoidGate: Lowering(lower_sigmoid_gate, "x branch out weight"),
        ops.Slice: Lowering(lower_slice, "x out groups size first width"),
        ops.Concat: Lowering(lower_concat, "x y out"),
        ops.ShortConvolution: Lowering(
            lower_short_convolution,
            "x out weight bias state activation parts factors",
        ),
        ops.DeltaRule: Lowering(
            lower_delta_rule,
            "qkv decay strength out rate decay_bias state key_heads heads key_dim value_dim eps",
        ),
        ops.StateSpace: Lowering(
            lower_state_space,
            "xbc step out rate step_bias skip state heads head_dim groups state_dim "
            "least_step most_step step_scale",
        ),
        ops.Residual: Lowering(lower_residual, "x branch out scale"),
        ops.Scale: Lowering(_scale, "x out factor weight bias"),
        ops.Sparsify: Lowering(of_streams.lower_sparsify, "x out multiplier"),
        ops.AppendStream: Lowering(of_streams.lower_append_stream, "x y out floor"),
        ops.StreamCoefficients: Lowering(
            of_streams.lower_stream_coefficients,
            "x out router weight factor",
        ),
        ops.CombineStreams: Lowering(
            of_streams.lower_combination,
            "x out form count stream update coefficients",
        ),
        ops.Head: Lowering(_head, "x out weight scale softcap bias"),
    }
)
"""Every op of the graph with all its fields. An op or field that is not listed here is refused
rather than ignored."""
