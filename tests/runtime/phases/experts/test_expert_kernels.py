"""Tests of products with routed experts, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.experts.linear import expert_linear
from rdrr_runtime.phases.experts.router_topk import RouterSpec, router_topk
from rdrr_runtime.phases.experts.routing import expert_combine
from rdrr_runtime.phases.experts.sigmoid_gate import sigmoid_gate
from rdrr_runtime.phases.experts.tiled import expert_tiled
from rdrr_runtime.phases.routes import Routed
from rdrr_runtime.phases.rows.gated_activation import ExpertGates, gated_activation
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.experts import CLAMP, clamped, grouped, routed, stacked
from support.gpu import TOLERANCE, normal

TYPES = ("Q4_K", "Q6_K", "Q8_0", "F16", "F32")

BY_ROW = {"by_route": False, "label": "t"}
BY_ROUTE = {"by_route": True, "label": "t"}


@pytest.mark.parametrize("dtype", TYPES)
def test_each_route_is_multiplied_by_its_expert(bench, rng, dtype):
    rows, experts, top_k, n, k = 3, 5, 2, 70, 320
    weight, values = stacked(bench, rng, dtype, experts, (n, k))
    routes, ids, _ = routed(bench, rng, rows, experts, top_k)
    x = normal(rng, rows, k)
    y = bench.poisoned(rows, top_k, n)
    phases = expert_linear(
        bench.context(rows), weight, routes, bench.upload(x), y, by_route=False, label="t"
    )
    bench.run(phases, rows)
    expected = np.einsum("rsnk,rk->rsn", values[ids].astype(np.float64), x)
    assert relative_error(bench.download(y, rows, top_k, n), expected) < TOLERANCE


def test_experts_with_the_units_first_in_parts_are_multiplied(bench, rng, monkeypatch):
    """Parts end within an expert, and each part has an order of its own."""
    rows, experts, top_k, n, k = 3, 5, 2, 30, 256
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.arena), "max_binding", 64 * k * 5 // 8)
        weight, values = stacked(bench, rng, "Q4_K", experts, (n, k), units_first=True)
    assert [part.rows for part in weight.parts] == [64, 64, 22]
    routes, ids, _ = routed(bench, rng, rows, experts, top_k)
    x, y, ctx = normal(rng, rows, k), bench.poisoned(rows, top_k, n), bench.context(rows)
    bench.run(expert_linear(ctx, weight, routes, bench.upload(x), y, **BY_ROW), rows)
    expected = np.einsum("rsnk,rk->rsn", values[ids].astype(np.float64), x)
    assert relative_error(bench.download(y, rows, top_k, n), expected) < TOLERANCE


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("dtype", ["Q6_K", "F16"])
def test_the_experts_of_a_row_are_summed_by_their_weights(any_bench, rng, dtype, accumulate):
    rows, experts, top_k, n, k = 4, 6, 3, 67, 192
    weight, values = stacked(any_bench, rng, dtype, experts, (n, k))
    routes, ids, routing_weights = routed(any_bench, rng, rows, experts, top_k)
    x, before = normal(rng, rows, top_k, k), normal(rng, rows, n)
    expected = np.einsum("rsnk,rsk,rs->rn", values[ids].astype(np.float64), x, routing_weights)
    before *= np.float32(np.abs(expected).max())
    y = any_bench.upload(before) if accumulate else any_bench.poisoned(rows, n)
    ctx = any_bench.context(rows)
    x_on_gpu = any_bench.upload(x)
    phases = expert_linear(
        ctx, weight, routes, x_on_gpu, y, accumulate=accumulate, by_route=True, label="t"
    )
    any_bench.run(phases, rows)
    expected += before if accumulate else 0.0
    assert relative_error(any_bench.download(y, rows, n), expected) < TOLERANCE


def check_products(bench, rng, weight, values):
    """Compare products of rows, and those of routes summed over the experts, with NumPy's."""
    rows, top_k, (experts, n, k) = 3, 2, values.shape
    routes, ids, routing_weights = routed(bench, rng, rows, experts, top_k)
    x, inner = normal(rng, rows, k), normal(rng, rows, top_k, k)
    each, summed = bench.poisoned(rows, top_k, n), bench.poisoned(rows, n)
    ctx, products = bench.context(rows), values[ids].astype(np.float64)
    bench.run(expert_linear(ctx, weight, routes, bench.upload(x), each, **BY_ROW), rows)
    bench.run(
        expert_linear(ctx, weight, routes, bench.upload(inner), summed, **BY_ROUTE),
        rows,
    )
    expected = np.einsum("rsnk,rk->rsn", products, x)
    assert relative_error(bench.download(each, rows, top_k, n), expected) < TOLERANCE
    expected = np.einsum("rsnk,rsk,rs->rn", products, inner, routing_weights)
    assert relative_error(bench.download(summed, rows, n), expected) < TOLERANCE


