"""The selective state space of Mamba 2, row by row or in chunks of rows computed in parallel.

The form in chunks (Dao and Gu 2024, arXiv 2405.21060, section 6) computes the products of B and C
once for all heads of a group, and then passes the state of each head from chunk to chunk by small
matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.states import tiles
from rdrr_runtime.phases.states.tiles import CHUNK, CHUNK_THREADS, RowByRow, columns_of, lanes_of

UNLIMITED = 1e30
"""Upper limit of steps that have none."""


@dataclass(frozen=True)
class StateSpaceSizes:
    """Override constants that all shaders of the state space share.

    Attributes:
        heads: Heads, a multiple of the groups.
        head_dim: Inputs and outputs of a head.
        groups: Groups of heads that share B and C.
        state_dim: Elements of B and C.
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int

    @property
    def inputs(self) -> int:
        """Elements of x, B and C of a row."""
        return self.outputs + 2 * self.groups * self.state_dim

    @property
    def outputs(self) -> int:
        """Elements of a row of the output."""
        return self.heads * self.head_dim

    def product_bytes(self, rows: int) -> int:
        """Return the bytes of the products of B and C that chunks of `rows` rows need."""
        return 4 * tiles.chunks_of(rows) * self.groups * CHUNK * CHUNK

    def check(self, label: str) -> None:
        """Check that the kernels support the sizes.

        Raises:
            FormatError: They do not.
        """
        need_multiple(f"{label}: width of a head", self.head_dim, 4)
        need_multiple(f"{label}: width of B and C", self.state_dim, 4)
        if self.heads % self.groups:
            raise FormatError(
                "the number of heads does not fit that of groups",
                where=label,
                expected=f"a multiple of {self.groups}",
                found=self.heads,
            )


@dataclass(frozen=True)
class StepForm:
    """Limits of the lengths of steps and the factor before softplus, as override constants."""

    least_step: float = 0.0
    most_step: float = UNLIMITED
    step_scale: float = 1.0


@dataclass(frozen=True)
class StateSpaceSpec:
    """A state space: its sizes, and the form of its steps."""

    sizes: StateSpaceSizes
    form: StepForm = StepForm()


@dataclass(frozen=True)
class StateSpaceOperands:
    """The buffers of a state space.

    Attributes:
        xbc: x, B and C, [rows, inputs].
        step: [rows, heads].
        rates: f32 [3, heads]: rates, biases of the steps, factors of the skip.
        state: f32 [sequences, heads, state_dim, head_dim].
        y: [rows, outputs]; not the same buffer as the inputs.
    """

    xbc: BufferSlice
    step: BufferSlice
    rates: BufferSlice
    state: BufferSlice
    y: BufferSlice

    def check(self, ctx: OpContext, sizes: StateSpaceSizes, label: str) -> None:
        """Check that the buffers are large enough.

        Raises:
            FormatError: A buffer is too small, or no kernel supports the sizes.
        """
        sizes.check(label)
        rows = ctx.max_rows
        ctx.need_values(f"{label}: x, B and C", self.xbc, rows * sizes.inputs)
        ctx.need_values(f"{label}: steps", self.step, rows * sizes.heads)
        ctx.need_values(f"{label}: output", self.y, rows * sizes.outputs)
        need_floats(f"{label}: rates", self.rates, 3 * sizes.heads)
        need_floats(f"{label}: state", self.state, sizes.outputs * sizes.state_dim)

    def named(self, ctx: OpContext) -> dict[str, BufferSlice]:
        """Return the buffers by the names of the shaders, with the step of the pass."""
        return {"current": ctx.state.step, **vars(self)}


@dataclass(frozen=True, kw_only=True)
class StateSpaceRecord(RowByRow):
    """Parameters of state_space.wgsl.

    Attributes:
        spec: The op.
        rows: Token rows of a call.
    """

    shader = "states/state_space"

    spec: StateSpaceSpec
    rows: int


@dataclass(frozen=True, kw_only=True)
class StateSpaceProducts(Record):
    """Parameters of state_space_products.wgsl.

    Attributes:
        chunk: Rows of a chunk.
        sizes: Sizes of the op.
    """

    shader = "states/state_space_products"

    chunk: int = choice()
    value: str = choice()
    sizes: StateSpaceSizes


