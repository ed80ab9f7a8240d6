"""What the tests of kernels with a state for each head share: operands, orders of rows, and checks.

Such a kernel reads rows of any sequences, or consecutive rows of one sequence in chunks, and leaves
the state of each sequence after its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.states.delta_rule import DeltaSpec
from rdrr_runtime.phases.states.tiles import CHUNK
from rdrr_runtime.records import pack_step
from rdrr_runtime.reference import recurrence
from support.comparison import relative_error
from support.gpu import F32, TOLERANCE, Bench

F64 = npt.NDArray[np.float64]

SEQUENCES = 4
"""Sequences of the tests with several."""

SEVERAL_ROWS = ([2, 2, 2, 0, 3, 3], [5, 6, 7, 0, 0, 1])
"""Sequences and slots of rows where a sequence has several."""

SINGLE_ROWS = ([2, 0, 3], [5, 0, 9])
"""Sequences and slots of rows of different sequences."""

CHUNKED_ROWS = (1, CHUNK - 1, CHUNK, 2 * CHUNK + 10)
"""Numbers of rows to test in chunks, of at most `MOST_ROWS`."""

MOST_ROWS = 3 * CHUNK


class StateOperands(ABC):
    """Random operands of an op whose heads have a state.

    Attributes:
        by_row: Names of the inputs with one row for each token, in the order of the operands.
        kind: The class of the operands: the inputs by row, rates, state and output.
        spec: The sizes of the op.
        outputs: Elements of a row of the output.
        rates: Constants of the heads.
        state: The state of each sequence, [sequences, heads, rows, columns].
    """

    by_row: ClassVar[tuple[str, ...]]
    kind: ClassVar[Callable[..., Any]]
    spec: Any
    outputs: int
    rates: F32
    state: F32

    @property
    def rows(self) -> int:
        """Token rows."""
        return len(getattr(self, self.by_row[0]))

    @abstractmethod
    def expected(self, rows: slice, sequence: int, slot: int) -> tuple[F64, F64]:
        """Return the output of some rows of a sequence, and its state after them, in float64.

        Args:
            rows: The rows.
            sequence: Their sequence.
            slot: Slot of the first row; at slot 0 the sequence has no state yet.
        """

    def upload(self, bench: Bench, most: int | None = None) -> Any:
        """Upload the operands of a pass of `most` rows, the last of which are zeros."""
        most = most or self.rows
        inputs = (
            np.pad(getattr(self, name), ((0, most - self.rows), (0, 0))) for name in self.by_row
        )
        y = bench.poisoned(most, self.outputs)
        return self.kind(*map(bench.upload, (*inputs, self.rates, self.state)), y)

    def downloaded(self, bench: Bench, operands: Any) -> tuple[F32, F32]:
        """Return the output and the states after a run."""
        y = bench.download(operands.y, self.rows, self.outputs)
        return y, bench.download(operands.state, *self.state.shape)


Kernel = Callable[..., Sequence[Phase]]


def double(array: npt.ArrayLike) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float64))


def runs(sequences: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield each sequence with the slice of its rows."""
    start = 0
    for sequence, group in groupby(sequences):
        count = len(list(group))
        yield sequence, slice(start, start + count)
        start += count