def test_experts_beyond_the_binding_limit_are_split_at_any_row(bench, rng, monkeypatch):
    """Parts end within an expert, and even within the four outputs of a workgroup."""
    n, k = 30, 64
    monkeypatch.setattr(type(bench.arena), "max_binding", 4 * k * 64)
    weight, values = stacked(bench, rng, "F32", 5, (n, k))
    assert [part.first_row for part in weight.parts] == [0, 64, 128]
    check_products(bench, rng, weight, values)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("Q4_K", Layout.ROW),
        ("Q8_0", Layout.ROW),
        ("F16", Layout.ROW),
        ("Q4_K", Layout.COLUMN),
        ("Q8_0", Layout.COLUMN),
    ],
)
def test_tiles_over_the_routes_of_an_expert_equal_torch(any_bench, rng, dtype, layout):
    rows, experts, top_k, n, k = 150, 5, 2, 70, 320
    weight, values = stacked(any_bench, rng, dtype, experts, (n, k), layout)
    routes, ids, _ = routed(any_bench, rng, rows, experts, top_k)
    ctx, groups = grouped(any_bench, routes, ids, rows, rows)
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    options = {"by_route": False, "label": "t"}
    phases = expert_tiled(ctx, weight, routes, groups, any_bench.upload(x), y, **options)
    any_bench.run(phases, rows)
    expected = np.einsum("rsnk,rk->rsn", values[ids].astype(np.float64), x)
    result = any_bench.download(y, rows, top_k, n)
    assert relative_error(result, expected) < TOLERANCE


@pytest.mark.parametrize("accumulate", [True, False])
def test_products_by_route_are_summed_with_their_weights(bench, rng, monkeypatch, accumulate):
    """Parts end within an expert, and the pass has fewer rows than its maximum."""
    max_rows, rows, experts, top_k, n, k = 40, 37, 5, 2, 36, 64
    monkeypatch.setattr(type(bench.arena), "max_binding", 4 * k * 64)
    weight, values = stacked(bench, rng, "F32", experts, (n, k))
    assert len(weight.parts) == 3
    routes, ids, routing_weights = routed(bench, rng, max_rows, experts, top_k)
    ctx, groups = grouped(bench, routes, ids, rows, max_rows)
    x, before = normal(rng, max_rows, top_k, k), normal(rng, max_rows, n)
    inner = bench.poisoned(max_rows, top_k, n)
    y = bench.upload(before) if accumulate else bench.poisoned(max_rows, n)
    phases = [
        *expert_tiled(
            ctx, weight, routes, groups, bench.upload(x), inner, by_route=True, label="t"
        ),
        *expert_combine(ctx, routes, inner, y, width=n, accumulate=accumulate, label="t"),
    ]
    bench.run(phases, rows)
    expected = np.einsum("rsnk,rsk,rs->rn", values[ids].astype(np.float64), x, routing_weights)
    expected += before if accumulate else 0.0
    result = bench.download(y, max_rows, n)
    assert relative_error(result[:rows], expected[:rows]) < TOLERANCE
    assert np.array_equal(result[rows:], before[rows:]) or np.isnan(result[rows:]).all()


def test_an_expert_without_routes_has_an_empty_group(bench):
    ids = np.zeros((4, 1), np.uint32)
    words = np.stack([ids, np.ones((4, 1), np.float32).view(np.uint32)], axis=-1)
    grouped(bench, Routed(bench.upload(words), 3, 1), ids, 4, 4)


