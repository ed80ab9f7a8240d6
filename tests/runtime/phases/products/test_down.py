"""Tests of gated products that multiply by the down projection too, against the separate ops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.products.added_branch import AddedBranch
from rdrr_runtime.phases.products.down import (
    FEWEST_PAIRS,
    MOST_COLUMN_INPUTS,
    MOST_INPUTS,
    column_pairs,
    has_units_first,
    refusal,
    results_bytes,
)
from rdrr_runtime.phases.products.fusion import Down, Input, Output
from rdrr_runtime.phases.products.matvec import matvec
from rdrr_runtime.phases.products.matvec import refusal as matvec_refusal
from rdrr_runtime.phases.products.matvec_tuning import MatvecTuning
from rdrr_runtime.phases.rows.elementwise import converted
from support.comparison import relative_error
from support.gpu import F32, Bench, normal, on_device
from support.matvec_operands import Matrix, Operands

PAIRS, OUTPUTS = 192, 160
"""Gated pairs, three items; and outputs of the down projection, no multiple of the threads."""


@dataclass
class Block:
    """A feed-forward on the device, and the row that it reads.

    Attributes:
        operands: Makes its operands.
        gated: Matrices of gate and up.
        down: The down projection.
        int8: Whether its products are in int8.
    """

    operands: Operands
    gated: list[Matrix]
    down: Matrix
    int8: bool

    @property
    def bench(self) -> Bench:
        """The device."""
        return self.operands.bench

    def pairs(self, source: Input) -> F32:
        """Return the gated pairs as a phase of their own computes them."""
        y = self.bench.poisoned(PAIRS)
        self._run(source, Output((y,), "gate", activation="silu"))
        return self.bench.download(y, PAIRS)

    def whole(self, source: Input, sums: BufferSlice) -> F32:
        """Run the feed-forward in one phase and return its results, converted from fixed point."""
        down = Down(self.down.weight, sums)
        self._run(source, Output((), "down", activation="silu", down=down))
        return self.converted(sums)

    def converted(self, sums: BufferSlice) -> F32:
        """Return results in fixed point as numbers."""
        outputs = self.down.weight.n
        y, ctx = self.bench.poisoned(outputs), self.bench.context(1)
        self.bench.run(converted(ctx, y, sums, width=outputs, label="c"), 1)
        return self.bench.download(y, outputs)

    def _run(self, source: Input, output: Output) -> None:
        weights = tuple(matrix.weight for matrix in self.gated)
        ctx = self.bench.context(1)
        self.bench.run(matvec(ctx, weights, source, output, int8=self.int8, label="t"), 1)


def block(
    operands: Operands,
    gated: str,
    down: str,
    *,
    int8: bool,
    separate: bool = True,
    outputs: int = OUTPUTS,
) -> Block:
    sizes = [PAIRS, PAIRS] if separate else [2 * PAIRS]
    matrices = [operands.matrix(gated, n, 256) for n in sizes]
    first = replace(operands, units_first=True)
    return Block(operands, matrices, first.matrix(down, outputs, PAIRS), int8)


def zeros(bench: Bench, outputs: int = OUTPUTS) -> BufferSlice:
    """Return memory for two results, where the second is not zero before it is cleared."""
    words = np.zeros((2, results_bytes(outputs) // 4), np.float32)
    words[1] = np.nan
    return bench.upload(words)


RESOLUTION = 2.0**-23
"""What a number of a result in fixed point can differ from its value, for each item."""


def differ(result: F32, wanted: np.ndarray) -> float:
    """Return the relative error of results beyond their resolution."""
    most = np.abs(wanted).max()
    return max(0.0, np.abs(result - wanted).max() - PAIRS / FEWEST_PAIRS * RESOLUTION) / most


def expected(mlp: Block, pairs: F32) -> np.ndarray:
    exact = mlp.down.product(pairs.astype(np.float64))
    return mlp.down.int8_product(pairs) if mlp.int8 else exact


TYPES = (
    ("Q4_K", "Q6_K"),
    ("Q4_K", "Q4_K"),
    ("Q8_0", "Q8_0"),
    ("Q5_1", "Q5_K"),
    ("Q6_K", "MXFP4"),
)


@pytest.mark.parametrize("threads", [(64, 8), (128, 8), (64, 4)], ids=str)
@pytest.mark.parametrize(
    ("types", "int8"),
    [
        *((types, True) for types in TYPES),
        (("Q4_K", "Q6_K"), False),
        (("F16", "F16"), False),
        (("F32", "F32"), False),
        (("BF16", "F16"), False),
    ],
    ids=str,
)
def test_one_phase_equals_gate_and_down_projection(
    any_bench: Bench,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    types: tuple[str, str],
    threads: tuple[int, int],
    int8: bool,
) -> None:
    """The threads make tiles of 16 or 32 pairs."""
    tuning = MatvecTuning(*threads)
    for module in ("matvec_tuning", "matvec_columns"):
        monkeypatch.setattr(
            f"rdrr_runtime.phases.products.{module}.default_tuning", lambda *_: tuning
        )
    mlp = block(Operands(any_bench, rng), *types, int8=int8, separate=threads != (64, 4))
    source = mlp.operands.source("norm", 256, mlp.gated).operand
    pairs, sums = mlp.pairs(source), zeros(any_bench)
    result = mlp.whole(source, sums)
    assert differ(result, expected(mlp, pairs)) < 1e-4
    if int8:
        assert relative_error(result, mlp.down.product(pairs.astype(np.float64))) > 1e-5


COLUMN_CASES = (
    *((types, 32) for types in (*TYPES, ("Q4_0", "Q5_0"), ("MXFP4", "Q5_1"))),
    *((types, pairs) for types in TYPES[:3] for pairs in (16, 64)),
)
"""Types of gate and up and of down, and the pairs of an item."""


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
@pytest.mark.parametrize(("types", "pairs"), COLUMN_CASES, ids=str)
def test_column_major_matrices_in_one_phase_equal_gate_and_down_projection(
    any_bench: Bench,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    types: tuple[str, str],
    pairs: int,
    int8: bool,
) -> None:
    """Gate and up are one matrix where items have 16 pairs, and two otherwise."""
    monkeypatch.setattr("rdrr_runtime.phases.products.down.COLUMN_PAIRS", (pairs,))
    columns = Operands(any_bench, rng, Layout.COLUMN)
    mlp = block(columns, *types, int8=int8, separate=pairs > 16)
    weights = tuple(matrix.weight for matrix in mlp.gated)
    ctx, down = any_bench.context(1), mlp.down.weight
    assert matvec_refusal(ctx, weights, int8=int8, gate=True, down=down) is None
    source = mlp.operands.source("norm", 256, mlp.gated).operand
    gated, sums = mlp.pairs(source), zeros(any_bench)
    result = mlp.whole(source, sums)
    assert differ(result, expected(mlp, gated)) < 1e-4
    if int8:
        assert relative_error(result, mlp.down.product(gated.astype(np.float64))) > 1e-5


@pytest.mark.parametrize("outputs", [36, 1284, 2100])
@pytest.mark.parametrize("down", ["Q4_K", "Q6_K"])
def test_groups_of_column_major_outputs_need_not_be_whole(
    bench: Bench,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    down: str,
    outputs: int,
) -> None:
    """More groups are staged than threads of the workgroup stage at once, or fewer."""
    monkeypatch.setattr("rdrr_runtime.phases.products.down.COLUMN_PAIRS", (32,))
    columns = Operands(bench, rng, Layout.COLUMN)
    mlp = block(columns, "Q4_K", down, int8=True, outputs=outputs)
    source = mlp.operands.source("norm", 256, mlp.gated).operand
    pairs, sums = mlp.pairs(source), zeros(bench, outputs)
    result = mlp.whole(source, sums)
    assert differ(result, expected(mlp, pairs)) < 1e-4


def test_results_are_added_to_those_before_and_the_next_memory_is_cleared(
    bench: Bench, rng: np.random.Generator
) -> None:
    mlp = block(Operands(bench, rng), "Q4_K", "Q6_K", int8=True)
    source, sums = mlp.operands.source("plain", 256, mlp.gated).operand, zeros(bench)
    once = mlp.whole(source, sums)
    half = sums.size // 2
    assert not bench.download(sums.range(half, half), half // 4).any()
    twice = mlp.whole(source, sums)
    assert relative_error(twice, 2 * once.astype(np.float64)) < 1e-6
    again = mlp.whole(source, zeros(bench))
    assert np.array_equal(again, once)  # whatever the order of the additions


@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e5, 1e7, 1e20])
def test_results_of_any_magnitude_are_exact(
    bench: Bench, rng: np.random.Generator, magnitude: float
) -> None:
    mlp = block(Operands(bench, rng), "F32", "F32", int8=False)
    source = mlp.operands.source("plain", 256, mlp.gated).operand
    pairs = mlp.pairs(source)
    scale = np.float32(magnitude / np.abs(expected(mlp, pairs)).max())
    values = (mlp.down.values * scale).astype(np.float32)
    mlp.down = mlp.operands.uploaded("F32", values)
    result = mlp.whole(source, zeros(bench))
    assert differ(result, expected(mlp, pairs)) < 1e-6


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_the_results_of_a_broken_input_are_not_finite(
    bench: Bench, rng: np.random.Generator, broken: float
) -> None:
    mlp = block(Operands(bench, rng), "F32", "F32", int8=False)
    x = normal(rng, 256)
    assert np.isfinite(mlp.whole(Input(bench.upload(x)), zeros(bench))).all()
    x[rng.integers(256)] = broken
    assert not np.isfinite(mlp.whole(Input(bench.upload(x)), zeros(bench))).any()


@pytest.mark.parametrize("has_norm", [False, True], ids=["no norm", "norm"])
@pytest.mark.parametrize("magnitude", [1.0, 1e9])
@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN], ids=str)
def test_the_next_product_adds_results_in_fixed_point_to_the_stream(
    any_bench: Bench, rng: np.random.Generator, layout: Layout, magnitude: float, has_norm: bool
) -> None:
    mlp = block(Operands(any_bench, rng), "F32", "F32", int8=False)
    sums = zeros(any_bench)
    mlp.down = mlp.operands.uploaded("F32", magnitude * mlp.down.values.astype(np.float32))
    branch = mlp.whole(mlp.operands.source("plain", 256, mlp.gated).operand, sums)
    after = Operands(any_bench, rng, layout)
    matrices = [after.matrix("Q8_0", 64, OUTPUTS)]
    row = after.source("norm" if has_norm else "plain", OUTPUTS, matrices)
    x = any_bench.download(row.operand.x, OUTPUTS)
    stream, y = any_bench.poisoned(OUTPUTS), any_bench.poisoned(64)
    added = AddedBranch(sums.range(0, sums.size // 2), stream=stream, fixed=True)
    source = Input(row.operand.x, row.operand.before, added=added)
    weights, ctx = (matrices[0].weight,), any_bench.context(1)
    any_bench.run(matvec(ctx, weights, source, Output((y,)), int8=False, label="t"), 1)
    summed = any_bench.download(stream, OUTPUTS)
    assert relative_error(summed, x.astype(np.float64) + branch) < 1e-6
    alone = any_bench.poisoned(64)
    plain = Input(stream, row.operand.before)
    any_bench.run(matvec(ctx, weights, plain, Output((alone,)), int8=False, label="t"), 1)
    assert relative_error(any_bench.download(y, 64), any_bench.download(alone, 64)) < 1e-6


def test_a_refusal_gives_the_reason(bench: Bench, rng: np.random.Generator) -> None:
    rows, columns = Operands(bench, rng), Operands(bench, rng, Layout.COLUMN)
    first = replace(rows, units_first=True)
    gated = (rows.matrix("Q4_K", 64, 256).weight,)

    def refused(down: Matrix) -> str:
        return refusal(gated, down.weight) or "not refused"

    assert refused(first.matrix("Q6_K", 64, 256)) == "not refused"
    assert "row by row" in refused(rows.matrix("Q6_K", 64, 256))
    assert "only some of its matrices are column" in refused(columns.matrix("Q4_K", 64, 64))
    assert "96 inputs" in refused(first.matrix("Q8_0", 64, 96))
    assert "only some of its matrices are quantized" in refused(rows.matrix("F16", 64, 64))


def test_column_major_matrices_keep_two_phases_where_workgroup_memory_is_small(
    bench: Bench, rng: np.random.Generator
) -> None:
    mlp = block(Operands(bench, rng, Layout.COLUMN), "Q4_K", "Q6_K", int8=True)
    weights, ctx = tuple(matrix.weight for matrix in mlp.gated), bench.context(1)

    def refused(ctx: OpContext) -> str | None:
        return matvec_refusal(ctx, weights, int8=True, gate=True, down=mlp.down.weight)

    assert refused(ctx) is None
    assert "workgroup memory" in str(refused(on_device(ctx, workgroup_storage=16384)))


@pytest.mark.parametrize(
    ("inputs", "pairs"), [(8192, 64), (6144, 64), (6080, 32), (3072, 32), (2048, 16), (64, 16)]
)
def test_items_of_column_major_matrices_have_many_pairs_if_there_are_enough_items(
    inputs: int, pairs: int
) -> None:
    assert column_pairs(inputs) == pairs


def test_down_projections_have_their_units_first_up_to_a_size() -> None:
    for column, most in ((True, MOST_COLUMN_INPUTS), (False, MOST_INPUTS)):
        assert has_units_first(most, column=column)
        assert not has_units_first(most + 64, column=column)
