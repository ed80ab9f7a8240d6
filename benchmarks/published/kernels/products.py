"""Measure the matrix products of a model's shape, in every form that the runtime stores.

Products alternate between several copies of their weights, so that the weights are not served by a
cache. The bandwidth is compared with that of a memory copy in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr.bench.figures import Spread
from rdrr_format.errors import RdrrError, UsageError
from rdrr_format.layouts import Layout
from shapes import SHAPES, Matrix

from published.kernels.kernel_bench import KernelBench, open_kernel_bench

if TYPE_CHECKING:
    from rdrr_device.buffers import BufferSlice
    from rdrr_runtime.phases.context import OpContext
    from rdrr_runtime.phases.phase import Phase
    from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

SPREAD_BYTES = 256 << 20
"""Minimum bytes of all copies of a matrix together, up to `MOST_COPIES` copies."""

MOST_COPIES = 64
PREFILL_ROWS = 512
"""Token rows of the products of a prompt."""

Maker = Callable[["OpContext", "GpuWeight", "BufferSlice", "BufferSlice"], "list[Phase]"]


def product(ctx: OpContext, weight: GpuWeight, x: BufferSlice, y: BufferSlice) -> list[Phase]:
    """Return the phases of y = x W^T with the general kernels."""
    from rdrr_runtime.phases.products.linear import linear

    return linear(ctx, weight, x, y, label="product")


def _matvec(int8: bool) -> Maker:
    def make(ctx: OpContext, weight: GpuWeight, x: BufferSlice, y: BufferSlice) -> list[Phase]:
        from rdrr_runtime.phases.products.fusion import Input, Output
        from rdrr_runtime.phases.products.matvec import matvec, refusal

        obstacle = refusal(ctx, (weight,), int8=int8)
        if obstacle is not None:
            raise UsageError(f"the kernel cannot multiply this matrix: {obstacle}")
        return matvec(ctx, (weight,), Input(x), Output((y,)), int8=int8, label="product")

    return make


@dataclass(frozen=True)
class Form:
    """A way to store and multiply a matrix, for a number of token rows.

    Attributes:
        name: Name in tables: storage type and kernel.
        dtype: Storage type of the weights.
        layout: Layout of the weights.
        rows: Token rows of the product.
        make: Function that returns the phases of the product.
    """

    name: str
    dtype: str
    layout: Layout
    rows: int
    make: Maker


FORMS = (
    Form("F16, matvec", "F16", Layout.ROW, 1, _matvec(False)),
    Form("F16, gemv", "F16", Layout.ROW, 1, product),
    Form("Q4_K, matvec int8", "Q4_K", Layout.ROW, 1, _matvec(True)),
    Form("Q4_K, matvec", "Q4_K", Layout.ROW, 1, _matvec(False)),
    Form("Q4_K row-major, gemv", "Q4_K", Layout.ROW, 1, product),
    Form("Q4_K column-major, gemv", "Q4_K", Layout.COLUMN, 1, product),
    Form("F16, tiled", "F16", Layout.ROW, PREFILL_ROWS, product),
    Form("Q4_K, tiled", "Q4_K", Layout.ROW, PREFILL_ROWS, product),
)


@dataclass(frozen=True)
class Product:
    """The GPU time of one kernel for one matrix.

    Attributes:
        form: How the matrix is stored and multiplied.
        matrix: The matrix.
        seconds: Seconds of GPU time of one product.
        size: Bytes of the weights.
        bandwidth: Bytes per second of a memory copy in the same run.
        obstacle: Why the kernel did not run, or an empty string.
    """

    form: Form
    matrix: Matrix
    seconds: Spread
    size: int
    bandwidth: float
    obstacle: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        head = {
            "matrix": self.matrix.name,
            "n": self.matrix.n,
            "k": self.matrix.k,
            "rows": self.form.rows,
            "kernel": self.form.name,
        }
        if self.obstacle:
            return head | {"not_run": self.obstacle}
        rate = self.size / self.seconds.median
        operations = 2 * self.matrix.n * self.matrix.k * self.form.rows
        return head | {
            "microseconds": {key: 1e6 * value for key, value in self.seconds.as_dict().items()},
            "weight_bytes": self.size,
            "gigabytes_per_second": rate / 1e9,
            "gigaflops": operations / self.seconds.median / 1e9,
            "share_of_copy": rate / self.bandwidth,
        }


def products(
    shape: str, *, adapter: str | None = None, repeat: int = 5, head: bool = True
) -> dict[str, Any]:
    """Measure every form of every matrix of a shape.

    Args:
        shape: Name of a shape, a key of `SHAPES`.
        adapter: Part of the name of the adapter to use.
        repeat: Number of measurements of each product.
        head: Whether the output head is measured too.

    Raises:
        UsageError: There is no such shape.
        DeviceError: There is no adapter, or it has no timestamps.
    """
    from rdrr_runtime.measure.profile import copy_bandwidth

    if shape not in SHAPES:
        raise UsageError("unknown shape", expected=" or ".join(SHAPES), found=shape)
    matrices = [matrix for matrix in SHAPES[shape].matrices() if head or matrix.name != "head"]
    with open_kernel_bench(adapter) as bench:
        bandwidth, _ = copy_bandwidth(bench.device, bench.timer)
        rows = [
            _measured(bench, form, matrix, repeat, bandwidth)
            for matrix in matrices
            for form in FORMS
            if form.rows == 1 or matrix.name != "head"  # a prompt needs only one row of logits
        ]
        info = bench.device.info
        return {
            "schema": 1,
            "adapter": info.name,
            "software": info.software,
            "shape": shape,
            "copy_gigabytes_per_second": bandwidth / 1e9,
            "products": [product.as_dict() for product in rows],
        }


def _measured(
    bench: KernelBench, form: Form, matrix: Matrix, repeat: int, bandwidth: float
) -> Product:
    with bench.arena.temporary() as buffers:
        fresh = KernelBench(bench.device, buffers, bench.timer)
        try:
            ctx = fresh.context(form.rows)
            x, y = fresh.floats(form.rows * matrix.k), fresh.floats(form.rows * matrix.n)
            first = fresh.weight(form.dtype, form.layout, matrix.n, matrix.k)
            # Copies, so that no product reads what the one before left in a cache; with many rows
            # reading counts for little.
            copies = min(MOST_COPIES, -(-SPREAD_BYTES // first.size))
            if fresh.device.info.software or form.rows > 1:
                copies = 1
            weights = [first] + [
                fresh.weight(form.dtype, form.layout, matrix.n, matrix.k) for _ in range(copies - 1)
            ]
            phases = [phase for w in weights for phase in form.make(ctx, w, x, y)]
            (seconds,) = fresh.times([phases], form.rows, repeat)
        except RdrrError as error:
            return Product(form, matrix, Spread(0, 0, 0), 0, bandwidth, str(error))
    each = Spread.of([total / copies for total in seconds])
    return Product(form, matrix, each, first.size, bandwidth)