def delta_outputs(
    spec: DeltaSpec,
    qkv: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    rates: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """Return what torch computes for the delta rule, [rows, heads, value_dim]; update the state.

    Args:
        spec: The sizes.
        qkv: Queries, keys and values, [rows, inputs].
        gates: Decays without their bias, and write strengths, [rows, heads] each.
        rates: Rates and biases of the decay, [2, heads].
        state: The state before the rows, [heads, key_dim, value_dim].
    """
    keys = spec.key_heads * spec.key_dim
    q, k, v = qkv.split((keys, keys, spec.outputs), dim=1)
    shared = spec.heads // spec.key_heads
    q, k = (
        recurrence.unit(array.unflatten(1, (spec.key_heads, -1)), spec.eps).repeat_interleave(
            shared, dim=1
        )
        for array in (q, k)
    )
    decay, strength = gates
    log_decay = -torch.exp(rates[0]) * torch.nn.functional.softplus(decay + rates[1])
    v = v.unflatten(1, (spec.heads, -1))
    return recurrence.delta_rule(q, k, v, log_decay, torch.sigmoid(strength), state)


def check_row_by_row(
    bench: Bench, case: StateOperands, kernel: Kernel, *, base: int, wanted: int
) -> None:
    """Check consecutive rows of one sequence, of which the state absorbs only those that are kept.

    Args:
        bench: The device.
        case: The operands.
        kernel: The op's function.
        base: Slot of the first row.
        wanted: Rows with logits, all of which but the first may be draft tokens.
    """
    rows = case.rows
    operands, ctx = case.upload(bench), bench.context(rows)
    packed = pack_step([0] * rows, range(base, base + rows), last_n=wanted)
    bench.device.write(ctx.state.step, packed)
    bench.run(kernel(ctx, operands, spec=case.spec, single=False, label="t"), rows)
    y, state = case.downloaded(bench, operands)
    assert relative_error(y, case.expected(slice(0, rows), 0, base)[0]) < TOLERANCE
    kept = case.expected(slice(0, rows - wanted + 1), 0, base)[1]
    assert relative_error(state[0], kept) < TOLERANCE


def check_sequences_apart(bench: Bench, case: StateOperands, kernel: Kernel, single: bool) -> None:
    """Check rows of several sequences: each reads and leaves its own state, and no other's.

    Args:
        bench: The device.
        case: Operands of `SINGLE_ROWS` or `SEVERAL_ROWS`, with the states of `SEQUENCES`.
        kernel: The op's function.
        single: Whether the rows are `SINGLE_ROWS`.
    """
    sequences, slots = SINGLE_ROWS if single else SEVERAL_ROWS
    operands = case.upload(bench)
    ctx = bench.context(case.rows, slots=slots, sequences=sequences)
    bench.run(kernel(ctx, operands, spec=case.spec, single=single, label="t"), case.rows)
    y, state = case.downloaded(bench, operands)
    for sequence, part in runs(sequences):
        expected, after = case.expected(part, sequence, slots[part.start])
        assert relative_error(y[part], expected) < TOLERANCE
        assert relative_error(state[sequence], after) < TOLERANCE
    for untouched in set(range(SEQUENCES)) - set(sequences):
        assert np.array_equal(state[untouched], case.state[untouched])


def check_chunks(
    bench: Bench,
    case: StateOperands,
    kernel: Callable[[OpContext, Any], Sequence[Phase]],
    *,
    base: int,
) -> None:
    """Check consecutive rows of one sequence in chunks, in a pass with room for `MOST_ROWS`.

    Args:
        bench: The device.
        case: The operands.
        kernel: Returns the phases for a context and uploaded operands.
        base: Slot of the first row.
    """
    rows = case.rows
    ctx, operands = (
        bench.context(rows, base=base, max_rows=MOST_ROWS),
        case.upload(bench, MOST_ROWS),
    )
    bench.run(kernel(ctx, operands), rows)
    y, state = case.downloaded(bench, operands)
    expected, after = case.expected(slice(0, rows), 0, base)
    assert relative_error(y, expected) < TOLERANCE
    assert relative_error(state[0], after) < TOLERANCE


def check_nan_stays_visible(
    bench: Bench,
    case: StateOperands,
    kernel: Callable[[OpContext, Any], Sequence[Phase]],
    *,
    name: str,
) -> None:
    """Check that NaN in one head makes NaN of its outputs and state, and of nothing else.

    Args:
        bench: The device.
        case: Operands of one sequence.
        kernel: Returns the phases for a context and uploaded operands.
        name: The operand that is NaN: an input by row, from the middle row on, or `rates`, for
            all rows.
    """
    rows, head = case.rows, 1
    broken = getattr(case, name)
    row = rows // 2 if name in case.by_row else 0
    broken[row if name in case.by_row else 0, head] = np.nan
    ctx, operands = bench.context(rows, max_rows=MOST_ROWS), case.upload(bench, MOST_ROWS)
    bench.run(kernel(ctx, operands), rows)
    y, state = case.downloaded(bench, operands)
    is_nan = np.isnan(y.reshape(rows, case.state.shape[1], -1))
    assert is_nan[row:, head].all()
    assert is_nan.sum() == is_nan[row:, head].size
    assert np.isnan(state[0]).any(axis=(1, 2)).tolist() == [
        id_ == head for id_ in range(len(state[0]))
    ]
