"""Tests of the fused products of decode against the separate ops in float64."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.products.fusion import Input, Output
from rdrr_runtime.phases.products.matvec import MAX_OUTPUT_GROUPS, matvec, refusal
from rdrr_runtime.phases.products.matvec_columns import ColumnShape, column_division, held_quads
from rdrr_runtime.phases.products.matvec_record import Matvec
from rdrr_runtime.phases.products.matvec_tuning import (
    MANY_COMBINING,
    SOFTWARE,
    SUMMERS,
    MatvecTuning,
    held_vectors,
    row_division,
)
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight
from support.comparison import relative_error
from support.gpu import UNITS_FIRST, Bench, normal, on_device
from support.matvec_operands import Matrix, Operands, silu

TYPES = tuple(FORMATS)
INT8_TYPES = tuple(name for name, form in FORMATS.items() if not form.values)
SIMILAR_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q5_K")
"""Types that differ from other types only in their codes and factors."""


@dataclass(frozen=True)
class Case:
    """The shape and the fused ops of a product.

    Attributes:
        output: Fused output op, see `Output.kind`.
        source: Fused input op, see `Input.kind`.
        k: Inputs.
        n: Outputs; for column-major gates, rounded up to whole groups of 32.
        separate: Whether gate and up are matrices of their own.
    """

    output: str
    source: str
    k: int
    n: int
    separate: bool = False

    def __str__(self) -> str:
        matrices = " of two" if self.separate else ""
        return f"{self.output}{matrices} {self.source} {self.n}x{self.k}"


CASES = (
    (
        Case("store", "plain", 256, 6),
        Case("add", "norm", 384, 78),
        Case("gate", "combine", 256, 70),
        Case("best", "plain", 384, 34),
    ),
    (
        Case("store", "norm", 384, 66),
        Case("add", "combine", 256, 34),
        Case("gate", "plain", 384, 22, separate=True),
        Case("best", "norm", 576, 6),
    ),
    (
        Case("store", "combine", 576, 46),
        Case("add", "plain", 576, 14),
        Case("gate", "norm", 576, 300),
        Case("gate", "norm", 256, 300, separate=True),
        Case("best", "combine", 384, 50),
    ),
)
"""All pairs of output and source, in three groups that each contain all outputs and all sources."""

ALL_CASES = tuple(case for group in CASES for case in group)


def distributed(names: tuple[str, ...]) -> list[tuple[str, Case]]:
    """Assign a group of cases to each type in turn, and a single case to each similar type."""
    stores = [case for case in ALL_CASES if case.output == "store"]
    different = [name for name in names if name not in SIMILAR_TYPES]
    return [
        *((name, case) for turn, name in enumerate(different) for case in CASES[turn % 3]),
        *((name, stores[turn % 3]) for turn, name in enumerate(SIMILAR_TYPES)),
    ]


@dataclass(frozen=True)
class Errors:
    """Largest relative errors of a product.

    Attributes:
        computed: Error against the product with the staged input, which is int8 or f32.
        rounding: Error against the product with the input before it is staged.
    """

    computed: float
    rounding: float


def launch_errors(
    operands: Operands, name: str, case: Case, *, int8: bool, grid: Grid | None = None
) -> Errors:
    """Run one product with random operands and compare its result with the reference."""
    bench, rng, output = operands.bench, operands.rng, case.output
    ctx, matrices = replace(bench.context(1), grid=grid), _matrices(operands, name, case)
    weights = tuple(matrix.weight for matrix in matrices)
    source = operands.source(case.source, case.k, matrices)
    exact = source.products(matrices, int8=False)
    scale = np.float32(np.abs(exact).max())
    before, bias = scale * normal(rng, len(exact)), scale * normal(rng, len(exact))

    def expected(products: np.ndarray) -> np.ndarray:
        gate, up = products[: len(products) // 2], products[len(products) // 2 :]
        return {
            "store": products + bias,
            "add": products + before,
            "gate": silu(gate) * up,
            "best": products,
        }[output]

    partials, gated = source.operand.partials(case.k), output == "gate"
    assert refusal(ctx, weights, int8=int8, partials=partials, gate=gated) is None
    y = bench.upload(before if output == "add" else np.full(len(exact), np.nan, np.float32))
    best = bench.poisoned(2 * MAX_OUTPUT_GROUPS) if output == "best" else None
    added = bench.upload(bias) if output == "store" else None
    target = Output((y,), output, bias=added, activation="silu", best=best)
    launches = matvec(ctx, weights, source.operand, target, int8=int8, label="case")
    bench.run(launches, 1)
    result = bench.download(y, len(expected(exact)))
    if best is not None:
        _require_best(bench, best, launches[0].work.items, result)
    staged = source.products(matrices, int8=int8)
    return Errors(relative_error(result, expected(staged)), relative_error(result, expected(exact)))


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("source", ["gated", "gated combine"])
@pytest.mark.parametrize("output", ["add", "best"])
@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
def test_the_inputs_of_a_product_may_have_gates(
    any_bench: Bench,
    rng: np.random.Generator,
    layout: Layout,
    output: str,
    source: str,
    int8: bool,
) -> None:
    check(Operands(any_bench, rng, layout), "Q4_K", Case(output, source, 384, 34), int8=int8)


ENOUGH_COMBINING = (MANY_COMBINING + 1) * (SOFTWARE.workgroup // SOFTWARE.team)
"""Fewest outputs of which a team on a software adapter computes two at a time."""


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ((ENOUGH_COMBINING + 58,), 2),
        ((ENOUGH_COMBINING - 601, 667), 2),
        ((ENOUGH_COMBINING + 59,), 1),
        ((ENOUGH_COMBINING - 2,), 1),
    ],
)
def test_teams_compute_two_outputs_where_many_workgroups_would_combine_splits(
    any_bench: Bench, rng: np.random.Generator, sizes: tuple[int, ...], together: int, int8: bool
) -> None:
    operands, n = Operands(any_bench, rng), sum(sizes)
    matrices, before = [operands.matrix("Q4_K", size, 256) for size in sizes], normal(rng, n)
    source, y = operands.source("combine", 256, matrices), any_bench.upload(before)
    weights, output = tuple(matrix.weight for matrix in matrices), Output((y,), "add")
    ctx = on_device(any_bench.context(1), software=True)
    launches = matvec(ctx, weights, source.operand, output, int8=int8, label="t")
    record = launches[0].record
    assert isinstance(record, Matvec)
    assert record.per_team == together
    any_bench.run(launches, 1)
    expected = before + source.products(matrices, int8=int8)
    assert relative_error(any_bench.download(y, n), expected) < 1e-4


@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
def test_a_layer_norm_precedes_a_product(
    any_bench: Bench, rng: np.random.Generator, layout: Layout, int8: bool
) -> None:
    case = Case("add", "layer norm", 384, 34)
    check(Operands(any_bench, rng, layout), "Q4_K", case, int8=int8)


@pytest.mark.parametrize("values", ["F32", "F16", "BF16"])
def test_unquantized_matrices_beside_int8_products_read_the_unrounded_input(
    any_bench: Bench, rng: np.random.Generator, values: str
) -> None:
    """The inputs are no multiple of the 64 that quantized rows are padded to."""
    operands, k = Operands(any_bench, rng), 416
    sizes = (("Q8_0", 70), (values, 6), ("Q5_0", 12), (values, 9))
    matrices = [operands.matrix(name, n, k) for name, n in sizes]
    source = operands.source(
        "norm", k, [matrix for matrix in matrices if not matrix.weight.form.values]
    )
    weights = tuple(matrix.weight for matrix in matrices)
    ctx = any_bench.context(1)
    assert refusal(ctx, weights, int8=True) is None
    y = any_bench.poisoned(97)
    any_bench.run(matvec(ctx, weights, source.operand, Output((y,)), int8=True, label="t"), 1)
    outputs = np.split(any_bench.download(y, 97), np.cumsum([n for _, n in sizes])[:-1])
    for part, matrix, (name, _) in zip(outputs, matrices, sizes, strict=True):
        expected = source.products([matrix], int8=name != values)
        assert relative_error(part, expected) < 1e-4, name
        if name != values:
            assert relative_error(part, source.products([matrix], int8=False)) > 1e-5


def _require_best(bench: Bench, best: BufferSlice, groups: int, logits: np.ndarray) -> None:
    values = bench.download(best, groups, 2)[:, 0]
    ids = bench.words(best)[1 : 2 * groups : 2]
    assert ids[int(np.argmax(values))] == int(np.argmax(logits))


def _matrices(operands: Operands, name: str, case: Case) -> list[Matrix]:
    n, k = case.n, case.k
    if case.output == "store":
        sizes = ((name, n), ("Q6_K", n), (name, 10))
        return [operands.matrix(size, rows, k) for size, rows in sizes]
    if case.output != "gate":
        return [operands.matrix(name, n, k)]
    if operands.layout is Layout.COLUMN:
        n = -(-n // 32) * 32
    return [operands.matrix(name, rows, k) for rows in ([n, n] if case.separate else [2 * n])]


def check(
    operands: Operands, name: str, case: Case, *, int8: bool, grid: Grid | None = None
) -> None:
    """Check that a product is as exact as f32, and that an int8 product has rounded its input.

    The error due to rounding depends on the values: the relative error of a gate can be several
    times that of its products. So the bound applies to a reference with the same rounded input.
    """
    errors = launch_errors(operands, name, case, int8=int8, grid=grid)
    assert errors.computed < 1e-4
    if int8:
        assert errors.rounding > 1e-5  # above the rounding of f32, so int8 was really used


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(("name", "layout"), UNITS_FIRST)
def test_matrices_with_the_units_first_give_the_same_products(
    bench: Bench, rng: np.random.Generator, name: str, layout: Layout, int8: bool
) -> None:
    operands = Operands(bench, rng, layout, units_first=True)
    check(operands, name, Case("store", "plain", 384, 66), int8=int8)


def test_matrices_in_both_orders_share_a_launch(bench: Bench, rng: np.random.Generator) -> None:
    operands = Operands(bench, rng)
    matrices = [
        replace(operands, units_first=first).matrix("Q4_K", n, 384)
        for first, n in ((True, 30), (False, 21), (True, 7))
    ]
    source, y = operands.source("plain", 384, matrices), bench.poisoned(58)
    weights = tuple(matrix.weight for matrix in matrices)
    phases = matvec(
        bench.context(1), weights, source.operand, Output((y,), "store"), int8=True, label="t"
    )
    bench.run(phases, 1)
    expected = source.products(matrices, int8=True)
    assert relative_error(bench.download(y, 58), expected) < 1e-4


@pytest.mark.parametrize(("name", "case"), distributed(TYPES), ids=str)
def test_a_product_equals_the_reference(
    bench: Bench, rng: np.random.Generator, name: str, case: Case
) -> None:
    check(Operands(bench, rng), name, case, int8=False)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (TYPES[turn % len(TYPES)], ALL_CASES[turn % len(ALL_CASES)])
        for turn in range(2 * len(TYPES))
    ],
    ids=str,
)
def test_a_product_without_optional_features_equals_the_reference(
    plain_bench: Bench, rng: np.random.Generator, name: str, case: Case
) -> None:
    check(Operands(plain_bench, rng), name, case, int8=False)


@pytest.mark.parametrize(("name", "case"), distributed(INT8_TYPES), ids=str)
def test_an_int8_product_equals_the_reference_with_the_rounded_input(
    any_bench: Bench, rng: np.random.Generator, name: str, case: Case
) -> None:
    check(Operands(any_bench, rng), name, case, int8=True)


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("names", [("Q5_1", "Q4_K", "Q5_0"), ("Q4_0", "Q5_K", "Q8_0")], ids=str)
def test_matrices_of_different_types_share_a_launch(
    bench: Bench, rng: np.random.Generator, names: tuple[str, ...], int8: bool
) -> None:
    operands, k = Operands(bench, rng), 384
    matrices = [operands.matrix(name, 12 + index, k) for index, name in enumerate(names)]
    source, weights = (
        operands.source("plain", k, matrices),
        tuple(matrix.weight for matrix in matrices),
    )
    expected, exact = (source.products(matrices, int8=rounded) for rounded in (int8, False))
    y = bench.poisoned(len(expected))
    launches = matvec(bench.context(1), weights, source.operand, Output((y,)), int8=int8, label="t")
    bench.run(launches, 1)
    result = bench.download(y, len(expected))
    assert relative_error(result, expected) < 1e-4
    if int8:
        assert relative_error(result, exact) > 1e-5


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(("name", "case"), distributed(("Q4_K", "Q6_K", "Q8_0")), ids=str)
def test_column_major_products_equal_the_reference(
    any_bench: Bench, rng: np.random.Generator, name: str, case: Case, int8: bool
) -> None:
    check(Operands(any_bench, rng, Layout.COLUMN), name, case, int8=int8)


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(("name", "case"), distributed(("Q4_K", "Q6_K", "Q8_0")), ids=str)
def test_products_on_a_grid_equal_the_reference(
    any_bench: Bench, rng: np.random.Generator, name: str, case: Case, int8: bool
) -> None:
    check(Operands(any_bench, rng, Layout.ROW), name, case, int8=int8, grid=Grid(256, 2))


@pytest.mark.parametrize(
    ("case", "held", "whole"),
    [
        (Case("store", "norm", 192, 14), 1, True),
        (Case("store", "norm", 448, 14), 2, True),
        (Case("add", "plain", 960, 14), 4, True),
        (Case("best", "norm", 1344, 14), 4, False),  # two rounds, the second is not whole
        (Case("store", "combine", 960, 14), 1, False),  # the control: it is not read alone
    ],
    ids=str,
)
def test_threads_of_a_grid_load_the_vectors_of_the_input_that_they_stage_together(
    any_bench: Bench, rng: np.random.Generator, case: Case, held: int, whole: bool
) -> None:
    operands, grid = Operands(any_bench, rng, Layout.ROW), Grid(64, 2)
    for name in ("Q4_K", "Q8_0"):
        check(operands, name, case, int8=True, grid=grid)
    source = operands.source(case.source, case.k, [operands.matrix("Q4_K", 14, case.k)]).operand
    ctx = any_bench.context(1)
    assert held_vectors(replace(ctx, grid=grid), source, case.k, 64) == (held, whole)
    assert held_vectors(ctx, source, case.k, 64)[0] == 1


@pytest.mark.parametrize(
    ("name", "case", "team", "int8"),
    [
        ("Q4_K", Case("add", "plain", 2304, 14), 36, True),  # 7 teams of 36 have 252 of 256 threads
        ("Q6_K", Case("store", "norm", 2304, 14), 36, True),
        ("Q8_0", Case("best", "combine", 2304, 14), 36, True),
        ("Q4_K", Case("best", "combine", 2304, 14), 36, False),
        ("Q8_0", Case("store", "norm", 2304, 14), 36, False),
        ("Q6_K", Case("add", "norm", 6208, 6), 56, True),  # two trips, the second is not whole
        ("F16", Case("add", "norm", 576, 6), 72, False),
    ],
    ids=str,
)
def test_teams_across_subgroups_give_the_same_sums(
    any_bench: Bench, rng: np.random.Generator, name: str, case: Case, team: int, int8: bool
) -> None:
    operands, grid = Operands(any_bench, rng, Layout.ROW), Grid(256, 2)
    units = FORMATS[name].units(case.k)
    ctx, output = replace(any_bench.context(1), grid=grid), Output((), case.output)
    division = row_division(ctx, MatvecTuning(256), case.n, units, output=output)
    assert (division.team, division.spread) == (team, case.n // 2)
    check(operands, name, case, int8=int8, grid=grid)


def test_the_sums_of_every_team_across_subgroups_are_added_up(bench: Bench) -> None:
    spread = 0
    for threads, team in product((64, 256, 512), (4, 8, 32)):
        ctx = replace(bench.context(1), grid=Grid(threads, 5))
        for outputs, units in product(range(1, 400, 3), range(1, 130, 3)):
            tuning = MatvecTuning(threads, team)
            division = row_division(ctx, tuning, outputs, units, output=Output(()))
            assert division.spread * max(SUMMERS, division.team) <= threads
            spread += division.spread > 0
            crossed = row_division(ctx, tuning, outputs, units, output=Output(()), units_first=True)
            assert crossed.crossed
            assert crossed.spread * max(SUMMERS, crossed.team) <= threads
    assert spread > 1000


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(
    ("name", "layout", "case", "team"),
    [
        ("Q4_K", Layout.ROW, Case("add", "plain", 2304, 14), 36),
        ("Q6_K", Layout.ROW, Case("best", "norm", 1216, 34), 10),  # two trips
        ("Q8_0", Layout.ROW, Case("add", "norm", 448, 200), 7),  # several tiles, and a small team
        ("Q4_K", Layout.COLUMN, Case("add", "norm", 576, 50), 5),
        ("Q6_K", Layout.COLUMN, Case("best", "plain", 512, 14), 8),
    ],
    ids=str,
)
def test_teams_lie_across_each_other_where_the_units_of_a_matrix_lie_first(
    any_bench: Bench,
    rng: np.random.Generator,
    name: str,
    layout: Layout,
    case: Case,
    team: int,
    int8: bool,
) -> None:
    operands, grid = Operands(any_bench, rng, layout, units_first=True), Grid(256, 2)
    check(operands, name, case, int8=int8, grid=grid)

    def record(first: bool, grid: Grid | None) -> Matvec:
        matrix = replace(operands, units_first=first).matrix(name, case.n, case.k)
        source, y = operands.source(case.source, case.k, [matrix]), any_bench.poisoned(case.n)
        best = any_bench.poisoned(2 * MAX_OUTPUT_GROUPS) if case.output == "best" else None
        ctx, output = replace(any_bench.context(1), grid=grid), Output((y,), case.output, best=best)
        phases = matvec(ctx, (matrix.weight,), source.operand, output, int8=int8, label="t")
        assert isinstance(phases[0].record, Matvec)
        return phases[0].record

    assert (record(True, grid).crossed, record(True, grid).t) == (True, team)
    assert not record(False, grid).crossed
    assert not record(True, None).crossed  # the control: only on a grid


@pytest.mark.parametrize(("name", "int8", "vectors"), [("Q4_K", True, 4), ("Q6_K", False, 16)])
def test_neighbouring_threads_read_staged_vectors_from_different_banks(
    bench: Bench, rng: np.random.Generator, name: str, int8: bool, vectors: int
) -> None:
    """A vector has a place of its own, and 8 threads at a time read all banks."""
    operands = Operands(bench, rng)
    matrix, y = operands.matrix(name, 8, 2048), bench.poisoned(8)
    source = operands.source("plain", 2048, [matrix]).operand
    phases = matvec(bench.context(1), (matrix.weight,), source, Output((y,)), int8=int8, label="t")
    swizzle = re.search(
        r"fn swizzle_of\(at: u32\) -> u32 {\s*return (.+);", phases[0].record.source
    )
    assert swizzle is not None
    formula = re.sub(r"(\d)u", r"\1", swizzle[1])

    def place(at: int) -> int:
        return at ^ int(eval(formula, {"at": at}))

    count = 2048 // (16 if int8 else 4)
    assert sorted(map(place, range(count))) == list(range(count))
    for first in range(0, count, 8 * vectors):
        for vector in range(vectors):
            read = [first + vectors * thread + vector for thread in range(8)]
            assert len({place(at) % 8 for at in read}) == 8
            assert len({at % 8 for at in read}) == 8 // min(vectors, 8)  # the control


def test_matrices_whose_units_have_other_sizes_share_a_launch_in_f32(
    bench: Bench, rng: np.random.Generator
) -> None:
    operands, k = Operands(bench, rng), 448
    sizes = (("F16", 5), ("Q4_K", 12), ("F32", 3))
    matrices = [operands.matrix(name, n, k) for name, n in sizes]
    source, y = operands.source("norm", k, matrices), bench.poisoned(20)
    weights = tuple(matrix.weight for matrix in matrices)
    bench.run(matvec(bench.context(1), weights, source.operand, Output((y,)), label="t"), 1)
    expected = source.products(matrices, int8=False)
    assert relative_error(bench.download(y, 20), expected) < 1e-4


@pytest.mark.parametrize(
    ("outputs", "units", "gate", "expected"),
    [
        (2048, 128, False, (32, 1, 0)),  # down of llama-1b: 128 tiles for 132 workgroups
        (3072, 32, False, (32, 2, 0)),
        (8192, 32, True, (32, 2, 0)),
        (128_256, 32, False, (32, 2, 0)),
        (4096, 16, False, (16, 1, 0)),  # Qwen3 0.6B, whose rows have 16 units
        (3072, 16, True, (16, 1, 0)),
        (151_936, 16, False, (16, 2, 0)),
        (1024, 48, False, (48, 1, 8)),  # its down projection, if it lay in row order
        (1024, 32, False, (32, 1, 0)),
        (6912, 18, True, (8, 1, 0)),  # Gemma 3 1B
        (1152, 108, False, (56, 1, 9)),
        (1152, 16, False, (32, 1, 0)),
        (576, 72, False, (72, 1, 5)),  # SmolLM 135M in F16
        (960, 72, False, (32, 1, 0)),
    ],
)
def test_threads_of_a_grid_load_few_units_in_turn(
    bench: Bench, outputs: int, units: int, gate: bool, expected: tuple[int, int, int]
) -> None:
    ctx = on_device(bench.context(1), grid=Grid(512, 132), max_threads=512, software=False)
    output = Output((), "gate" if gate else "store", int8=gate)
    division = row_division(ctx, MatvecTuning(512), outputs, units, output=output)
    assert (division.team, division.per_team, division.spread) == expected
    launched = row_division(
        replace(ctx, grid=None), MatvecTuning(512), outputs, units, output=output
    )
    assert launched.team == 32, "teams launched by themselves are those of the tuning"


@pytest.mark.parametrize("most_quads", [0, 8], ids=["loaded for each tile", "held"])
@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(("name", "case"), distributed(("Q4_K", "Q6_K", "Q8_0")), ids=str)
def test_column_major_products_on_a_grid_equal_the_reference(
    any_bench: Bench,
    rng: np.random.Generator,
    name: str,
    case: Case,
    int8: bool,
    most_quads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With few workgroups a tile has several groups of outputs, and there are several tiles."""
    monkeypatch.setattr("rdrr_runtime.phases.products.matvec_columns.MAX_QUADS", most_quads)
    operands = Operands(any_bench, rng, Layout.COLUMN)
    check(operands, name, case, int8=int8, grid=Grid(256, 2))