@dataclass(frozen=True, kw_only=True)
class StateSpaceScan(Record):
    """Parameters of state_space_scan.wgsl.

    Attributes:
        chunk: Rows of a chunk.
        columns: Columns of a state for one item.
        state_dim: Elements of B and C.
        spec: The op.
    """

    shader = "states/state_space_scan"

    chunk: int = choice()
    columns: int = choice()
    state_dim: int = choice()
    value: str = choice()
    spec: StateSpaceSpec


def state_space(
    ctx: OpContext, operands: StateSpaceOperands, *, spec: StateSpaceSpec, single: bool, label: str
) -> list[Phase]:
    """Apply the state space row by row, for rows of any sequences.

    Args:
        ctx: Lowering context; its state holds the sequence and slot of each row.
        operands: The buffers.
        spec: The state space.
        single: Whether no sequence has more than one row in a pass; the rows then run in parallel.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    sizes = spec.sizes
    operands.check(ctx, sizes, label)
    lanes, columns = lanes_of(sizes.state_dim), columns_of(sizes.head_dim)[0]
    rows = 1 if single else ctx.max_rows
    record = StateSpaceRecord(
        threads=lanes * columns // 4,
        columns=columns,
        lanes=lanes,
        steps=sizes.state_dim // lanes,
        value=ctx.values,
        spec=spec,
        rows=rows,
    )
    return [Phase(record, operands.named(ctx), Work(sizes.outputs // columns, rows), label)]


def state_space_in_chunks(
    ctx: OpContext,
    operands: StateSpaceOperands,
    products: BufferSlice,
    *,
    spec: StateSpaceSpec,
    label: str,
) -> list[Phase]:
    """Apply the state space to consecutive rows of one sequence, all of which the state absorbs.

    Args:
        ctx: Lowering context; its state holds the sequence and slot of each row.
        operands: The buffers.
        products: Memory of the size of `StateSpaceSizes.product_bytes`; in a different buffer from
            the operands.
        spec: The state space.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    sizes = spec.sizes
    operands.check(ctx, sizes, label)
    need_floats(f"{label}: products", products, sizes.product_bytes(ctx.max_rows) // 4)
    columns = _scan_columns(ctx, sizes)
    before = StateSpaceProducts(threads=CHUNK_THREADS, chunk=CHUNK, value=ctx.values, sizes=sizes)
    scan = StateSpaceScan(
        threads=CHUNK * columns // 4,
        chunk=CHUNK,
        columns=columns,
        state_dim=sizes.state_dim,
        value=ctx.values,
        spec=spec,
    )
    buffers = operands.named(ctx) | {"products": products}
    shared = {name: buffers[name] for name in ("current", "xbc", "products")}
    blocks = sizes.groups * CHUNK * CHUNK // CHUNK_THREADS
    return [
        Phase(before, shared, Work(blocks, CHUNK), f"{label}.products"),
        Phase(scan, buffers, Work(sizes.outputs // columns), label),
    ]


def chunk_refusal(ctx: OpContext, sizes: StateSpaceSizes) -> str | None:
    """Return why the form in chunks cannot run here; None if it can."""
    return tiles.chunk_refusal(ctx, _scan_storage(sizes, columns_of(sizes.head_dim)[-1]))


def _scan_columns(ctx: OpContext, sizes: StateSpaceSizes) -> int:
    """Return the columns of an item of the scan; some fit, or `chunk_refusal` refuses."""
    limit, columns = ctx.workgroup_storage, columns_of(sizes.head_dim)
    return next(count for count in columns if _scan_storage(sizes, count) <= limit)


def _scan_storage(sizes: StateSpaceSizes, columns: int) -> int:
    """Return the bytes of workgroup memory of the scan."""
    # The item's columns of a state, and inputs of a chunk; of each of its rows three numbers: the
    # length of its step, the logarithm of its decay, and the sum of those.
    return 4 * (columns * (sizes.state_dim + CHUNK) + 3 * CHUNK)
