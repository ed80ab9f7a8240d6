"""Tests of the kernels with recurrent states, against torch in float64 row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_runtime.phases.rows.slice import Part, copy_part
from rdrr_runtime.phases.states.delta_rule import (
    DeltaOperands,
    DeltaSpec,
    delta_rule,
    delta_rule_in_chunks,
)
from rdrr_runtime.phases.states.short_convolution import ConvolutionSpec, short_convolution
from rdrr_runtime.phases.states.tiles import CHUNK
from rdrr_runtime.records import pack_step
from rdrr_runtime.reference import recurrence
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal
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
    delta_outputs,
    double,
    runs,
)

SPEC = DeltaSpec(heads=6, key_heads=2, key_dim=24, value_dim=20, eps=1e-6)
LARGE = DeltaSpec(heads=2, key_heads=2, key_dim=128, value_dim=64, eps=1e-6)


class Delta(StateOperands):
    """Random operands of a delta rule."""

    by_row, kind = ("qkv", "decay", "strength"), DeltaOperands

    def __init__(self, rng, spec, rows, sequences=1):
        self.spec, self.outputs = spec, spec.outputs
        self.qkv = normal(rng, rows, spec.inputs)
        self.decay, self.strength = normal(rng, rows, spec.heads), normal(rng, rows, spec.heads)
        self.rates = np.stack([normal(rng, spec.heads) - 1, normal(rng, spec.heads)])
        self.state = normal(rng, sequences, spec.heads, spec.key_dim, spec.value_dim)

    def expected(self, rows, sequence, slot):
        state = double(self.state[sequence]) * (slot > 0)
        gates = double(self.decay[rows]), double(self.strength[rows])
        y = delta_outputs(self.spec, double(self.qkv[rows]), gates, double(self.rates), state)
        return y.flatten(1).numpy(), state.numpy()


def in_chunks(bench, spec):
    matrix, factors = spec.scratch_bytes(MOST_ROWS)
    scratch = tuple(bench.poisoned(size // 4) for size in (matrix, matrix, factors))
    return lambda ctx, operands: delta_rule_in_chunks(ctx, operands, scratch, spec=spec, label="t")


@pytest.mark.parametrize(("base", "wanted"), [(0, 1), (3, 1), (3, 4)])
def test_delta_rule_row_by_row_equals_torch(any_bench, rng, base, wanted) -> None:
    check_row_by_row(any_bench, Delta(rng, SPEC, 7), delta_rule, base=base, wanted=wanted)


@pytest.mark.parametrize("single", [True, False])
def test_delta_rule_keeps_the_states_of_sequences_apart(any_bench, rng, single) -> None:
    rows = len((SINGLE_ROWS if single else SEVERAL_ROWS)[0])
    check_sequences_apart(any_bench, Delta(rng, SPEC, rows, SEQUENCES), delta_rule, single)


@pytest.mark.parametrize("base", [0, 3])
@pytest.mark.parametrize("rows", CHUNKED_ROWS)
@pytest.mark.parametrize("spec", [SPEC, LARGE], ids=["small", "large"])
def test_delta_rule_in_chunks_equals_torch(bench, rng, spec, rows, base) -> None:
    check_chunks(bench, Delta(rng, spec, rows), in_chunks(bench, spec), base=base)


@pytest.mark.parametrize("broken", ["strength", "decay", "rates"])
def test_a_gate_of_the_delta_rule_that_is_nan_stays_visible(any_bench, rng, broken) -> None:
    def phases(ctx, operands):
        return delta_rule(ctx, operands, spec=SPEC, single=False, label="t")

    check_nan_stays_visible(any_bench, Delta(rng, SPEC, 7), phases, name=broken)


@pytest.mark.parametrize("broken", ["strength", "decay", "rates"])
def test_a_gate_of_the_delta_rule_that_is_nan_stays_visible_in_chunks(bench, rng, broken) -> None:
    check_nan_stays_visible(bench, Delta(rng, SPEC, CHUNK + 9), in_chunks(bench, SPEC), name=broken)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("sequences", "slots", "wanted"),
    [
        ([0] * 6, [4, 5, 6, 7, 8, 9], 1),
        ([0] * 6, [0, 1, 2, 3, 4, 5], 4),
        ([1, 1, 2, 0, 0, 0], [6, 7, 3, 0, 1, 2], 1),
        ([1, 2, 0], [6, 3, 0], 1),
    ],
)
def test_short_convolution_equals_torch(bench, rng, gated, sequences, slots, wanted) -> None:
    rows, channels, kernel = len(sequences), 70, 4
    x = normal(rng, rows, (3 if gated else 1) * channels)
    weight, bias = normal(rng, channels, kernel), normal(rng, channels)
    state = normal(rng, 3, kernel, channels)
    ctx = bench.context(rows, slots=slots, sequences=sequences)
    packed = pack_step([0] * rows, slots, sequences=sequences, last_n=wanted)
    bench.device.write(ctx.state.step, packed)
    y, held = bench.poisoned(rows, channels), bench.upload(state)
    operands = (bench.upload(x), y, bench.upload(weight), bench.upload(bias), held)
    phases = short_convolution(
        ctx,
        *operands,
        spec=ConvolutionSpec(channels, kernel, "silu", gated),
        single=len(set(sequences)) == rows,
        label="t",
    )
    bench.run(phases, rows)
    output, kept = bench.download(y, rows, channels), bench.download(held, *state.shape)
    for sequence, part in runs(sequences):
        inner, outer = double(x[part]), 1.0
        if gated:
            inner, outer, values = inner.split(channels, dim=1)
            inner = inner * values
        inputs_before, base = double(state[sequence]), slots[part.start]
        v = recurrence.short_convolution(inner, double(weight), double(bias), inputs_before, base)
        assert (
            relative_error(output[part], (torch.nn.functional.silu(v) * outer).numpy()) < TOLERANCE
        )
        recurrence.keep_inputs(inputs_before, inner[: len(inner) - wanted + 1], base)
        assert relative_error(kept[sequence], inputs_before.numpy()) < TOLERANCE


def test_slice_copies_a_part_of_each_group(bench, rng) -> None:
    rows, part = 3, Part(groups=5, size=24, first=8, width=12)
    x, y = normal(rng, rows, 5, 24), bench.poisoned(3, 5, 12)
    bench.run(copy_part(bench.context(rows), bench.upload(x), y, part, label="t"), rows)
    assert np.array_equal(bench.download(y, rows, 5, 12), x[..., 8:20])
