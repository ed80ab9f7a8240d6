"""Tests of the gates, activations and scores that products of decode fuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.products.fusion import (
    AttentionSplits,
    GatedNorm,
    Input,
    Output,
    OutputFactors,
    OutputScore,
)
from rdrr_runtime.phases.products.matvec import can_quantize_output, matvec
from rdrr_runtime.phases.weights.packing import upload_weight
from support.comparison import relative_error
from support.gpu import Bench, normal
from support.matvec_operands import GROUP, Operands, silu


def test_the_gates_of_inputs_and_the_activation_of_outputs_may_both_be_sigmoids(
    any_bench: Bench, rng: np.random.Generator
) -> None:
    operands, y = Operands(any_bench, rng), any_bench.poisoned(34)
    matrix = operands.matrix("F32", 34, 64)
    source = operands.source("gated combine", 64, [])
    output = Output((y,), "activate", activation="sigmoid")
    ctx = any_bench.context(1)
    any_bench.run(matvec(ctx, (matrix.weight,), source.operand, output, label="t"), 1)
    expected = 1 / (1 + np.exp(-source.products([matrix], int8=False)))
    assert relative_error(any_bench.download(y, 34), expected) < 1e-4


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu2"])
def test_an_activation_follows_a_product_with_its_bias(
    any_bench: Bench, rng: np.random.Generator, activation: str
) -> None:
    operands, n = Operands(any_bench, rng), 50
    # Products of about 1, which the bias cancels without loss of digits.
    values = (normal(rng, n, 384) / 20).astype(np.float16).astype(np.float32)
    matrix, y = operands.uploaded("F16", values), any_bench.poisoned(n)
    source = operands.source("bare layer norm", 384, [])
    exact = source.products([matrix], int8=False)
    v = exact / np.abs(exact).max()
    source = replace(source, factor=1.0)
    bias = (v - exact).astype(np.float32)  # so that neither end of the activation is all there is
    output = Output((y,), "activate", bias=any_bench.upload(bias), activation=activation)
    ctx = any_bench.context(1)
    any_bench.run(matvec(ctx, (matrix.weight,), source.operand, output, label="t"), 1)
    tanh = np.tanh(0.7978845608028654 * (v + 0.044715 * v**3))
    expected = {"gelu_tanh": v / 2 * (1 + tanh), "relu2": np.maximum(v, 0) ** 2}[activation]
    assert relative_error(any_bench.download(y, n), expected) < 1e-4


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
def test_activated_outputs_may_gate_other_values(
    any_bench: Bench, rng: np.random.Generator, int8: bool
) -> None:
    operands, n, first = Operands(any_bench, rng), 38, 76
    matrix, y = operands.matrix("Q8_0", n, 256), any_bench.poisoned(n)
    source, others = operands.source("plain", 256, [matrix]), normal(rng, first + n + 5)
    factors = OutputFactors(any_bench.upload(others), first)
    output = Output((y,), "activate", activation="silu", factors=factors)
    ctx = any_bench.context(1)
    launches = matvec(ctx, (matrix.weight,), source.operand, output, int8=int8, label="t")
    any_bench.run(launches, 1)
    expected = silu(source.products([matrix], int8=int8)) * others[first : first + n]
    assert relative_error(any_bench.download(y, n), expected) < 1e-4


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("kind", ["store", "add"])
def test_the_sigmoid_of_a_logit_multiplies_the_products_but_neither_bias_nor_sum(
    any_bench: Bench, rng: np.random.Generator, kind: str, int8: bool
) -> None:
    operands, n = Operands(any_bench, rng), 38
    matrix = operands.matrix("Q5_K", n, 256)
    source, upload = operands.source("plain", 256, [matrix]), any_bench.upload
    products = source.products([matrix], int8=int8)
    scale = np.float32(np.abs(products).max())
    before, bias = scale * normal(rng, n), scale * normal(rng, n)
    logits = np.array([9.0, -1.25, 9.0], np.float32)
    y = upload(before)
    score = OutputScore(upload(logits), 1)
    output = Output((y,), kind, bias=upload(bias), score=score)
    ctx = any_bench.context(1)
    launches = matvec(ctx, (matrix.weight,), source.operand, output, int8=int8, label="t")
    any_bench.run(launches, 1)
    expected = products / (1 + np.exp(1.25)) + bias + (before if kind == "add" else 0)
    assert relative_error(any_bench.download(y, n), expected) < 1e-4


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("kind", ["gated", "gated combine"])
def test_a_gate_of_an_input_that_is_nan_stays_visible(
    any_bench: Bench, rng: np.random.Generator, kind: str, int8: bool
) -> None:
    operands = Operands(any_bench, rng)
    matrix, y = operands.matrix("Q4_K", 32, 384), any_bench.poisoned(32)
    source = operands.source(kind, 384, [matrix]).operand
    assert isinstance(source.before, GatedNorm | AttentionSplits)
    gates = source.before.gates
    launches = matvec(
        any_bench.context(1), (matrix.weight,), source, Output((y,)), int8=int8, label="t"
    )
    any_bench.run(launches, 1)
    assert np.isfinite(any_bench.download(y, 32)).all()
    held = any_bench.device.read(gates.gates).view(np.float32).copy()
    held[gates.first + gates.stride + 3] = np.nan
    any_bench.device.write(gates.gates, held)
    any_bench.run(launches, 1)
    assert np.isnan(any_bench.download(y, 32)).all()


@pytest.mark.parametrize("kind", ["store", "add"])
def test_a_score_that_is_nan_stays_visible(
    any_bench: Bench, rng: np.random.Generator, kind: str
) -> None:
    matrix, ctx = Operands(any_bench, rng).matrix("Q5_K", 38, 256), any_bench.context(1)
    source, scores = Input(any_bench.upload(normal(rng, 256))), [1.0, np.nan]
    for at, is_broken in enumerate(np.isnan(scores)):
        y = any_bench.upload(normal(rng, 38))
        score = OutputScore(any_bench.upload(np.array(scores, np.float32)), at)
        launches = matvec(ctx, (matrix.weight,), source, Output((y,), kind, score=score), label="t")
        any_bench.run(launches, 1)
        assert np.isnan(any_bench.download(y, 38)).tolist() == [is_broken] * 38


@pytest.mark.parametrize(
    ("inner", "grid"),
    [(512, None), (2112, Grid(64, 2))],  # the second of which a thread stages 3 vectors
    ids=str,
)
def test_a_gate_can_pass_its_outputs_on_in_int8(
    any_bench: Bench, rng: np.random.Generator, inner: int, grid: Grid | None
) -> None:
    operands, ctx = Operands(any_bench, rng), replace(any_bench.context(1), grid=grid)
    hidden, outputs = 256, 96
    assert can_quantize_output(ctx, inner)
    assert not can_quantize_output(ctx, inner + 8)
    gates = [operands.matrix("Q4_K", inner, hidden) for _ in range(2)]
    down = operands.matrix("Q6_K", outputs, inner)
    source = operands.source("norm", hidden, gates)
    gate, up = np.split(source.products(gates, int8=True), 2)
    words, scales, y = (any_bench.poisoned(size) for size in (inner, inner, outputs))
    gate_output = Output((words,), "gate", activation="silu", int8=True, scales=scales)
    weights, down_input = (
        tuple(matrix.weight for matrix in gates),
        Input(words, int8=True, scales=scales),
    )
    launches = [
        *matvec(ctx, weights, source.operand, gate_output, int8=True, label="gate"),
        *matvec(ctx, (down.weight,), down_input, Output((y,)), int8=True, label="down"),
    ]
    any_bench.run(launches, 1)
    groups = inner // GROUP
    codes = any_bench.download(words, inner // 4).view(np.int8).reshape(groups, GROUP)
    steps, sums = any_bench.download(scales, groups, 2).T
    assert sums.copy().view(np.int32).tolist() == codes.sum(1, dtype=np.int32).tolist()
    between = codes * steps[:, None].astype(np.float64)
    # Half a quantization step, plus the difference of f32 sums in another order.
    assert (
        np.abs(between - (silu(gate) * up).reshape(groups, GROUP)) < 0.51 * steps[:, None]
    ).all()
    assert (np.abs(codes).max(1) == 127).all()
    result = any_bench.download(y, outputs)
    assert relative_error(result, down.product(between.reshape(-1))) < 1e-4


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_the_products_behind_a_broken_output_of_a_gate_in_int8_are_not_finite(
    any_bench: Bench, rng: np.random.Generator, broken: float
) -> None:
    operands, ctx, upload = Operands(any_bench, rng), any_bench.context(1), any_bench.upload
    down, gate, x = operands.matrix("Q4_K", 32, 64), normal(rng, 128, 64), upload(normal(rng, 64))

    def products() -> np.ndarray:
        raw = gate.view(np.uint8)
        both = upload_weight(any_bench.arena, DTYPES["F32"], Layout.ROW, gate.shape, raw, "w")
        words, scales, y = (any_bench.poisoned(size) for size in (64, 64, 32))
        inner = Output((words,), "gate", activation="silu", int8=True, scales=scales)
        source, output = Input(words, int8=True, scales=scales), Output((y,))
        launches = [
            *matvec(ctx, (both,), Input(x), inner, label="gate"),
            *matvec(ctx, (down.weight,), source, output, int8=True, label="down"),
        ]
        any_bench.run(launches, 1)
        return any_bench.download(y, 32)

    assert np.isfinite(products()).all()
    gate[64 + rng.integers(64), rng.integers(64)] = broken  # one row of up
    assert not np.isfinite(products()).any()