@pytest.mark.parametrize("case", [Case("add", "plain", 6144, 34), Case("store", "norm", 4160, 66)])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0"])
def test_threads_of_a_grid_hold_several_quads_of_the_input_of_a_column_major_product(
    any_bench: Bench, rng: np.random.Generator, name: str, case: Case
) -> None:
    operands, grid = Operands(any_bench, rng, Layout.COLUMN), Grid(256, 2)
    check(operands, name, case, int8=True, grid=grid)
    ctx, shape = any_bench.context(1), ColumnShape((), case.n, case.k, int8=True)
    assert held_quads(replace(ctx, grid=grid), shape, 256) == -(-case.k // 1024)
    assert held_quads(ctx, shape, 256) == 0  # the control: launched by itself it holds none


@pytest.mark.parametrize(
    ("name", "outputs", "gate", "int8", "expected"),
    [
        ("Q4_K", 2048, False, True, (1, 1)),  # 128 tiles for 132 workgroups
        ("Q4_K", 3072, False, True, (2, 1)),  # 32 outputs share scales
        ("Q6_K", 3072, False, True, (2, 2)),  # and here 16
        ("Q6_K", 128_256, False, True, (4, 4)),
        ("Q4_K", 128_256, False, True, (4, 2)),
        ("Q4_K", 8192, True, True, (2, 1)),  # gate and up count as two outputs
        ("Q6_K", 128_256, False, False, (2, 2)),  # what fits the memory in f32
    ],
)
def test_a_tile_of_a_grid_has_as_many_outputs_as_a_workgroup_computes_and_fit(
    bench: Bench,
    rng: np.random.Generator,
    name: str,
    outputs: int,
    gate: bool,
    int8: bool,
    expected: tuple[int, int],
) -> None:
    weight = Operands(bench, rng, Layout.COLUMN).matrix(name, 32, 256).weight
    ctx = on_device(
        bench.context(1), grid=Grid(512, 132), max_threads=512, workgroup_storage=49_152
    )
    shape = ColumnShape((weight,), outputs, 2048, int8, gate)
    division = column_division(ctx, MatvecTuning(512), shape)
    assert (division.per_team, division.tile_groups) == expected
    assert (division.threads, division.rows) == (512, 16 * expected[0])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "layout"),
    [("Q4_K", Layout.ROW), ("Q6_K", Layout.ROW), ("Q8_0", Layout.ROW), ("Q4_K", Layout.COLUMN)],
)
def test_the_int8_products_of_a_broken_input_are_not_finite(
    any_bench: Bench, rng: np.random.Generator, name: str, layout: Layout, broken: float
) -> None:
    matrix, x = Operands(any_bench, rng, layout).matrix(name, 32, 512), normal(rng, 512)
    ctx = any_bench.context(1)

    def products() -> np.ndarray:
        y = any_bench.poisoned(32)
        source, output = Input(any_bench.upload(x)), Output((y,))
        any_bench.run(matvec(ctx, (matrix.weight,), source, output, int8=True, label="t"), 1)
        return any_bench.download(y, 32)

    assert np.isfinite(products()).all()
    x[rng.integers(512)] = broken
    assert not np.isfinite(products()).any()


