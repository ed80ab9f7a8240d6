"""The gated delta rule, row by row or in chunks whose rows are computed in parallel.

The form in chunks (Yang et al. 2024, arXiv 2406.06484 and 2412.06464) solves a triangular system
for each chunk and head, independently of the state, and then passes the state from chunk to chunk
by small matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.states import tiles
from rdrr_runtime.phases.states.tiles import CHUNK, CHUNK_THREADS, RowByRow, columns_of, lanes_of


@dataclass(frozen=True)
class DeltaSizes:
    """Override constants that all shaders of the delta rule share.

    Attributes:
        heads: Value heads.
        key_heads: Key heads, a divisor of the value heads.
        key_dim: Elements of a query or key.
        value_dim: Elements of a value.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class DeltaSpec(DeltaSizes):
    """Sizes of a gated delta rule.

    Attributes:
        eps: Number added to the squared lengths of queries and keys.
    """

    eps: float

    @property
    def inputs(self) -> int:
        """Elements of the queries, keys and values of a row."""
        return 2 * self.key_heads * self.key_dim + self.outputs

    @property
    def outputs(self) -> int:
        """Elements of a row of the output."""
        return self.heads * self.value_dim

    @property
    def columns(self) -> int:
        """Columns of a state for one item."""
        return columns_of(self.value_dim)[0]

    @property
    def lanes(self) -> int:
        """Threads that share 4 columns of a state."""
        return lanes_of(self.key_dim)

    def scratch_bytes(self, rows: int) -> tuple[int, int]:
        """Return the bytes of each matrix, and of the factors, that chunks of `rows` rows need."""
        chunks = tiles.chunks_of(rows)
        return 4 * chunks * self.heads * CHUNK * CHUNK, 16 * chunks * self.heads * CHUNK

    def check(self, label: str) -> None:
        """Check that the kernels support the sizes.

        Raises:
            FormatError: They do not.
        """
        need_multiple(f"{label}: key width", self.key_dim, 4)
        need_multiple(f"{label}: value width", self.value_dim, 4)
        if self.heads % self.key_heads:
            raise FormatError(
                "the number of value heads does not fit that of key heads",
                where=label,
                expected=f"a multiple of {self.key_heads}",
                found=self.heads,
            )


@dataclass(frozen=True)
class DeltaOperands:
    """The buffers of a gated delta rule.

    Attributes:
        qkv: Queries, keys and values, [rows, inputs].
        decay: [rows, heads].
        strength: [rows, heads].
        rates: f32 [2, heads]: rates, then biases of the decay.
        state: f32 [sequences, heads, key_dim, value_dim].
        y: [rows, outputs]; not the same buffer as the inputs.
    """

    qkv: BufferSlice
    decay: BufferSlice
    strength: BufferSlice
    rates: BufferSlice
    state: BufferSlice
    y: BufferSlice

    def check(self, ctx: OpContext, spec: DeltaSpec, label: str) -> None:
        """Check that the buffers are large enough.

        Raises:
            FormatError: A buffer is too small, or no kernel supports the sizes.
        """
        spec.check(label)
        rows = ctx.max_rows
        ctx.need_values(f"{label}: queries, keys and values", self.qkv, rows * spec.inputs)
        ctx.need_values(f"{label}: decay", self.decay, rows * spec.heads)
        ctx.need_values(f"{label}: strength", self.strength, rows * spec.heads)
        ctx.need_values(f"{label}: output", self.y, rows * spec.outputs)
        need_floats(f"{label}: rates", self.rates, 2 * spec.heads)
        need_floats(f"{label}: state", self.state, spec.outputs * spec.key_dim)


@dataclass(frozen=True, kw_only=True)
class DeltaRuleRecord(RowByRow):
    """Parameters of delta_rule.wgsl.

    Attributes:
        spec: Sizes of the op.
        rows: Token rows of a call.
    """

    shader = "states/delta_rule"

    spec: DeltaSpec
    rows: int


