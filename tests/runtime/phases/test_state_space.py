"""Tests of the kernels of the state space, against torch in float64 row by row."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from rdrr_runtime.phases.state import pack_step
from rdrr_runtime.phases.state_space import (
    CHUNK,
    StateSpaceOperands,
    StateSpaceSizes,
    StateSpaceSpec,
    StepForm,
    chunk_refusal,
    state_space,
    state_space_in_chunks,
)
from rdrr_runtime.reference.state_space import selective_scan
from support.gpu import TOLERANCE, normal, relative_error

SMALL = StateSpaceSpec(StateSpaceSizes(heads=6, head_dim=20, groups=2, state_dim=24))
LARGE = StateSpaceSpec(
    StateSpaceSizes(heads=3, head_dim=64, groups=1, state_dim=256), StepForm(0.3, 1.1, 0.6)
)


class Case:
    """Random operands of a state space, with steps from very short to long."""

    def __init__(self, rng, spec, rows, sequences=1):
        self.spec, sizes = spec, spec.sizes
        self.xbc = normal(rng, rows, sizes.inputs)
        self.step = 4 * normal(rng, rows, sizes.heads)
        bias = normal(rng, sizes.heads)
        bias[0] = -9  # steps of about 1e-4
        self.rates = np.stack([normal(rng, sizes.heads) - 1, bias, normal(rng, sizes.heads)])
        self.state = normal(rng, sequences, sizes.heads, sizes.state_dim, sizes.head_dim)

    def expected(self, rows, sequence, slot):
        """Return the output of some rows of a sequence, and its state afterwards."""
        sizes, form = self.spec.sizes, self.spec.form
        shared = sizes.groups * sizes.state_dim
        x, b, c = (
            torch.from_numpy(self.xbc[rows]).double().split((sizes.outputs, shared, shared), 1)
        )
        x = x.unflatten(1, (sizes.heads, -1))
        b, c = (
            one.unflatten(1, (sizes.groups, -1)).repeat_interleave(sizes.heads // sizes.groups, 1)
            for one in (b, c)
        )
        rate, bias, skip = torch.from_numpy(self.rates).double()
        step = torch.nn.functional.softplus(
            form.step_scale * torch.from_numpy(self.step[rows]).double() + bias
        )
        step = step.clamp(form.least_step, form.most_step)
        state = torch.from_numpy(self.state[sequence]).double() * (slot > 0)
        y = selective_scan(x, b, c, step, rate, state) + skip[:, None] * x
        return y.flatten(1).numpy(), state.numpy()

    def upload(self, bench):
        y = bench.poisoned(len(self.xbc), self.spec.sizes.outputs)
        parts = (self.xbc, self.step, self.rates, self.state)
        return StateSpaceOperands(*map(bench.upload, parts), y)

    def downloaded(self, bench, operands):
        y = bench.download(operands.y, len(self.xbc), self.spec.sizes.outputs)
        return y, bench.download(operands.state, *self.state.shape)


@pytest.mark.parametrize(("base", "wanted"), [(0, 1), (3, 1), (3, 4)])
def test_a_state_space_row_by_row_equals_torch(any_bench, rng, base, wanted) -> None:
    rows = 7
    case = Case(rng, SMALL, rows)
    operands, ctx = case.upload(any_bench), any_bench.context(rows)
    slots = range(base, base + rows)
    any_bench.device.write(ctx.state.step, pack_step([0] * rows, slots, last_n=wanted))
    any_bench.run(state_space(ctx, operands, spec=SMALL, single=False, label="t"), rows)
    y, state = case.downloaded(any_bench, operands)
    assert relative_error(y, case.expected(slice(0, rows), 0, base)[0]) < TOLERANCE
    # Only the first of the wanted rows is certain.
    kept = case.expected(slice(0, rows - wanted + 1), 0, base)[1]
    assert relative_error(state[0], kept) < TOLERANCE


@pytest.mark.parametrize("single", [True, False])
def test_a_state_space_keeps_the_states_of_sequences_apart(any_bench, rng, single) -> None:
    sequences = [2, 0, 3] if single else [2, 2, 2, 0, 3, 3]
    slots = [5, 0, 9] if single else [5, 6, 7, 0, 0, 1]
    rows = len(sequences)
    case = Case(rng, SMALL, rows, sequences=4)
    operands = case.upload(any_bench)
    ctx = any_bench.context(rows, slots=slots, sequences=sequences)
    any_bench.run(state_space(ctx, operands, spec=SMALL, single=single, label="t"), rows)
    y, state = case.downloaded(any_bench, operands)
    start, untouched = 0, set(range(4))
    for sequence, group in groupby(sequences):
        part = slice(start, start + len(list(group)))
        expected, after = case.expected(part, sequence, slots[start])
        assert relative_error(y[part], expected) < TOLERANCE
        assert relative_error(state[sequence], after) < TOLERANCE
        untouched.discard(sequence)
        start = part.stop
    for sequence in untouched:
        assert np.array_equal(state[sequence], case.state[sequence])


@pytest.mark.parametrize("base", [0, 3])
@pytest.mark.parametrize("rows", [1, CHUNK - 1, CHUNK, 2 * CHUNK + 9])
@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["small", "large"])
def test_a_state_space_in_chunks_equals_torch(bench, rng, spec, rows, base) -> None:
    case, most = Case(rng, spec, rows), 3 * CHUNK
    padded = {
        name: bench.upload(np.pad(getattr(case, name), ((0, most - rows), (0, 0))))
        for name in ("xbc", "step")
    }
    y = bench.poisoned(most, spec.sizes.outputs)
    operands = replace(case.upload(bench), **padded, y=y)
    ctx = bench.context(rows, base=base, max_rows=most)
    products = bench.poisoned(spec.sizes.product_bytes(most) // 4)
    phases = state_space_in_chunks(ctx, operands, products, spec=spec, label="t")
    bench.run(phases, rows)
    expected, state = case.expected(slice(0, rows), 0, base)
    found = bench.download(y, most, spec.sizes.outputs)[:rows]
    assert relative_error(found, expected) < TOLERANCE
    assert relative_error(bench.download(operands.state, *case.state.shape)[0], state) < TOLERANCE


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
    ctx = replace(bench.context(1), workgroup_storage=16384)
    assert chunk_refusal(ctx, LARGE.sizes) is None
    assert "workgroup memory" in str(chunk_refusal(ctx, replace(LARGE.sizes, state_dim=4096)))
