"""Tests of products that add a normed branch to the residual stream before they read it.

`test_down` has the branches in fixed point.
"""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.products.fusion import Output
from rdrr_runtime.phases.products.matvec import matvec
from rdrr_runtime.phases.products.matvec_record import Matvec
from support.comparison import relative_error
from support.gpu import Bench
from support.matvec_operands import BranchForm, Operands


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize(
    ("layout", "k", "form"),
    [
        (Layout.ROW, 192, BranchForm(is_scaled=True)),  # at most one vector of each thread
        (Layout.ROW, 384, BranchForm()),
        (Layout.ROW, 2304, BranchForm(is_scaled=True)),  # more than one vector of each thread
        (Layout.ROW, 640, BranchForm(has_norm=False)),
        (Layout.ROW, 256, BranchForm(has_norm=False, is_scaled=True)),
        (Layout.ROW, 384, BranchForm(is_stored=False)),
        (Layout.COLUMN, 384, BranchForm()),
        (Layout.COLUMN, 2304, BranchForm(has_norm=False)),
    ],
    ids=str,
)
def test_a_normed_branch_is_added_to_the_input(
    any_bench: Bench,
    rng: np.random.Generator,
    layout: Layout,
    k: int,
    form: BranchForm,
    int8: bool,
) -> None:
    operands = Operands(any_bench, rng, layout)
    matrices = [operands.matrix("Q4_K", 96, k), operands.matrix("Q6_K", 40, k)]
    weights = tuple(matrix.weight for matrix in matrices)
    source, summed = operands.branch(k, matrices, form)
    y, ctx = any_bench.poisoned(136), any_bench.context(1)
    launches = matvec(ctx, weights, source.operand, Output((y,)), int8=int8, label="t")
    record = launches[0].record
    assert isinstance(record, Matvec)
    assert record.whole == (int8 and layout is Layout.ROW and k <= 4 * record.threads)
    any_bench.run(launches, 1)
    result = any_bench.download(y, 136)
    assert relative_error(result, source.products(matrices, int8=int8)) < 1e-4
    added = source.operand.added
    assert added is not None
    if added.stream is not None:
        assert relative_error(any_bench.download(added.stream, k), summed) < 1e-6


@pytest.mark.parametrize("is_stored", [False, True])
def test_unquantized_matrices_beside_int8_products_read_any_of_the_sums(
    any_bench: Bench, rng: np.random.Generator, is_stored: bool
) -> None:
    operands, k = Operands(any_bench, rng), 192
    matrices = [operands.matrix("Q4_K", 96, k), operands.matrix("F16", 6, k)]
    source, _ = operands.branch(k, matrices[:1], BranchForm(is_stored=is_stored))
    weights, y = tuple(matrix.weight for matrix in matrices), any_bench.poisoned(102)
    launches = matvec(
        any_bench.context(1), weights, source.operand, Output((y,)), int8=True, label="t"
    )
    any_bench.run(launches, 1)
    for part, matrix in zip(np.split(any_bench.download(y, 102), [96]), matrices, strict=True):
        expected = source.products([matrix], int8=not matrix.weight.form.values)
        assert relative_error(part, expected) < 1e-4