def test_a_refusal_gives_the_reason(bench: Bench, rng: np.random.Generator) -> None:
    operands, ctx = Operands(bench, rng), bench.context(1)
    weight, half = (operands.matrix(name, 8, 256).weight for name in ("Q4_K", "F16"))
    columns = Operands(bench, rng, Layout.COLUMN)
    column, other = (columns.matrix(name, 8, 256).weight for name in ("Q4_K", "Q8_0"))
    assert refusal(ctx, (weight,), int8=True) is None
    assert refusal(ctx, (half,), int8=False) is None
    assert refusal(ctx, (column,), int8=True) is None

    def refused(*weights: GpuWeight, ctx=ctx, **wanted) -> str:
        return refusal(ctx, weights, int8=True, **wanted) or "not refused"

    assert refused(half) == "F16 has no codes that could be multiplied in int8"
    assert refused(weight, half, gate=True) == refused(half)
    assert refused(weight, replace(half, n=2000)) == refused(half)  # too many to read the input
    assert "others column-major" in refused(weight, column)
    assert "8 outputs, not a multiple of the 32" in refused(column, column, gate=True)
    assert "Q4_K and Q8_0" in refused(column, other, gate=True)
    assert "the pass has 2" in refused(weight, ctx=bench.context(2))
    small = on_device(ctx, workgroup_storage=1024)
    assert "exceeds the device's 1024 bytes of workgroup memory" in refused(weight, ctx=small)
    assert "exceeds the device's" in refused(weight, partials=1 << 16)
    assert refused(replace(weight, k=254)) == "K is 254, not a multiple of 4"


@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
@pytest.mark.parametrize("team", [4, 8, 16])
def test_teams_of_any_size_give_the_same_sums(
    any_bench: Bench, rng: np.random.Generator, layout: Layout, team: int, monkeypatch
) -> None:
    """Small teams sum by shuffles, teams of subgroup size by subgroupAdd, large ones by memory."""
    monkeypatch.setattr(
        "rdrr_runtime.phases.products.matvec_tuning.SOFTWARE", MatvecTuning(64, team)
    )
    operands, ctx = Operands(any_bench, rng, layout), any_bench.context(1)
    ctx = on_device(ctx, software=True)
    matrix, y = operands.matrix("Q4_K", 70, 576), any_bench.poisoned(70)
    source = operands.source("norm", 576, [matrix])
    launches = matvec(ctx, (matrix.weight,), source.operand, Output((y,)), label="t")
    any_bench.run(launches, 1)
    expected = source.products([matrix], int8=False)
    assert relative_error(any_bench.download(y, 70), expected) < 1e-4