@dataclass(frozen=True, kw_only=True)
class DeltaRuleChunks(Record):
    """Parameters of delta_rule_chunks.wgsl.

    Attributes:
        chunk: Rows of a chunk.
        spec: Sizes of the op.
    """

    shader = "states/delta_rule_chunks"

    chunk: int = choice()
    value: str = choice()
    spec: DeltaSpec


@dataclass(frozen=True, kw_only=True)
class DeltaRuleScan(Record):
    """Parameters of delta_rule_scan.wgsl.

    Attributes:
        chunk: Rows of a chunk.
        columns: Columns of a state for one item.
        key_dim: Elements of a key.
        sizes: Sizes of the op.
    """

    shader = "states/delta_rule_scan"

    chunk: int = choice()
    columns: int = choice()
    key_dim: int = choice()
    value: str = choice()
    sizes: DeltaSizes


def delta_rule(
    ctx: OpContext, operands: DeltaOperands, *, spec: DeltaSpec, single: bool, label: str
) -> list[Phase]:
    """Apply the delta rule row by row, for rows of any sequences.

    Args:
        ctx: Lowering context; its state holds the sequence and slot of each row.
        operands: The buffers.
        spec: Sizes of the op.
        single: Whether no sequence has more than one row in a pass; the rows then run in parallel.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    operands.check(ctx, spec, label)
    rows = 1 if single else ctx.max_rows
    record = DeltaRuleRecord(
        threads=spec.lanes * spec.columns // 4,
        columns=spec.columns,
        lanes=spec.lanes,
        steps=spec.key_dim // spec.lanes,
        value=ctx.values,
        spec=spec,
        rows=rows,
    )
    buffers = {"current": ctx.state.step, **vars(operands)}
    return [Phase(record, buffers, Work(_items(spec), rows), label)]


def delta_rule_in_chunks(
    ctx: OpContext,
    operands: DeltaOperands,
    scratch: tuple[BufferSlice, BufferSlice, BufferSlice],
    *,
    spec: DeltaSpec,
    label: str,
) -> list[Phase]:
    """Apply the delta rule to consecutive rows of one sequence, all of which the state absorbs.

    Args:
        ctx: Lowering context; its state holds the sequence and slot of each row.
        operands: The buffers.
        scratch: Two matrices and the factors, of the sizes of `DeltaSpec.scratch_bytes`; in
            different buffers from the operands.
        spec: Sizes of the op.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    operands.check(ctx, spec, label)
    matrix, factors = spec.scratch_bytes(ctx.max_rows)
    for buffer, size in zip(scratch, (matrix, matrix, factors), strict=True):
        need_floats(f"{label}: scratch", buffer, size // 4)
    held = dict(zip(("solved", "scores", "factors"), scratch, strict=True))
    shared = {"current": ctx.state.step, "qkv": operands.qkv, **held}
    chunks = DeltaRuleChunks(threads=CHUNK_THREADS, chunk=CHUNK, value=ctx.values, spec=spec)
    scan = DeltaRuleScan(
        threads=CHUNK * spec.columns // 4,
        chunk=CHUNK,
        columns=spec.columns,
        key_dim=spec.key_dim,
        value=ctx.values,
        sizes=DeltaSizes(spec.heads, spec.key_heads, spec.key_dim, spec.value_dim),
    )
    gates = {
        "decay": operands.decay,
        "strength": operands.strength,
        "rates": operands.rates,
    }
    ends = {"state": operands.state, "y": operands.y}
    return [
        Phase(chunks, {**shared, **gates}, Work(spec.heads, CHUNK), f"{label}.chunks"),
        Phase(scan, {**shared, **ends}, Work(_items(spec)), label),
    ]


def chunk_refusal(ctx: OpContext, spec: DeltaSpec) -> str | None:
    """Return why the form in chunks cannot run here; None if it can."""
    # The item's columns of a state (a row for each element of a key), and the errors and the writes
    # of the rows of a chunk.
    return tiles.chunk_refusal(ctx, 4 * spec.columns * (spec.key_dim + 2 * CHUNK))


def _items(spec: DeltaSpec) -> int:
    return spec.heads * spec.value_dim // spec.columns
