"""Tests of the kernels of the state space, against torch in float64 row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdrr_runtime.phases.states.state_space import (
    StateSpaceOperands,
    StateSpaceSizes,
    StateSpaceSpec,
    StepForm,
    chunk_refusal,
    state_space,
    state_space_in_chunks,
)
from rdrr_runtime.phases.states.tiles import CHUNK
from rdrr_runtime.reference.state_space import selective_scan
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal, on_device
from support.state_rows import (
    CHUNKED_ROWS,
    MOST_ROWS,
    SEQUENCES,
    SEVERAL_ROWS,
    SINGLE_ROWS,
    StateOperands,
    check_chunks,
    check_nan_stays_visible,
    check_row_by_row,
    check_sequences_apart,
    double,
)

SMALL = StateSpaceSpec(StateSpaceSizes(heads=6, head_dim=20, groups=2, state_dim=24))
LARGE = StateSpaceSpec(
    StateSpaceSizes(heads=3, head_dim=64, groups=1, state_dim=256), StepForm(0.3, 1.1, 0.6)
)


class Case(StateOperands):
    """Random operands of a state space, with steps from very short to long."""

    by_row, kind = ("xbc", "step"), StateSpaceOperands

    def __init__(self, rng, spec, rows, sequences=1):
        self.spec, sizes = spec, spec.sizes
        self.outputs = sizes.outputs
        self.xbc = normal(rng, rows, sizes.inputs)
        self.step = 4 * normal(rng, rows, sizes.heads)
        bias = normal(rng, sizes.heads)
        bias[0] = -9  # steps of about 1e-4
        self.rates = np.stack([normal(rng, sizes.heads) - 1, bias, normal(rng, sizes.heads)])
        self.state = normal(rng, sequences, sizes.heads, sizes.state_dim, sizes.head_dim)

    def expected(self, rows, sequence, slot):
        sizes, form = self.spec.sizes, self.spec.form
        shared = sizes.groups * sizes.state_dim
        x, b, c = double(self.xbc[rows]).split((sizes.outputs, shared, shared), 1)
        x = x.unflatten(1, (sizes.heads, -1))
        b, c = (
            array.unflatten(1, (sizes.groups, -1)).repeat_interleave(sizes.heads // sizes.groups, 1)
            for array in (b, c)
        )
        rate, bias, skip = double(self.rates)
        step = torch.nn.functional.softplus(form.step_scale * double(self.step[rows]) + bias)
        step = step.clamp(form.least_step, form.most_step)
        state = double(self.state[sequence]) * (slot > 0)
        y = selective_scan(x, b, c, step, rate, state) + skip[:, None] * x
        return y.flatten(1).numpy(), state.numpy()


@pytest.mark.parametrize(("base", "wanted"), [(0, 1), (3, 1), (3, 4)])
def test_a_state_space_row_by_row_equals_torch(any_bench, rng, base, wanted) -> None:
    check_row_by_row(any_bench, Case(rng, SMALL, 7), state_space, base=base, wanted=wanted)


@pytest.mark.parametrize("single", [True, False])
def test_a_state_space_keeps_the_states_of_sequences_apart(any_bench, rng, single) -> None:
    rows = len((SINGLE_ROWS if single else SEVERAL_ROWS)[0])
    check_sequences_apart(any_bench, Case(rng, SMALL, rows, SEQUENCES), state_space, single)


@pytest.mark.parametrize("base", [0, 3])
@pytest.mark.parametrize("rows", CHUNKED_ROWS)
@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["small", "large"])
def test_a_state_space_in_chunks_equals_torch(bench, rng, spec, rows, base) -> None:
    products = bench.poisoned(spec.sizes.product_bytes(MOST_ROWS) // 4)

    def phases(ctx, operands):
        return state_space_in_chunks(ctx, operands, products, spec=spec, label="t")

    check_chunks(bench, Case(rng, spec, rows), phases, base=base)


@pytest.mark.parametrize("in_chunks", [False, True], ids=["row by row", "in chunks"])
@pytest.mark.parametrize("broken", ["step", "rates"])
def test_a_step_or_rate_that_is_nan_stays_visible(any_bench, rng, broken, in_chunks) -> None:
    products = any_bench.poisoned(SMALL.sizes.product_bytes(MOST_ROWS) // 4)

    def phases(ctx, operands):
        if in_chunks:
            return state_space_in_chunks(ctx, operands, products, spec=SMALL, label="t")
        return state_space(ctx, operands, spec=SMALL, single=False, label="t")

    check_nan_stays_visible(any_bench, Case(rng, SMALL, CHUNK + 9), phases, name=broken)


def test_short_steps_are_exact(any_bench, rng) -> None:
    """The first head's outputs are compared by themselves: others would hide their errors."""
    case = Case(rng, SMALL, 3)
    case.rates[2] = 0
    operands, ctx = case.upload(any_bench), any_bench.context(3)
    any_bench.run(state_space(ctx, operands, spec=SMALL, single=False, label="t"), 3)
    y, _ = case.downloaded(any_bench, operands)
    expected, _ = case.expected(slice(0, 3), 0, 0)
    assert relative_error(y[:, :20], expected[:, :20]) < TOLERANCE


def test_chunks_that_do_not_fit_the_workgroup_memory_are_refused(bench) -> None:
    ctx = on_device(bench.context(1), workgroup_storage=16384)
    assert chunk_refusal(ctx, LARGE.sizes) is None
    assert "workgroup memory" in str(chunk_refusal(ctx, replace(LARGE.sizes, state_dim=4096)))
