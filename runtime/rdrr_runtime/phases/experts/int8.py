"""Int8 products of a small batch of token rows with the experts that they are routed to.

Each route reads the weights of its expert separately, as in `expert_linear`. The kernel is that of
`matvec_rows`; `quantize_small_batch` quantizes its input.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.experts.routing import expert_outputs
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.fusion import Output
from rdrr_runtime.phases.products.matvec_record import MatvecRows, RowsMatrix
from rdrr_runtime.phases.products.quantize_small_batch import small_batch_bytes, units_of
from rdrr_runtime.phases.routes import Routed, need_routes
from rdrr_runtime.phases.weights.binding import bind_whole
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

WORKGROUP = 128
TEAM = 32
"""Threads that share an output; fast if it is the size of a subgroup."""


def expert_int8(
    ctx: OpContext,
    stacks: tuple[GpuWeight, ...],
    routed: Routed,
    x: BufferSlice,
    output: Output,
    *,
    label: str,
) -> list[Phase]:
    """Multiply rows by their experts; `weights_refusal` must return None for the matrices.

        gate        y[r, s, :] = act(W_gate[e] x[r, :]) (W_up[e] x[r, :])
        activate    y[r, s, :] = act(W[e] x[r, :])
        store, add  y[r, :] = sum_s w W[e] x[r, s, :] (+ y)

    e is the expert of the s-th route of row r, and w is the routing weight. With a bias, b[e] is
    added to each product with W[e]; `activate` has none, and its inputs are not scaled.

    Args:
        ctx: Lowering context.
        stacks: Matrices [experts * N, K] with blocks along K; for `gate`, those of gate and up, or
            matrices [experts * 2 N, K] that hold both.
        routed: Routes of the pass.
        x: Output of `quantize_small_batch`: [rows, K] for `gate` and `activate`, otherwise
            [rows, top_k, K].
        output: One y, f32 [rows, top_k, N] for `gate` and `activate`, otherwise [rows, N]. The bias
            is f32 [experts, N]; for `gate`, those of all gates and then those of all ups.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    each, k = output.kind in ("gate", "activate"), stacks[0].k
    computed = sum(expert_outputs(stack, routed, label) for stack in stacks)
    outputs = computed // 2 if output.kind == "gate" else computed
    x_per_row, y_per_row = (1, routed.top_k) if each else (routed.top_k, 1)
    need_routes(ctx, routed, label)
    need_floats(f"{label}: x", x, small_batch_bytes(ctx.max_rows * x_per_row, k) // 4)
    need_floats(f"{label}: y", output.ys[0], ctx.max_rows * y_per_row * outputs)
    bound, experts = bind_whole(stacks), "each" if each else "sum"
    record = MatvecRows(
        threads=min(WORKGROUP, ctx.max_threads),
        variant=f"experts.{experts}.{bound.types}.int8",
        experts=experts,
        kind=output.kind,
        act=output.act,
        clamp=output.clamp,
        bias=output.bias is not None,
        rows=1,
        t=TEAM,
        lanes=TEAM,
        outputs=computed // outputs,
        subgroups=ctx.subgroups,
        units=units_of(k),
        matrices=(RowsMatrix(computed // len(stacks), 0),) * len(stacks),
        expert_count=routed.experts,
        top_k=routed.top_k,
        scaled=routed.scales_inputs,
        **bound.fields,
    )
    buffers = {"routes": routed.routes, "x": x, "y0": output.ys[0], **bound.buffers}
    if output.bias is not None:
        need_floats(f"{label}: bias", output.bias, routed.experts * computed)
        buffers["bias"] = output.bias
    items = -(-outputs // (record.threads // TEAM))
    return [Phase(record, buffers, Work(items * y_per_row, rows=1), label)]