@pytest.mark.parametrize("dtype", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("split", [False, True], ids=["one part", "split"])
def test_column_major_experts_equal_torch(bench, rng, monkeypatch, dtype, split):
    if split:  # into parts that end within the rows of an expert, or between experts
        limit = {"Q4_K": 20_000, "Q8_0": 9_216}[dtype]
        monkeypatch.setattr(type(bench.arena), "max_binding", limit)
    weight, values = stacked(bench, rng, dtype, 5, (70, 36), Layout.COLUMN)
    assert (len(weight.parts) > 2) == split
    check_products(bench, rng, weight, values)


def test_the_output_of_a_shared_expert_is_multiplied_by_its_gate(any_bench, rng):
    rows, k, width = 3, 100, 36
    x, weight, branch = normal(rng, rows, k), normal(rng, k), normal(rng, rows, width)
    x[2] *= 1e4  # where the exponential alone would overflow
    expected = ops.sigmoid_gate(*(torch.from_numpy(a).double() for a in (x, branch, weight[None])))
    buffer = any_bench.upload(branch)
    operands = any_bench.upload(x), any_bench.upload(weight), buffer
    phases = sigmoid_gate(any_bench.context(rows), *operands, k=k, width=width, label="t")
    any_bench.run(phases, rows)
    assert relative_error(any_bench.download(buffer, rows, width), expected) < TOLERANCE


def test_a_gate_that_is_nan_stays_visible(any_bench, rng):
    rows, k, width = 2, 100, 36
    x, weight, branch = normal(rng, rows, k), normal(rng, k), normal(rng, rows, width)
    x[1, 3] = np.nan
    buffer = any_bench.upload(branch)
    operands = any_bench.upload(x), any_bench.upload(weight), buffer
    phases = sigmoid_gate(any_bench.context(rows), *operands, k=k, width=width, label="t")
    any_bench.run(phases, rows)
    is_nan = np.isnan(any_bench.download(buffer, rows, width))
    assert not is_nan[0].any()
    assert is_nan[1].all()


def test_unsupported_experts_are_refused(bench, rng):
    weight, _ = stacked(bench, rng, "F16", 2, (4, 64), Layout.COLUMN)
    routes, _, _ = routed(bench, rng, 1, 2, 1)
    x = bench.poisoned(64)
    with pytest.raises(FormatError, match="column-major"):
        expert_linear(
            bench.context(1), weight, routes, x, bench.poisoned(8), by_route=False, label="t"
        )
    with pytest.raises(FormatError, match="number of experts"):
        router_topk(bench.context(1), x, x, RouterSpec(2, 3, normalize=True), label="t")
    grouped = RouterSpec(8, 2, normalize=True, groups=3, top_groups=1)
    with pytest.raises(FormatError, match="groups of equal size"):
        router_topk(bench.context(1), x, x, grouped, label="t")


def test_biases_of_experts_are_added_before_the_activation_and_to_the_sum(any_bench, rng):
    """The input of a part ends within an expert, whose bias is added once."""
    rows, experts, top_k, n, k = 4, 6, 3, 64, 36
    routes, ids, factors = routed(any_bench, rng, rows, experts, top_k)
    gate, up = normal(rng, rows, top_k, n), normal(rng, rows, top_k, n)
    biases, down_bias = normal(rng, 2, experts, n), normal(rng, experts, k)
    downs, values = stacked(any_bench, rng, "F32", experts, (k, n))
    inner, summed = any_bench.poisoned(rows, top_k, n), any_bench.poisoned(rows, k)
    results, combined = any_bench.upload(normal(rng, rows, top_k, k)), any_bench.poisoned(rows, k)
    ctx, bias = any_bench.context(rows), any_bench.upload(down_bias)
    added = ExpertGates(routes, any_bench.upload(biases))
    phases = [
        *gated_activation(
            ctx,
            any_bench.upload(gate),
            any_bench.upload(up),
            inner,
            width=top_k * n,
            activation="silu",
            clamp=CLAMP,
            gates=added,
            label="t",
        ),
        *expert_linear(ctx, downs, routes, inner, summed, bias=bias, **BY_ROUTE),
        *expert_combine(ctx, routes, results, combined, width=k, bias=bias, label="t"),
    ]
    any_bench.run(phases, rows)
    expected = clamped(gate + biases[0][ids], up + biases[1][ids]).astype(np.float64)
    result = any_bench.download(inner, rows, top_k, n)
    assert relative_error(result, expected) < TOLERANCE
    out = np.einsum("rskn,rsn->rsk", values[ids], expected) + down_bias[ids]
    expected = np.einsum("rsk,rs->rk", out, factors)
    assert relative_error(any_bench.download(summed, rows, k), expected) < TOLERANCE
    out = any_bench.download(results, rows, top_k, k) + down_bias[ids]
    expected = np.einsum("rsk,rs->rk", out, factors)
    assert relative_error(any_bench.download(combined, rows, k), expected) < TOLERANCE
