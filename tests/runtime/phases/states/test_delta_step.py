"""Tests of the step of linear attention against its ops in torch, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from rdrr_runtime.phases.states.delta_rule import DeltaSpec
from rdrr_runtime.phases.states.delta_step import StepOperands, StepSpec, delta_step, refusal
from rdrr_runtime.reference import recurrence
from support.comparison import relative_error
from support.gpu import TOLERANCE, Bench, normal, on_device
from support.state_rows import delta_outputs, double


def _spec(kernel: int, **sizes: int) -> StepSpec:
    """Return a step whose rows hold other values before the strengths and after the decays."""
    delta = DeltaSpec(eps=1e-6, **sizes)
    strength = delta.inputs + delta.outputs
    decay = strength + delta.heads
    return StepSpec(delta, kernel, decay + delta.heads + 3, strength, decay)


SPECS = {
    "small": _spec(4, heads=6, key_heads=2, key_dim=24, value_dim=20),
    "large": _spec(4, heads=2, key_heads=2, key_dim=128, value_dim=64),
    "three taps": _spec(3, heads=3, key_heads=1, key_dim=32, value_dim=40),
}


@dataclass
class Layer:
    """Random operands of a step, and what its ops make of them."""

    spec: StepSpec
    projected: np.ndarray
    weight: np.ndarray
    rates: np.ndarray
    recent: np.ndarray
    state: np.ndarray

    @staticmethod
    def random(rng: np.random.Generator, spec: StepSpec, rows: int, sequences: int) -> Layer:
        delta = spec.delta
        return Layer(
            spec,
            normal(rng, rows, spec.stride),
            normal(rng, delta.inputs, spec.kernel),
            np.stack([normal(rng, delta.heads) - 1, normal(rng, delta.heads)]),
            normal(rng, sequences, spec.kernel, delta.inputs),
            normal(rng, sequences, delta.heads, delta.key_dim, delta.value_dim),
        )

    def upload(self, bench: Bench) -> StepOperands:
        delta, rows = self.spec.delta, len(self.projected)
        return StepOperands(
            projected=bench.upload(self.projected),
            taps=bench.upload(np.concatenate([self.weight.ravel(), self.rates.ravel()])),
            recent=bench.upload(self.recent),
            state=bench.upload(self.state),
            y=bench.poisoned(rows, delta.outputs),
            squares=bench.poisoned(rows, delta.heads, self.spec.blocks),
        )

    def expected(self, row: int, sequence: int, slot: int) -> tuple[np.ndarray, ...]:
        """Return the output of a row, and the recent inputs and state of its sequence after it."""
        spec, delta = self.spec, self.spec.delta
        held = double(self.projected[row : row + 1])
        recent, state, weight, rates = map(
            double, (self.recent[sequence], self.state[sequence], self.weight, self.rates)
        )
        u = held[:, : delta.inputs]
        mixed = recurrence.short_convolution(u, weight, None, recent, slot)
        recurrence.keep_inputs(recent, u, slot)
        gates = (
            held[:, spec.decay :][:, : delta.heads],
            held[:, spec.strength :][:, : delta.heads],
        )
        state = state * (slot > 0)
        y = delta_outputs(delta, torch.nn.functional.silu(mixed), gates, rates, state)
        return y[0].numpy(), recent.numpy(), state.numpy()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("sequences", "slots"),
    [([0], [0]), ([0], [2]), ([0], [9]), ([2, 0, 3], [5, 0, 1])],
    ids=["first token", "third token", "tenth token", "a batch"],
)
def test_a_step_equals_its_ops(
    any_bench: Bench, rng: np.random.Generator, name: str, sequences: list[int], slots: list[int]
) -> None:
    spec, rows, bench = SPECS[name], len(slots), any_bench
    layer, delta = Layer.random(rng, spec, rows, 4), spec.delta
    ctx = bench.context(rows, slots=slots, sequences=sequences)
    ctx = replace(ctx, multi_sequence=rows > 1)
    operands = layer.upload(bench)
    assert refusal(ctx, spec) is None
    bench.run(delta_step(ctx, operands, spec=spec, label="t"), rows)
    y = bench.download(operands.y, rows, delta.heads, delta.value_dim)
    squares = bench.download(operands.squares, rows, delta.heads, spec.blocks)
    recent = bench.download(operands.recent, *layer.recent.shape)
    state = bench.download(operands.state, *layer.state.shape)
    for row, (sequence, slot) in enumerate(zip(sequences, slots, strict=True)):
        expected, kept, after = layer.expected(row, sequence, slot)
        assert relative_error(y[row], expected) < TOLERANCE
        by_block = (expected**2).reshape(delta.heads, spec.blocks, -1).sum(2)
        assert relative_error(squares[row], by_block) < TOLERANCE
        assert np.array_equal(recent[sequence], kept.astype(np.float32))
        assert relative_error(state[sequence], after) < TOLERANCE
    for untouched in set(range(4)) - set(sequences):
        assert np.array_equal(state[untouched], layer.state[untouched])


@pytest.mark.parametrize("broken", ["strength", "decay", "rates"])
def test_a_gate_that_is_nan_stays_visible(
    any_bench: Bench, rng: np.random.Generator, broken: str
) -> None:
    spec, head = SPECS["small"], 1
    layer = Layer.random(rng, spec, 1, 1)
    if broken == "rates":
        layer.rates[0, head] = np.nan
    else:
        layer.projected[0, getattr(spec, broken) + head] = np.nan
    operands, ctx = layer.upload(any_bench), any_bench.context(1, base=5)
    any_bench.run(delta_step(ctx, operands, spec=spec, label="t"), 1)
    heads = spec.delta.heads
    y = np.isnan(any_bench.download(operands.y, heads, spec.delta.value_dim))
    squares = np.isnan(any_bench.download(operands.squares, heads, spec.blocks))
    for output in (y, squares):
        assert output[head].all()
        assert output.sum() == output[head].size


def test_a_refusal_gives_the_reason(bench: Bench) -> None:
    spec, ctx = SPECS["large"], bench.context(1)
    assert refusal(ctx, spec) is None
    assert "2 rows of one sequence" in str(refusal(bench.context(2), spec))
    assert "of workgroup memory" in str(refusal(on_device(ctx, workgroup_storage=1024), spec))
    odd = replace(spec, delta=replace(spec.delta, value_dim=18))
    assert "vectors of 4" in str(refusal(ctx, odd))
