"""The inputs of products, with the ops before them that the kernels of products compute.

These are norms, and for one row also the sum of the residual stream and a branch: the sum that a
layer's block ends with is deferred until the next product reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Norm

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.norms import settle_sum
from rdrr_runtime.compile.patterns.residual import StreamSum
from rdrr_runtime.phases.phase import MAX_BUFFERS
from rdrr_runtime.phases.products.added_branch import AddedBranch, BranchNorm
from rdrr_runtime.phases.products.fusion import Input, Output, RowLayerNorm, RowNorm
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


def source_of(
    build: PassBuilder,
    norm: Norm | None,
    x: str,
    weights: Sequence[GpuWeight],
    output: Output,
) -> tuple[Input, str]:
    """Return the input of a product for one row, and the name of the value that it reads.

    Args:
        build: The pass under construction.
        norm: The norm before the product; None if none precedes it directly.
        x: Value that the product reads; the output of the norm, or of a deferred one.
        weights: The matrices of the product.
        output: The output of the product, whose buffers have been allocated.
    """
    norm = norm or build.deferred.get(x)
    if norm is not None:
        return norm_input(build, norm, weights, output), x
    added = take_sum(build, x, None, weights, output)
    return added or Input(build.values.get(x), name=x), x


def norm_input(
    build: PassBuilder, norm: Norm, weights: Sequence[GpuWeight], output: Output
) -> Input:
    """Return the input of a product that also applies the norm before it.

    Only products of one row apply others than plain RMSNorm.
    """
    added = take_sum(build, norm.x, norm, weights, output)
    return added or normed(build, norm, build.values.get(norm.x))


def normed(build: PassBuilder, norm: Norm, x: BufferSlice) -> Input:
    """Return the input of a product that applies a norm to the rows of a buffer."""
    if norm.is_plain:
        return Input(x, RowNorm(*build.gain(norm)), name=norm.out)
    gain = None if norm.weight is None else build.vector(norm.weight)
    bias = None if norm.bias is None else build.vector(norm.bias)
    before = RowLayerNorm(gain, bias, norm.eps, float(norm.unit_offset))
    return Input(x, before, name=norm.out)


def take_sum(
    build: PassBuilder,
    value: str,
    norm: Norm | None,
    weights: Sequence[GpuWeight],
    output: Output,
    *,
    stored: bool = True,
) -> Input | None:
    """Return the input of a product that computes the deferred sum, if it reads that.

    If the product cannot, the sum is emitted as a phase of its own.

    Args:
        build: The pass under construction.
        value: The value that the product reads, before the norm if there is one.
        norm: The norm of the value, which the product applies too; None for none.
        weights: The matrices of the product.
        output: The output of the product, whose buffers have been allocated.
        stored: Whether later ops read the sum, so that the product stores it.
    """
    pending = build.pending_sum
    if pending is None or pending.out != value:
        return None
    is_known = norm is None or norm.is_plain
    if not is_known or _buffers(weights, output, stored=stored) > MAX_BUFFERS:
        settle_sum(build)
        return None
    build.pending_sum = None
    values, (width, *_) = build.values, build.values.live[pending.residual.x]
    x, fixed = values.get(pending.residual.x), build.fixed.pop(pending.branch, None)
    added = AddedBranch(
        values.get(pending.branch) if fixed is None else fixed,
        None if pending.norm is None else _branch_norm(build, pending, norm),
        stream=values.allocate(value, width) if stored else None,
        fixed=fixed is not None,
    )
    values.mark_read(pending.residual.x, pending.branch)
    if norm is None:
        return Input(x, name=value, added=added)
    return Input(x, RowNorm(*build.gain(norm)), name=norm.out, added=added)


def _branch_norm(build: PassBuilder, pending: StreamSum, after: Norm | None) -> BranchNorm:
    """Return the norm of a branch, with the weights of the norm and of the scale after the sum."""
    assert pending.norm is not None, "the caller has found a norm"
    _, eps, offset = build.gain(pending.norm)
    scale = pending.scale
    uses = (
        pending.norm.weight,
        None if after is None else after.weight,
        None if scale is None else scale.weight,
    )
    gains = build.model.weights.concatenated([use.name for use in uses if use is not None])
    return BranchNorm(gains, eps, offset, None if scale is None else scale.factor)


def _buffers(weights: Sequence[GpuWeight], output: Output, *, stored: bool) -> int:
    """Return how many buffers a product binds that also adds a branch."""
    optional = (output.bias, output.scales, output.best, output.factors, output.score)
    inputs = 3 + stored  # x, branch, gain, and the stream
    weights = (*weights, *([] if output.down is None else [output.down.weight]))
    return inputs + len(weights) + 1 + sum(buffer is not None for buffer in optional)
