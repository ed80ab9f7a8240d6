"""Tests of products with routed experts in int8, against the products of quantized rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.experts.int8 import expert_int8
from rdrr_runtime.phases.experts.tiled import expert_tiled
from rdrr_runtime.phases.products.fusion import Output
from rdrr_runtime.phases.products.matvec_rows import weights_refusal
from rdrr_runtime.phases.products.quantize_rows import (
    QuantizedRows,
    int8_sizes,
    padded_rows,
    quantize_rows,
)
from rdrr_runtime.phases.products.quantize_small_batch import (
    quantize_small_batch,
    small_batch_bytes,
)
from support.comparison import relative_error
from support.experts import CLAMP, clamped, grouped, routed, stacked
from support.gpu import TOLERANCE, in_int8, normal

INT8_CASES = (
    ("Q4_K", 1, 256),
    ("Q4_K", 5, 36),
    ("Q6_K", 3, 320),
    ("Q8_0", 2, 36),
    ("Q8_0", 4, 256),
)
"""Storage type, rows and inputs of int8 products."""


def test_a_refusal_of_int8_experts_gives_the_reason(bench, rng, monkeypatch):
    ctx, k = bench.context(1), 64
    blocks, _ = stacked(bench, rng, "Q8_0", 3, (32, k))
    columns, _ = stacked(bench, rng, "Q8_0", 3, (32, k), Layout.COLUMN)
    values, _ = stacked(bench, rng, "F16", 3, (32, k))
    monkeypatch.setattr(type(bench.arena), "max_binding", blocks.size // 2)
    split, _ = stacked(bench, rng, "Q8_0", 3, (32, k))
    halves = bench.context(1, values="f16")
    assert weights_refusal(ctx, [blocks, blocks]) is None
    assert "F16 has no codes" in weights_refusal(ctx, [blocks, values])
    assert "column-major" in weights_refusal(ctx, [columns, blocks])
    assert f"a matrix of {split.size} bytes" in weights_refusal(ctx, [split])
    assert "f16" in weights_refusal(halves, [blocks])


@pytest.mark.parametrize(("dtype", "rows", "k"), INT8_CASES)
@pytest.mark.parametrize("gated", [True, False])
def test_experts_in_int8_equal_the_product_of_quantized_rows(any_bench, rng, dtype, rows, k, gated):
    experts, top_k, n = 5, 2, 67
    stacks = [stacked(any_bench, rng, dtype, experts, (n, k)) for _ in range(1 + gated)]
    routes, ids, _ = routed(any_bench, rng, rows, experts, top_k)
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    ctx, target = any_bench.context(rows), any_bench.poisoned(small_batch_bytes(rows, k) // 4)
    kind, activation = ("gate", "silu") if gated else ("activate", "relu2")
    output = Output((y,), kind, activation=activation)
    phases = [
        *quantize_small_batch(ctx, any_bench.upload(x), target, k=k, label="t"),
        *expert_int8(ctx, tuple(codes for codes, _ in stacks), routes, target, output, label="t"),
    ]
    any_bench.run(phases, rows)
    near = in_int8(x).astype(np.float64)
    first, *ups = (np.einsum("rsnk,rk->rsn", values[ids], near) for _, values in stacks)
    expected = first / (1 + np.exp(-first)) * ups[0] if gated else np.maximum(first, 0.0) ** 2
    assert relative_error(any_bench.download(y, rows, top_k, n), expected) < 10 * TOLERANCE


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(("dtype", "rows", "k"), INT8_CASES)
def test_routes_in_int8_are_summed_by_their_weights(any_bench, rng, dtype, rows, k, accumulate):
    experts, top_k, n = 6, 3, 67
    downs, values = stacked(any_bench, rng, dtype, experts, (n, k))
    routes, ids, routing_weights = routed(any_bench, rng, rows, experts, top_k)
    x, before = normal(rng, rows, top_k, k), normal(rng, rows, n)
    near = in_int8(x.reshape(-1, k)).reshape(x.shape).astype(np.float64)
    expected = np.einsum("rsnk,rsk,rs->rn", values[ids], near, routing_weights)
    before *= np.float32(np.abs(expected).max())
    y = any_bench.upload(before) if accumulate else any_bench.poisoned(rows, n)
    target = any_bench.poisoned(small_batch_bytes(rows * top_k, k) // 4)
    ctx, output = any_bench.context(rows), Output((y,), "add" if accumulate else "store")
    phases = [
        *quantize_small_batch(ctx, any_bench.upload(x), target, k=k, per_row=top_k, label="t"),
        *expert_int8(ctx, (downs,), routes, target, output, label="t"),
    ]
    any_bench.run(phases, rows)
    expected += before if accumulate else 0.0
    assert relative_error(any_bench.download(y, rows, n), expected) < 10 * TOLERANCE


@pytest.mark.parametrize("by_route", [False, True], ids=["of rows", "of routes"])
@pytest.mark.parametrize(("dtype", "k"), [(dtype, k) for dtype, _, k in INT8_CASES])
def test_rows_of_an_expert_in_int8_equal_the_product_of_quantized_rows(
    bench, rng, dtype, k, by_route
):
    rows, held, experts, top_k, n = 75, 80, 5, 2, 70
    weight, values = stacked(bench, rng, dtype, experts, (n, k))
    routes, ids, _ = routed(bench, rng, held, experts, top_k)
    ctx, groups = grouped(bench, routes, ids, rows, held)
    per_row = top_k if by_route else 1
    x, y = normal(rng, held, per_row, k), bench.poisoned(held, top_k, n)
    sizes = int8_sizes(held * per_row, k)
    q, scales = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in sizes)
    target = QuantizedRows(q, scales, padded_rows(held * per_row), k)
    phases = [
        *quantize_rows(ctx, bench.upload(x), target, per_row=per_row, label="t"),
        *expert_tiled(ctx, weight, routes, groups, target, y, by_route=by_route, label="t"),
    ]
    bench.run(phases, rows)
    near = in_int8(x.reshape(-1, k)).reshape(x.shape).astype(np.float64)
    near = np.broadcast_to(near, (held, top_k, k))
    expected = np.einsum("rsnk,rsk->rsn", values[ids], near)
    result = bench.download(y, held, top_k, n)
    assert relative_error(result[:rows], expected[:rows]) < 10 * TOLERANCE
    assert np.isnan(result[rows:]).all()


MXFP4_CASE = ("MXFP4", 3, 96)


@pytest.mark.parametrize("scales_inputs", [False, True])
@pytest.mark.parametrize(("dtype", "rows", "k"), [("Q4_K", 5, 36), ("Q6_K", 3, 320), MXFP4_CASE])
def test_biases_of_experts_are_added_in_int8(any_bench, rng, dtype, rows, k, scales_inputs):
    experts, top_k, n = 5, 2, 64
    gates, gate_values = stacked(any_bench, rng, dtype, experts, (n, k))
    ups, up_values = stacked(any_bench, rng, dtype, experts, (n, k))
    downs, down_values = stacked(any_bench, rng, dtype, experts, (k, n))
    routes, ids, factors = routed(any_bench, rng, rows, experts, top_k)
    routes = replace(routes, scales_inputs=scales_inputs)
    biases, down_bias = normal(rng, 2, experts, n), normal(rng, experts, k)
    x, inner = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    y = any_bench.poisoned(rows, k)
    ctx = any_bench.context(rows)
    wide = any_bench.poisoned(small_batch_bytes(rows, k) // 4)
    narrow = any_bench.poisoned(small_batch_bytes(rows * top_k, n) // 4)
    gated = Output((inner,), "gate", any_bench.upload(biases), activation="silu", clamp=CLAMP)
    phases = [
        *quantize_small_batch(ctx, any_bench.upload(x), wide, k=k, label="t"),
        *expert_int8(ctx, (gates, ups), routes, wide, gated, label="t"),
        *quantize_small_batch(ctx, inner, narrow, k=n, per_row=top_k, label="t"),
        *expert_int8(
            ctx,
            (downs,),
            routes,
            narrow,
            Output((y,), "store", any_bench.upload(down_bias)),
            label="t",
        ),
    ]
    any_bench.run(phases, rows)
    near, ones = in_int8(x).astype(np.float64), np.ones_like(factors)
    before, after = (factors, ones) if scales_inputs else (ones, factors)
    gate, up = (
        np.einsum("rsnk,rk,rs->rsn", values[ids], near, before) + bias[ids]
        for values, bias in zip((gate_values, up_values), biases, strict=True)
    )
    result = any_bench.download(inner, rows, top_k, n)
    assert relative_error(result, clamped(gate, up)) < 10 * TOLERANCE
    near = in_int8(result.reshape(-1, n)).reshape(result.shape).astype(np.float64)
    out = np.einsum("rskn,rsn->rsk", down_values[ids], near) + down_bias[ids]
    expected = np.einsum("rsk,rs->rk", out, after)
    assert relative_error(any_bench.download(y, rows, k), expected) < 10 * TOLERANCE


@pytest.mark.parametrize("scales_inputs", [False, True])
@pytest.mark.parametrize(("dtype", "rows", "k"), [("Q4_K", 5, 36), ("Q6_K", 3, 320), MXFP4_CASE])
def test_gate_and_up_of_an_expert_in_one_matrix_are_activated_in_int8(
    any_bench, rng, dtype, rows, k, scales_inputs
):
    experts, top_k, n = 5, 2, 67
    weight, values = stacked(any_bench, rng, dtype, experts, (2 * n, k))
    routes, ids, factors = routed(any_bench, rng, rows, experts, top_k)
    routes = replace(routes, scales_inputs=scales_inputs)
    biases = normal(rng, 2, experts, n)
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    ctx, target = any_bench.context(rows), any_bench.poisoned(small_batch_bytes(rows, k) // 4)
    output = Output((y,), "gate", any_bench.upload(biases), activation="silu", clamp=CLAMP)
    made = [
        *quantize_small_batch(ctx, any_bench.upload(x), target, k=k, label="t"),
        *expert_int8(ctx, (weight,), routes, target, output, label="t"),
    ]
    any_bench.run(made, rows)
    near = in_int8(x).astype(np.float64)
    before = factors if scales_inputs else np.ones_like(factors)
    gate, up = (
        np.einsum("rsnk,rk,rs->rsn", half[ids], near, before) + bias[ids]
        for half, bias in zip((values[:, :n], values[:, n:]), biases, strict=True)
    )
    found = any_bench.download(y, rows, top_k, n)
    assert relative_error(found, clamped(gate, up)) < 10 * TOLERANCE
