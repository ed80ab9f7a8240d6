"""How kernels with a state for each head divide the state and the rows of a pass.

A state is a matrix, one row for each element of a key and one column for each element of a value.
An item of a kernel has some of its columns; its threads share vectors of 4 columns, and each holds
some rows of them. The forms in chunks compute the rows of a chunk in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Record, choice

CHUNK = 32
"""Token rows of a chunk."""

CHUNK_THREADS = 256
"""Threads of a workgroup that prepares chunks."""

LANES = (32, 16, 8, 4)
"""Numbers of threads that may share a vector of columns."""

COLUMNS = (16, 8, 4)
"""Numbers of columns that an item may have."""


@dataclass(frozen=True, kw_only=True)
class RowByRow(Record):
    """Parameters that the shaders share whose threads hold rows of a state in registers.

    Attributes:
        columns: Columns of a state for one item.
        lanes: Threads that share 4 columns.
        steps: Rows of the state that a thread holds.
    """

    columns: int = choice()
    lanes: int = choice()
    steps: int = choice()
    value: str = choice()


def lanes_of(rows: int) -> int:
    """Return the threads that share 4 columns of a state with `rows` rows, a multiple of 4."""
    return next(lanes for lanes in LANES if rows % lanes == 0)


def columns_of(width: int) -> tuple[int, ...]:
    """Return the columns that an item may have of a state with `width`, the best first."""
    return tuple(columns for columns in COLUMNS if width % columns == 0)


def chunk_refusal(ctx: OpContext, needed: int) -> str | None:
    """Return why a form in chunks, with `needed` bytes of workgroup memory, cannot run here."""
    if needed > ctx.workgroup_storage:
        return f"the form in chunks needs {needed} bytes of workgroup memory"
    if ctx.max_threads < CHUNK_THREADS:
        return f"the form in chunks needs workgroups of {CHUNK_THREADS} threads"
    return None


def chunks_of(rows: int) -> int:
    """Return the chunks of a pass with some token rows."""
    return -(-rows // CHUNK)
