"""Int8 products of matrices with a small batch of token rows; each weight is read once for all.

This kernel fills the gap between `matvec`, which takes one row, and `matmul_int8`, whose tiles need
many rows. `quantize_small_batch` provides the rows in int8. The phase stores the outputs, adds them
to the residual stream or gates them. It reads only blocks along K; `requantize` makes such blocks
of other matrices. A matrix with several parts has a phase for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import MAX_BUFFERS, Phase, Work
from rdrr_runtime.phases.products.fusion import Output, RowNorm
from rdrr_runtime.phases.products.matvec_record import MatvecRows, RowsMatrix
from rdrr_runtime.phases.products.matvec_rows_tuning import (
    GRID_STAGED_BYTES,
    INT8_WORKGROUP,
    ROWS_AT_A_TIME,
    RowsShape,
    RowsTuning,
    at_a_time,
    rows_tuning,
)
from rdrr_runtime.phases.products.quantize_small_batch import UNIT, small_batch_bytes, units_of
from rdrr_runtime.phases.weights.binding import BoundWeights, bind_parts, bind_whole
from rdrr_runtime.phases.weights.checks import unreadable_reason
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

MAX_ROWS = 32
"""Most token rows of a pass for which this kernel is faster than tiles."""

MAX_MATRICES = 3
"""Most matrices of a phase."""

MAX_LOADS = 5
"""Most vectors of quantized inputs that a thread loads at once, where it loads several."""

MAX_QUADS = 16
"""Most times 4 elements that a thread normalises and quantizes, times the rows whose sums it holds.
On an H200 a step of 4 rows of llama-1b in one dispatch takes 640 us (as dispatches 950) with 16; a
step of 8 rows, with 64, 1,722 us, since threads run out of registers, and 808 with other phases."""


def padded_batch_rows(rows: int) -> int:
    """Return the rows that the int8 input of a pass of `rows` rows must have room for.

    The kernel reads whole items.
    """
    at_once = at_a_time(rows, ROWS_AT_A_TIME)
    return -(-rows // at_once) * at_once


def refusal(
    ctx: OpContext,
    weights: Sequence[GpuWeight],
    *,
    apart: bool = False,
    bias: bool = False,
    gate: bool = False,
) -> str | None:
    """Return why the kernel cannot multiply these matrices, or None if it can.

    Args:
        ctx: Lowering context.
        weights: The matrices [N, K].
        apart: Whether each matrix has a y of its own.
        bias: Whether a bias is added.
        gate: Whether an activation joins the outputs of gate and up.
    """
    if not 2 <= ctx.max_rows <= MAX_ROWS:
        return f"it takes 2 to {MAX_ROWS} token rows, and the pass has {ctx.max_rows}"
    if weights[0].k % 4:
        return f"K is {weights[0].k}, not a multiple of 4"
    inputs = sorted({weight.k for weight in weights})
    if len(inputs) > 1:
        return f"its matrices have different numbers of inputs, {' and '.join(map(str, inputs))}"
    if len(weights) > MAX_MATRICES:
        return f"it takes up to {MAX_MATRICES} matrices, and there are {len(weights)}"
    buffers = 2 + len(weights) + (len(weights) if apart else 1) + bias
    if buffers > MAX_BUFFERS:
        return f"it would bind {buffers} buffers, more than {MAX_BUFFERS}"
    return weights_refusal(ctx, weights, in_parts=len(weights) == 1 and not gate)


def weights_refusal(
    ctx: OpContext, weights: Sequence[GpuWeight], *, in_parts: bool = False
) -> str | None:
    """Return why this kernel and `expert_int8` cannot read these matrices, or None if they can."""
    if ctx.values != "f32":
        return f"it takes activations in f32, and the pass has {ctx.values}"
    column = next((weight for weight in weights if weight.by_column), None)
    if column is not None:
        return f"it reads blocks along K, and a {column.dtype} matrix is column-major"
    return next(
        filter(
            None, (unreadable_reason(weight, int8=True, in_parts=in_parts) for weight in weights)
        ),
        None,
    )


def can_quantize_output(ctx: OpContext, outputs: int) -> bool:
    """Return whether a `gate` phase can write int8: only if the outputs are whole units of 64."""
    return outputs % UNIT == 0 and ctx.max_threads >= INT8_WORKGROUP


def matvec_rows(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    x: BufferSlice,
    output: Output,
    *,
    halves: bool = False,
    before: RowNorm | None = None,
    label: str,
    tuning: RowsTuning | None = None,
) -> list[Phase]:
    """Lower a fused product of a small batch; `refusal` must return None for it.

    It takes one phase, or one for each part of a single matrix.

    Args:
        ctx: Lowering context.
        weights: One to three matrices [N, K] with the same K; for `gate`, gate and up, or one
            matrix with both.
        x: Output of `quantize_small_batch`, with room for `padded_batch_rows` rows; with a norm
            f32 [rows, K].
        output: Output of the product, with the op fused after it.
        halves: Whether each 16 inputs have a scale, instead of each 32; only for weights in groups
            of 32 without minimums.
        before: The norm of the inputs, if `can_normalise`; None if they are quantized.
        label: Name of the op, for messages and profiles.
        tuning: Tuning parameters to use instead of the tuned or default ones.

    Raises:
        FormatError: A buffer is too small.
    """
    gate, rows, k = output.kind == "gate", ctx.max_rows, weights[0].k
    sizes = [sum(weight.n for weight in weights) // 2] if gate else [weight.n for weight in weights]
    in_parts = len(weights) == 1 and not gate
    bounds = bind_parts(weights[0]) if in_parts else (bind_whole(weights),)
    concatenated = len(output.ys) < len(sizes) or len(bounds) > 1
    if before is None:
        need_floats(f"{label}: x", x, small_batch_bytes(padded_batch_rows(rows), k) // 4)
    else:
        need_floats(f"{label}: x", x, rows * k)
    _need_room(ctx, output, [sum(sizes)] if concatenated else sizes, label)
    variant = f"{bounds[0].types}.{output.kind}"
    shape = RowsShape(sum(sizes), k, len(sizes), gate, output.int8)
    tuning_key = rows_tuning(ctx, variant, shape)
    used = (tuning or tuning_key.used).for_rows(rows)
    fields = _fields(ctx, output, used, k) | _staging(ctx, used, k, before)
    fields["halves"] = halves
    if concatenated:
        fields |= {"concatenated": True, "y_stride": sum(sizes)}
    buffers = {"current": ctx.state.step, "x": x, **(before.buffers if before else {})}
    buffers |= {f"y{index}": y for index, y in enumerate(output.ys)}
    if output.bias is not None:
        buffers["bias"] = output.bias
    step = used.item_outputs // (2 if gate else 1)
    phases = []
    for bound in bounds:
        matrices, items = _matrices(bound, step, gate=gate)
        workgroups = min(items, used.workgroups or items)
        looped = workgroups < items
        record = MatvecRows(
            variant=f"{variant}.int8{'.halves' if halves else ''}",
            looped=looped,
            stride=workgroups if looped else None,
            steps=-(-items // workgroups) if looped else None,
            matrices=matrices,
            **fields,
            **bound.fields,
        )
        work = Work(workgroups, used.item_rows)
        phases.append(Phase(record, buffers | bound.buffers, work, label, (tuning_key,)))
    return phases


def _fields(ctx: OpContext, output: Output, used: RowsTuning, k: int) -> dict[str, Any]:
    """Return the fields of the record that do not depend on the matrices."""
    return {
        "threads": used.workgroup,
        "kind": output.kind,
        "act": output.act,
        "clamp": output.clamp,
        "bias": output.bias is not None,
        "rows": used.rows,
        "groups": used.groups,
        "early": ctx.grid is not None and output.kind == "add" and used.team >= used.rows,
        "t": used.team,
        "lanes": used.lanes,
        "outputs": used.outputs,
        "ahead": used.ahead > 0,
        "width": used.outputs_of_gate if output.int8 else 0,
        "halves_out": output.halves,
        "subgroups": ctx.subgroups,
        "units": units_of(k),
    }


def _staging(ctx: OpContext, used: RowsTuning, k: int, before: RowNorm | None) -> dict[str, Any]:
    """Return the fields that say how inputs are staged."""
    if not used.staged:
        return {}
    part = -(-units_of(k) // used.staged)
    vectors = 5 * used.item_rows * part
    fields: dict[str, Any] = {
        "staged": used.staged,
        "part": part if used.staged > 1 else None,
        "staged_vectors": vectors,
        # The next unit of a thread may otherwise be in the next part, behind a gap.
        "ahead": used.ahead > 0 and (used.staged == 1 or part % used.team == 0),
    }
    if before is not None:
        quads = _quads(ctx, used.item_rows, k)
        return fields | {"norm": True, "loads": quads, "k": k, **before.fields}
    if ctx.grid is not None:
        fields["loads"] = min(MAX_LOADS, -(-vectors // used.workgroup))
    return fields


def can_normalise(ctx: OpContext, weights: Sequence[GpuWeight], output: Output) -> bool:
    """Return whether the kernel can normalise the inputs of each row as it stages them.

    That saves a phase in one dispatch. Each workgroup does it, so it pays only for few elements.

    Args:
        ctx: Lowering context.
        weights: The matrices [N, K].
        output: Output of the product.
    """
    if ctx.grid is None:
        return False
    rows, k = at_a_time(ctx.max_rows, ROWS_AT_A_TIME), weights[0].k
    fits = small_batch_bytes(rows, k) <= GRID_STAGED_BYTES
    buffers = 3 + len(weights) + len(output.ys) + (output.bias is not None)
    return fits and buffers <= MAX_BUFFERS and rows * _quads(ctx, rows, k) <= MAX_QUADS


def _quads(ctx: OpContext, rows: int, k: int) -> int:
    """Return the times 4 elements that a thread of a grid quantizes."""
    return -(-UNIT // 4 * units_of(k) * rows // ctx.threads(1))


def _need_room(
    ctx: OpContext,
    output: Output,
    sizes: Sequence[int],
    label: str,
) -> None:
    """Check that the results have room; `sizes` are the outputs of each y.

    Raises:
        FormatError: A buffer is too small.
    """
    rows = ctx.max_rows
    for y, size in zip(output.ys, sizes, strict=True):
        words = small_batch_bytes(1, size) // 4 if output.int8 else size
        need_floats(f"{label}: y", y, rows * words)
    if output.bias is not None:
        need_floats(f"{label}: bias", output.bias, sum(sizes))


def _matrices(bound: BoundWeights, step: int, *, gate: bool) -> tuple[tuple[RowsMatrix, ...], int]:
    """Return the constants of each bound matrix, and the number of items of `step` outputs."""
    pairs = tuple(zip(bound.weights, bound.parts, strict=True))
    sizes = [weight.outputs(part) for weight, part in pairs]
    if gate:
        return tuple(RowsMatrix(size, 0) for size in sizes), -(-sum(sizes) // 2 // step)
    counts = [-(-size // step) for size in sizes]
    matrices = tuple(
        RowsMatrix(size, sum(counts[:at]), part.first_row + sum(sizes[:at]))
        for at, (size, (_, part)) in enumerate(zip(sizes, pairs, strict=True))
    )
    return matrices, sum(counts)
