"""Tests of the kernels with recurrent states, against torch in float64 row by row."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from rdrr_runtime.phases.delta_rule import (
    CHUNK,
    DeltaOperands,
    DeltaSpec,
    delta_rule,
    delta_rule_in_chunks,
)
from rdrr_runtime.phases.short_convolution import ConvolutionSpec, short_convolution
from rdrr_runtime.phases.slice import Part, copy_part
from rdrr_runtime.phases.state import pack_step
from rdrr_runtime.reference import recurrence
from support.gpu import TOLERANCE, normal, relative_error

SPEC = DeltaSpec(heads=6, key_heads=2, key_dim=24, value_dim=20, eps=1e-6)
LARGE = DeltaSpec(heads=2, key_heads=2, key_dim=128, value_dim=64, eps=1e-6)


def double(array):
    return torch.from_numpy(np.asarray(array, np.float64))


def runs(sequences):
    """Yield each sequence with the slice of its rows."""
    start = 0
    for sequence, group in groupby(sequences):
        count = len(list(group))
        yield sequence, slice(start, start + count)
        start += count


class Delta:
    """Random operands of a delta rule."""

    def __init__(self, rng, spec, rows, sequences=1):
        self.spec = spec
        self.qkv = normal(rng, rows, spec.inputs)
        self.decay, self.strength = normal(rng, rows, spec.heads), normal(rng, rows, spec.heads)
        self.rates = np.stack([normal(rng, spec.heads) - 1, normal(rng, spec.heads)])
        self.state = normal(rng, sequences, spec.heads, spec.key_dim, spec.value_dim)

    def expected(self, rows, sequence, slot):
        """Return the output of some rows of a sequence, and its state afterwards."""
        spec = self.spec
        keys = spec.key_heads * spec.key_dim
        q, k, v = double(self.qkv[rows]).split((keys, keys, spec.outputs), dim=1)
        q, k = (
            recurrence.unit(one.unflatten(1, (spec.key_heads, -1)), spec.eps).repeat_interleave(
                spec.heads // spec.key_heads, dim=1
            )
            for one in (q, k)
        )
        rate, bias = double(self.rates)
        log_decay = -torch.exp(rate) * torch.nn.functional.softplus(double(self.decay[rows]) + bias)
        state = double(self.state[sequence]) * (slot > 0)
        strength = torch.sigmoid(double(self.strength[rows]))
        y = recurrence.delta_rule(
            q, k, v.unflatten(1, (spec.heads, -1)), log_decay, strength, state
        )
        return y.flatten(1).numpy(), state.numpy()

    def upload(self, bench):
        y = bench.poisoned(len(self.qkv), self.spec.outputs)
        parts = (self.qkv, self.decay, self.strength, self.rates, self.state)
        return DeltaOperands(*map(bench.upload, parts), y)

    def downloaded(self, bench, operands):
        y = bench.download(operands.y, len(self.qkv), self.spec.outputs)
        return y, bench.download(operands.state, *self.state.shape)


@pytest.mark.parametrize(("base", "wanted"), [(0, 1), (3, 1), (3, 4)])
def test_delta_rule_row_by_row_equals_torch(any_bench, rng, base, wanted) -> None:
    rows = 7
    case = Delta(rng, SPEC, rows)
    operands, ctx = case.upload(any_bench), any_bench.context(rows)
    slots = range(base, base + rows)
    any_bench.device.write(ctx.state.step, pack_step([0] * rows, slots, last_n=wanted))
    any_bench.run(delta_rule(ctx, operands, spec=SPEC, single=False, label="t"), rows)
    y, state = case.downloaded(any_bench, operands)
    assert relative_error(y, case.expected(slice(0, rows), 0, base)[0]) < TOLERANCE
    # Only the first of the wanted rows is certain.
    kept = case.expected(slice(0, rows - wanted + 1), 0, base)[1]
    assert relative_error(state[0], kept) < TOLERANCE


@pytest.mark.parametrize("single", [True, False])
def test_delta_rule_keeps_the_states_of_sequences_apart(any_bench, rng, single) -> None:
    sequences = [2, 0, 3] if single else [2, 2, 2, 0, 3, 3]
    slots = [5, 0, 9] if single else [5, 6, 7, 0, 0, 1]
    rows = len(sequences)
    case = Delta(rng, SPEC, rows, sequences=4)
    operands = case.upload(any_bench)
    ctx = any_bench.context(rows, slots=slots, sequences=sequences)
    any_bench.run(delta_rule(ctx, operands, spec=SPEC, single=single, label="t"), rows)
    y, state = case.downloaded(any_bench, operands)
    untouched = set(range(4))
    for sequence, part in runs(sequences):
        expected, after = case.expected(part, sequence, slots[part.start])
        assert relative_error(y[part], expected) < TOLERANCE
        assert relative_error(state[sequence], after) < TOLERANCE
        untouched.discard(sequence)
    for sequence in untouched:
        assert np.array_equal(state[sequence], case.state[sequence])


@pytest.mark.parametrize("base", [0, 3])
@pytest.mark.parametrize("rows", [1, CHUNK - 1, CHUNK, 2 * CHUNK + 9])
@pytest.mark.parametrize("spec", [SPEC, LARGE], ids=["small", "large"])
def test_delta_rule_in_chunks_equals_torch(bench, rng, spec, rows, base) -> None:
    case, most = Delta(rng, spec, rows), 3 * CHUNK
    operands = case.upload(bench)
    padded = {
        name: bench.upload(np.pad(getattr(case, name), ((0, most - rows), (0, 0))))
        for name in ("qkv", "decay", "strength")
    }
    y = bench.poisoned(most, spec.outputs)
    operands = replace(operands, **padded, y=y)
    ctx = bench.context(rows, base=base, max_rows=most)
    matrix, factors = spec.scratch_bytes(most)
    scratch = tuple(bench.poisoned(size // 4) for size in (matrix, matrix, factors))
    bench.run(delta_rule_in_chunks(ctx, operands, scratch, spec=spec, label="t"), rows)
    expected, state = case.expected(slice(0, rows), 0, base)
    assert relative_error(bench.download(y, most, spec.outputs)[:rows], expected) < TOLERANCE
    assert relative_error(bench.download(operands.state, *case.state.shape)[0], state) < TOLERANCE


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
    found, kept = bench.download(y, rows, channels), bench.download(held, *state.shape)
    for sequence, part in runs(sequences):
        inner, outer = double(x[part]), 1.0
        if gated:
            inner, outer, values = inner.split(channels, dim=1)
            inner = inner * values
        own, base = double(state[sequence]), slots[part.start]
        v = recurrence.short_convolution(inner, double(weight), double(bias), own, base)
        assert (
            relative_error(found[part], (torch.nn.functional.silu(v) * outer).numpy()) < TOLERANCE
        )
        recurrence.keep_inputs(own, inner[: len(inner) - wanted + 1], base)
        assert relative_error(kept[sequence], own.numpy()) < TOLERANCE


def test_slice_copies_a_part_of_each_group(bench, rng) -> None:
    rows, part = 3, Part(groups=5, size=24, first=8, width=12)
    x, y = normal(rng, rows, 5, 24), bench.poisoned(3, 5, 12)
    bench.run(copy_part(bench.context(rows), bench.upload(x), y, part, label="t"), rows)
    assert np.array_equal(bench.download(y, rows, 5, 12), x[..., 8:20])
